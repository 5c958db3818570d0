"""An event loop's clock that a test moves on, so that no limit depends on a machine's speed."""

from __future__ import annotations

import asyncio


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
