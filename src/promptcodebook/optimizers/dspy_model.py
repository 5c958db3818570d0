"""A model of dspy's over ours: what dspy asks goes where `ask` sends it.

Sampling is the role's that answers: a temperature that dspy sets is not passed on. Nothing is
cached or tried again here, for our models do both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from promptcodebook.calls import Message, Reply

Ask = Callable[[Sequence[Message]], Reply]


def dspy_model(dspy: Any, ask: Ask, name: str) -> Any:
    """A `dspy.LM` whose every request is one call of `ask`, from whatever thread dspy asks in."""
    engine = _Engine(dspy, ask)
    return dspy.LM(
        f"promptcodebook/{name}",
        engine=engine,
        async_engine=_AsyncEngine(engine),
        cache=False,
        num_retries=0,
    )


class _Engine:
    """Where dspy sends a request."""

    def __init__(self, dspy: Any, ask: Ask) -> None:
        self._lm15 = dspy.lm15
        self._ask = ask

    def __deepcopy__(self, memo: object) -> _Engine:
        return self

    def complete(self, request: Any) -> Any:
        reply = self._ask(_messages(request))
        usage = reply.usage
        return self._lm15.Response(
            id=None,
            model=request.model,
            message=self._lm15.Message.assistant([self._lm15.TextPart(reply.text)]),
            finish_reason="length" if reply.finish == "length" else "stop",
            usage=self._lm15.Usage(
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                total_tokens=usage.tokens,
            ),
        )

    def stream(self, request: Any) -> Any:
        return self._lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is open."""


class _AsyncEngine:
    """The same for a program that is awaited."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def __deepcopy__(self, memo: object) -> _AsyncEngine:
        return self

    async def complete(self, request: Any) -> Any:
        return await asyncio.to_thread(self._engine.complete, request)

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        for event in await asyncio.to_thread(lambda: list(self._engine.stream(request))):
            yield event

    async def aclose(self) -> None:
        """Nothing is open."""


def _messages(request: Any) -> list[Message]:
    system = request.system
    if system is not None and not isinstance(system, str):
        system = "".join(part.text for part in system)
    turns = [
        Message("assistant" if m.role == "assistant" else "user", m.text or "")
        for m in request.messages
    ]
    return [Message("system", system), *turns] if system else turns
