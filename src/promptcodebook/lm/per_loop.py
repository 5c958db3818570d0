"""What belongs to an event loop: its connections, and who waits in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One T for each event loop. The sync face runs every call in a loop of its own, and several
    threads may be at it: none may touch what another's loop waits for."""

    def __init__(self) -> None:
        self._held: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self, make: Callable[[], T]) -> T:
        """The running loop's own, made when it first asks."""
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            self._held[loop] = make()
        return self._held[loop]

    def forget(self) -> T | None:
        """Gives up the running loop's own; None if it had none."""
        return self._held.pop(asyncio.get_running_loop(), None)

    def everywhere(self) -> list[T]:
        """All loops' own."""
        return list(self._held.values())

    def orphans(self) -> list[T]:
        """Gives up what loops left behind that have ended."""
        ended = [loop for loop in list(self._held) if loop.is_closed()]
        found = [self._held.pop(loop, None) for loop in ended]
        return [each for each in found if each is not None]
