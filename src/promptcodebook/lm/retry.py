"""The one retry layer: take a slot, call, count what went wrong, wait, try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from promptcodebook.calls import LM, Reply, Request, request_key
from promptcodebook.errors import EndpointDown, LMError, RateLimited
from promptcodebook.incidents import Tally
from promptcodebook.lm.limit import AdaptiveLimit
from promptcodebook.lm.stop import StopSignal
from promptcodebook.randomness import keyed_random


@dataclass(frozen=True, slots=True)
class Backoff:
    """`retries` further tries, waiting first, 2·first, 4·first ... up to `longest` seconds.

    A Retry-After beyond `patience` seconds is not waited for: the call fails and says so.
    """

    retries: int = 4
    first: float = 0.25
    longest: float = 30.0
    patience: float = 300.0

    def seconds(self, attempt: int, key: bytes) -> float:
        """The wait after try number `attempt` (from 0), jittered to 50..100 % by the key."""
        share = 0.5 + 0.5 * keyed_random("backoff", key, attempt).random()
        return min(self.longest, self.first * 2**attempt) * share


class Retrying:
    """An LM that calls within a limit and tries retryable failures again, out of its slot.

    Each incident is tallied when it happens, also those that a later try makes good. Once the stop
    signal is given nothing is tried any more.
    """

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
        for attempt in range(self._backoff.retries + 1):
            try:
                return await self._once(request)
            except LMError as error:
                if not self._may_retry(error, attempt):
                    raise
                wait = self._backoff.seconds(attempt, request_key(request))
                pause = max(wait, error.retry_after)
            await self._stop.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _once(self, request: Request) -> Reply:
        limit = self._limit()
        started = await limit.acquire()
        try:
            self._stop.check()
            reply = await self._inner(request)
        except LMError as error:
            self._incident(error, limit, started)
            raise
        finally:
            limit.release()
        self._reached = True
        # Its own time: an attempt may have waited for its budget before it left.
        limit.record_answer(request.role, reply.usage.latency_s)
        return reply

    def _incident(self, error: LMError, limit: AdaptiveLimit, started: float) -> None:
        if error.incident is not None:
            self._tally(error.incident)
        self._reached = self._reached or not isinstance(error, EndpointDown)
        if isinstance(error, RateLimited):
            # Nobody waits longer than the patience lasts: that call fails, the others go on.
            patient = error.retry_after <= self._backoff.patience
            limit.record_objection(started, error.retry_after if patient else 0.0)

    def _may_retry(self, error: LMError, attempt: int) -> bool:
        if not error.retryable or error.retry_after > self._backoff.patience:
            return False
        # Nobody ever answered at this address: more likely a wrong one than a restart.
        unreachable = isinstance(error, EndpointDown) and not self._reached
        return attempt < (min(1, self._backoff.retries) if unreachable else self._backoff.retries)
