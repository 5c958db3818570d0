"""Counts of what the simulated model was asked and what it did, as `GET /stats` shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from promptcodebook.simulated.chat import ChatReply

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """Requests, finished replies, faults and tokens since the start or the last reset.

    `repeated` = finished replies to a request whose very same body had been answered before.
    """

    requests: int = 0
    replies: int = 0
    repeated: int = 0
    cut: int = 0
    """Replies that ended at a length, by fault or by the request's own cap."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    faults: Counter[str] = field(default_factory=lambda: Counter[str]())
    kinds: Counter[str] = field(default_factory=lambda: Counter[str]())
    _answered: set[bytes] = field(default_factory=lambda: set[bytes]())

    def finished(self, key: bytes, reply: ChatReply) -> None:
        """Counts a reply that went out whole; `key` identifies its request's body."""
        self.replies += 1
        self.kinds[reply.kind] += 1
        self.cut += reply.finish == "length"
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cached_tokens += reply.cached_tokens
        self.repeated += key in self._answered
        self._answered.add(key)

    def reset(self) -> None:
        """All counts back to nothing."""
        self.__init__()

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "model": "simulated",
            "requests": self.requests,
            "replies": self.replies,
            "repeated": self.repeated,
            "cut": self.cut,
            "faults": {name: self.faults[name] for name in _FAULTS},
            "kinds": dict(sorted(self.kinds.items())),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }


_FAULTS = ("429", "500", "drop", "json", "truncate", "routes")
