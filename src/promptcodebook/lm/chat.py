"""The model as an executor is handed it: one call, everything else already bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from promptcodebook.lm.base import LM, Reply, Request, Schema, no_tally
from promptcodebook.lm.extract import THOUGHT, strip_think
from promptcodebook.types import Message, Role, Tally, Usage

__all__ = ["BoundChat"]


class BoundChat:
    """A Chat for one example; `usage` and `truncated` sum over its calls.
    Cut replies are tallied as `truncated`, once each: when they are paid for.

    `sample` turns a call's name into its sample seed: the name is `purpose`, or the running number
    of the call without one; a purpose that comes again is numbered, so no two calls share a seed.
    Thoughts (`<think>`) are stripped from replies: what is scored is the answer.
    """

    def __init__(
        self,
        lm: LM,
        sample: Callable[[str], int],
        greedy: bool = False,
        tally: Tally = no_tally,
    ) -> None:
        self.usage = Usage()
        self.truncated = False
        self._lm = lm
        self._sample = sample
        self._greedy = greedy
        self._tally = tally
        self._asked: Counter[str] = Counter()

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | None = None,
        purpose: str = "",
    ) -> Reply:
        """Asks; a plain string is one user message, `system` stands before everything."""
        request = Request(
            role=role,
            messages=_messages(messages, system),
            schema=schema,
            sample=self._sample(self._name(purpose)),
            greedy=self._greedy,
        )
        reply = await self._lm(request)
        self.usage += reply.usage
        if reply.finish == "length":
            self.truncated = True
            if reply.source == "live":
                self._tally("truncated")
        if THOUGHT not in reply.text:
            return reply
        return replace(reply, text=strip_think(reply.text))

    def _name(self, purpose: str) -> str:
        number = self._asked[purpose]
        self._asked[purpose] += 1
        if not purpose:
            return str(number)
        return f"{purpose}#{number}" if number else purpose


def _messages(messages: str | Sequence[Message], system: str) -> tuple[Message, ...]:
    turns = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
    return (Message("system", system), *turns) if system else turns
