"""The one retry layer: slot, call, count, wait, again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from promptcodebook.errors import (
    CallTimeout,
    EndpointDown,
    LMError,
    RateLimited,
    ServerFault,
)
from promptcodebook.keyed import keyed_random
from promptcodebook.lm.base import LM, Reply, Request, request_key
from promptcodebook.lm.gate import Gate
from promptcodebook.lm.limit import AdaptiveLimit
from promptcodebook.types import Tally

__all__ = ["Backoff", "Retrying"]

_INCIDENTS: tuple[tuple[type[LMError], str], ...] = (
    (RateLimited, "rate_limited"),
    (CallTimeout, "timeout"),
    (EndpointDown, "refused_connection"),
    (ServerFault, "server_error"),
)


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

    Each incident is tallied when it happens, also those that a later try makes good. Once the gate
    is closed nothing is tried any more.
    """

    def __init__(
        self,
        inner: LM,
        limit: Callable[[], AdaptiveLimit],
        backoff: Backoff,
        tally: Tally,
        gate: Gate | None = None,
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._backoff = backoff
        self._tally = tally
        self._gate = gate or Gate()
        self._reached = False

    async def __call__(self, request: Request) -> Reply:
        for attempt in range(self._backoff.retries + 1):
            try:
                return await self._once(request)
            except LMError as error:
                if not self._again(error, attempt):
                    raise
                wait = self._backoff.seconds(attempt, request_key(request))
                pause = max(wait, error.retry_after)
            await self._gate.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _once(self, request: Request) -> Reply:
        limit = self._limit()
        started = await limit.acquire()
        try:
            self._gate.check()
            begun = time.perf_counter()
            reply = await self._inner(request)
        except LMError as error:
            self._incident(error, limit, started)
            raise
        finally:
            limit.release()
        self._reached = True
        limit.answered(request.role, time.perf_counter() - begun)
        return reply

    def _incident(self, error: LMError, limit: AdaptiveLimit, started: float) -> None:
        name = error.incident or next((n for kind, n in _INCIDENTS if isinstance(error, kind)), "")
        if name:
            self._tally(name)
        self._reached = self._reached or not isinstance(error, EndpointDown)
        if isinstance(error, RateLimited):
            limit.objected(started, min(error.retry_after, self._backoff.patience))

    def _again(self, error: LMError, attempt: int) -> bool:
        if not error.retryable or error.retry_after > self._backoff.patience:
            return False
        # Nobody ever answered at this address: more likely a wrong one than a restart.
        unreachable = isinstance(error, EndpointDown) and not self._reached
        return attempt < (min(1, self._backoff.retries) if unreachable else self._backoff.retries)
