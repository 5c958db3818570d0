"""What a test waits for, at any speed: an event loop's clock that it moves on, and conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Clock:
    """The running loop's clock: the real one, and what was skipped of it from any thread."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._skipped = loop.time, 0.0
        loop.time = self.now  # type: ignore[method-assign]

    def now(self) -> float:
        return self._real() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


async def until(reached: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits for what somebody else brings about. TimeoutError where nobody does."""
    async with asyncio.timeout(60):
        while not (found := reached()) or not (found is True or await found):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
