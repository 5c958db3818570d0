"""What the simulated model sees of a request, in process and over HTTP alike, and what it says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from promptcodebook.calls import Message, Request
from promptcodebook.randomness import keyed_int

__all__ = ["ChatReply", "ChatRequest", "Draw", "from_request"]

_SEEDS = 2**31
"""Seeds over HTTP are 31-bit integers."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request: no role, no tag, nothing an endpoint would not see."""

    messages: tuple[Message, ...]
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    schema: Mapping[str, object] | None = None
    """The JSON schema asked for, if any."""
    json_mode: bool = False
    digest: bytes = field(init=False, default=b"", compare=False)

    def __post_init__(self) -> None:
        seen = hashlib.sha256()
        for m in self.messages:
            seen.update(f"{m.role}\x1f{len(m.content)}\x1f{m.content}".encode(errors="replace"))
        object.__setattr__(self, "digest", seen.digest()[:16])

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0

    @property
    def sample(self) -> int | None:
        """The sample seed; None at temperature 0, where every sample is the same."""
        return None if self.greedy else (self.seed or 0) % _SEEDS

    @property
    def system(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "system")

    @property
    def user(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "user")


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One finished reply with its token counts and the kind of request it was taken for."""

    text: str
    kind: str
    finish: Literal["stop", "length"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Draw:
    """Uniform numbers keyed by noise seed, what the model looks at, and the sample seed."""

    noise_seed: int
    sample: int | None
    content: bytes = b""

    def unit(self, *purpose: object) -> float:
        """In [0, 1), decided by this request's content and the purpose."""
        return keyed_int(self.noise_seed, self.sample, self.content, *purpose) / 2**63

    def shared(self, *purpose: object) -> float:
        """In [0, 1), decided by the purpose alone: the same under any prompt."""
        return keyed_int(self.noise_seed, self.sample, *purpose) / 2**63


def from_request(request: Request) -> ChatRequest:
    """What an endpoint would receive of a Request: its role and model stay behind."""
    sampling = request.sampling
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return ChatRequest(
        messages=request.messages,
        temperature=0.0 if request.greedy else temperature,
        max_tokens=sampling.max_tokens,
        seed=request.sample % _SEEDS,
        schema=None if request.schema is None else request.schema.body,
    )
