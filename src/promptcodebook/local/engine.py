"""What a model on this machine does: one Job in, one Generation out, many at once.

Behind the Protocol stand `local/openvino.py` (GGUF files, continuous batching) and the transformers
engine; before it `local/lm.py` (the library's `LM`) and the server of `serve/`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from promptcodebook.calls import Message


@dataclass(frozen=True, slots=True)
class Job:
    """One completion to make.

    Temperature 0 = greedy, and then neither `top_p` nor `seed` matters. `max_tokens` None = to the
    end of the context. `stop` strings end the text and are not part of it. `schema` = the body of a
    JSON schema the text must satisfy. `logprobs` None = none; else with how many alternatives.
    """

    messages: tuple[Message, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    schema: Mapping[str, object] | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of the text, its natural log-probability, and the likeliest at its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text. Tokens are counted by the model's own tokenizer; `cached_tokens` = those of
    the prompt that were not computed again, None where the engine does not tell."""

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that are generated now, and those that wait for a place."""

    running: int = 0
    waiting: int = 0


class Engine(Protocol):
    """A loaded model. Jobs given at the same time share its steps; any event loop may give them.

    A job that cannot be done raises RequestRefused before it costs anything: a prompt that leaves
    no room in the context, a schema with a keyword that cannot be enforced, a penalty or logprobs
    that the engine has not. A cancelled job frees its place at the next step. After `close` every
    job raises.
    """

    @property
    def model(self) -> str:
        """The model's name, e.g. 'SmolLM2-135M-Instruct'."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and completion have together."""
        ...

    @property
    def load(self) -> Load: ...

    def count_tokens(self, text: str) -> int:
        """As the model's own tokenizer counts, without special tokens."""
        ...

    async def generate(self, job: Job) -> Generation: ...

    def stream(self, job: Job) -> AsyncIterator[str | Generation]:
        """Pieces of the text as they come, and last the Generation with the whole of it."""
        ...

    async def close(self) -> None:
        """Ends what is running and gives the memory back. Twice is as good as once."""
        ...


@dataclass(frozen=True, slots=True)
class Embedding:
    """One text as a vector of length 1, and how many tokens the text has."""

    vector: tuple[float, ...]
    tokens: int


@runtime_checkable
class Embedder(Protocol):
    """What an engine is besides, where its model can make embeddings."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Raises RequestRefused for a text that is longer than the context."""
        ...
