"""How many calls one address gets at once, when a call is tried again, and what stops all calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from promptcodebook.base.incidents import Tally
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import LM, Reply, Request, request_key
from promptcodebook.errors import EndpointDown, LMError, PcoError, RateLimited

_T = TypeVar("_T")
_Clock = Callable[[], float]
_ENOUGH = 4  # answered calls that make a window, at least


class StopSignal:
    """The error that every later call raises; the first stays. It ends waits between tries."""

    def __init__(self) -> None:
        self._reason: PcoError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._asleep: set[asyncio.Future[None]] = set()

    def check(self, kind: type[PcoError] = PcoError) -> None:
        if isinstance(self._reason, kind):
            # A fresh error each time: a shared one would gather every traceback.
            raise type(self._reason)(str(self._reason), hint=self._reason.hint)

    def give(self, reason: PcoError) -> None:
        """No call starts from now on. Calls in flight finish."""
        if self._reason is not None:
            return
        self._reason = reason
        for listener in self._listeners:
            listener()
        for place in list(self._asleep):
            if not place.done():
                place.set_result(None)

    def withdraw(self) -> None:
        self._reason = None

    def on_give(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def sleep(self, seconds: float) -> None:
        """Waits as long, or until the signal is given; then raises its reason."""
        self.check()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asleep.add(place)
        try:
            await asyncio.wait((place,), timeout=seconds)
        finally:
            self._asleep.discard(place)
        self.check()


class WaitingLine(Generic[_T]):
    """Who waits for room, first come first served. `take` takes it or raises; `leave` ends it."""

    def __init__(self, take: Callable[[_T], bool], leave: Callable[[_T], None]) -> None:
        self._take = take
        self._leave = leave
        self._waiting: deque[tuple[_T, asyncio.Future[None]]] = deque()

    async def join(self, asked: _T) -> None:
        """Waits for room, and takes it."""
        if not self._waiting and self._take(asked):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.advance()
            elif turn.exception() is None:  # its turn came in the moment of the cancellation
                self._leave(asked)
            raise

    def advance(self) -> None:
        """Lets in who comes next, as long as there is room."""
        while self._waiting:
            asked, turn = self._waiting[0]
            try:
                if not turn.done() and not self._take(asked):
                    return
            except PcoError as reason:
                if not turn.done():
                    turn.set_exception(reason)
            # What `take` raises may have moved the line already.
            if self._waiting and self._waiting[0][1] is turn:
                self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)


class AdaptiveLimit:
    """A limit of calls in flight, from `maximum` down to 1. A 429 or 503 halves it, once per wave:
    calls in flight then do not halve it again. After each full window of answered calls it grows by
    a sixteenth of the maximum. A Retry-After holds every new call."""

    def __init__(
        self, maximum: int, stop: StopSignal | None = None, clock: _Clock = time.monotonic
    ) -> None:
        self.maximum = max(1, maximum)
        self.current = self.maximum
        self.in_flight = 0
        self._stop = stop or StopSignal()
        self._clock = clock
        self._line: WaitingLine[None] = WaitingLine(self._take, lambda _: self.release())
        self._resume_at = 0.0
        self._cut_at = float("-inf")
        self._answered = 0

    async def acquire(self) -> float:
        """Waits for a slot and returns when it was had (on the limit's clock). Raises Stop."""
        await self._line.join(None)
        try:
            while (left := self._resume_at - self._clock()) > 0.0:
                await self._stop.sleep(left)
            self._stop.check()
        except BaseException:
            self.release()
            raise
        return self._clock()

    def release(self) -> None:
        self.in_flight -= 1
        self._line.advance()

    def record_answer(self) -> None:
        self._answered += 1
        if self._answered < max(self.current, _ENOUGH):
            return
        self._answered = 0
        if self.current < self.maximum:
            self.current = min(self.maximum, self.current + max(1, self.maximum // 16))
            self._line.advance()

    def record_objection(self, started: float, retry_after: float = 0.0) -> None:
        """The endpoint said 'too much' to a call that got its slot at `started`."""
        now = self._clock()
        self._resume_at = max(self._resume_at, now + retry_after)
        if started > self._cut_at:
            self._cut_at = now
            self._answered = 0
            self.current = max(1, self.current // 2)

    def _take(self, _: None) -> bool:
        has_room = self.in_flight < self.current
        self.in_flight += has_room
        return has_room


class PerLoop(Generic[_T]):
    """One _T for each event loop: the sync face runs each call in a loop and thread of its own."""

    def __init__(self) -> None:
        self._held: dict[asyncio.AbstractEventLoop, _T] = {}

    def here(self, make: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            self._held[loop] = make()
        return self._held[loop]

    def forget(self) -> _T | None:
        """Gives up the running loop's own; None if it had none."""
        return self._held.pop(asyncio.get_running_loop(), None)

    def orphans(self) -> list[_T]:
        """Gives up what loops left behind that have ended."""
        return [self._held.pop(loop) for loop in list(self._held) if loop.is_closed()]


@dataclass(frozen=True, slots=True)
class Backoff:
    """`retries` further tries, waiting first, 2·first, 4·first ... up to `longest` seconds. A
    Retry-After beyond `patience` seconds is not waited for: the call fails and says so."""

    retries: int = 4
    first: float = 0.25
    longest: float = 30.0
    patience: float = 300.0

    def seconds(self, attempt: int, key: bytes) -> float:
        """The wait after try number `attempt` (from 0), jittered to 50..100 % by the key."""
        share = 0.5 + 0.5 * keyed_random("backoff", key, attempt).random()
        return min(self.longest, self.first * 2**attempt) * share

    def waits(self, error: LMError) -> bool:
        return error.retry_after <= self.patience


class Retrying:
    """The one retry layer: take a slot, call, count what went wrong, free the slot, wait, retry.
    Each incident is tallied when it happens, also one that a later try repairs."""

    def __init__(
        self,
        inner: LM,
        limit: Callable[[], AdaptiveLimit],
        backoff: Backoff,
        tally: Tally,
        stop: StopSignal | None = None,
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._backoff = backoff
        self._tally = tally
        self._stop = stop or StopSignal()
        self._reached = False

    async def __call__(self, request: Request) -> Reply:
        attempt, backoff = 0, self._backoff
        while True:
            try:
                return await self._once(request)
            except LMError as error:
                # No call ever reached this address: more likely a wrong one than a restart.
                unreachable = isinstance(error, EndpointDown) and not self._reached
                most = min(1, backoff.retries) if unreachable else backoff.retries
                if attempt >= most or not error.retryable or not backoff.waits(error):
                    raise
                pause = max(backoff.seconds(attempt, request_key(request)), error.retry_after)
            await self._stop.sleep(pause)
            attempt += 1

    async def _once(self, request: Request) -> Reply:
        limit = self._limit()
        started = await limit.acquire()
        try:
            reply = await self._inner(request)
        except LMError as error:
            if error.incident is not None:
                self._tally(error.incident)
            self._reached = self._reached or not isinstance(error, EndpointDown)
            if isinstance(error, RateLimited):
                # A call that would have to wait longer fails; the others continue.
                wait = error.retry_after if self._backoff.waits(error) else 0.0
                limit.record_objection(started, wait)
            raise
        finally:
            limit.release()
        self._reached = True
        limit.record_answer()
        return reply
