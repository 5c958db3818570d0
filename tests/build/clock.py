"""What a test waits for, at any speed: an event loop's clock that it moves on, and conditions."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path


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
    """Waits until another task or process makes it true. TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not (found := reached()) or not (found is True or await found):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one whose parent has not read its exit status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has ended
        return False
