"""The stop signal: whether calls may still start. All layers of one stack share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptcodebook.errors import PcoError


class StopSignal:
    """Given by the error that every call which would start from then on raises; the first stays.

    A call may wait long after its budget was reserved: for a slot of its endpoint, or between two
    tries. It checks the signal again when that wait is over, and the signal ends the wait.
    """

    def __init__(self) -> None:
        self._reason: PcoError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._asleep: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raises the reason once the signal is given.

        A fresh error each time: a shared one would gather everybody's traceback.
        """
        if self._reason is not None:
            raise type(self._reason)(str(self._reason), hint=self._reason.hint)

    def give(self, reason: PcoError) -> None:
        """No call starts from now on; the first reason stays. Calls in flight finish."""
        if self._reason is not None:
            return
        self._reason = reason
        for listener in self._listeners:
            listener()
        for place in self._asleep:
            if not place.done():
                place.set_result(None)

    def withdraw(self) -> None:
        """Calls may start again."""
        self._reason = None

    def on_give(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when the signal is given."""
        self._listeners.append(listener)

    async def sleep(self, seconds: float) -> None:
        """Waits as long, or until the signal is given; then raises its reason."""
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
