"""Whether calls may still start; all layers of one stack share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptcodebook.errors import PcoError

__all__ = ["Gate"]


class Gate:
    """Open until it is closed for good, by the error that every call which would start then raises.

    A call may wait long after its budget was reserved: for a slot of its endpoint, or between two
    tries. It passes the gate again when that wait is over, and closing the gate ends the wait.
    """

    def __init__(self) -> None:
        self._reason: PcoError | None = None
        self._told: list[Callable[[], None]] = []
        self._asleep: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raises the reason, a fresh one each time: a shared one gathers everybody's traceback."""
        if self._reason is not None:
            raise type(self._reason)(str(self._reason), hint=self._reason.hint)

    def close(self, reason: PcoError) -> None:
        """No call starts from now on; the first reason stays. Calls in flight finish."""
        if self._reason is not None:
            return
        self._reason = reason
        for told in self._told:
            told()
        for place in self._asleep:
            if not place.done():
                place.set_result(None)

    def on_close(self, told: Callable[[], None]) -> None:
        """Calls `told` when the gate closes."""
        self._told.append(told)

    async def sleep(self, seconds: float) -> None:
        """Waits as long, but no longer than the gate is open; then raises its reason."""
        self.check()
        place = asyncio.get_running_loop().create_future()
        timer = place.get_loop().call_later(seconds, _wake, place)
        self._asleep.add(place)
        try:
            await place
        finally:
            timer.cancel()
            self._asleep.discard(place)
        self.check()


def _wake(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)
