"""Budgets for all roles together, checked before a call with everything in flight reserved.

A call reserves the most it can cost: one call, an upper bound of its prompt tokens, its whole
length cap, and their price. So spending plus reservations never passes a limit, as long as the
endpoint keeps to the length cap it was given.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from promptcodebook.config import Budget
from promptcodebook.errors import BudgetReached, ConfigError, PcoError, Stop
from promptcodebook.lm.base import LM, Reply, Request
from promptcodebook.lm.gate import Gate
from promptcodebook.lm.ledger import Ledger
from promptcodebook.lm.prices import PriceTable
from promptcodebook.types import Usage

__all__ = ["Budgeted", "prompt_bound"]

_PER_MESSAGE = 8
# Some chat templates put a preamble of their own before the first message.
_PREAMBLE = 128
# Room for the rounding of sums of prices.
_EPSILON = 1e-9


def _no_time() -> float:
    return 0.0


def prompt_bound(request: Request) -> int:
    """Never less than the prompt's tokens: a token stands for at least one byte of the text."""
    size = _PREAMBLE + sum(
        len(m.content.encode("utf-8", "surrogatepass")) + _PER_MESSAGE for m in request.messages
    )
    if request.schema is not None:
        size += len(json.dumps(request.schema.body))
    return size


@dataclass(frozen=True, slots=True)
class _Need:
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: _Need) -> _Need:
        return _Need(self.calls + other.calls, self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: _Need) -> _Need:
        return _Need(self.calls - other.calls, self.tokens - other.tokens, self.usd - other.usd)


@dataclass(slots=True)
class _Place:
    need: _Need
    turn: asyncio.Future[None]


class Budgeted:
    """An LM that meters what it asks and stops before a limit would be passed.

    `elapsed` gives the run's seconds, earlier sessions included. Raises BudgetReached, and from
    then on for every call; a call that only has to wait for others to settle waits, first come
    first served. Replies that cost nothing (`usage.calls` 0) are not booked.
    """

    def __init__(
        self,
        inner: LM,
        limits: Budget,
        prices: PriceTable,
        ledger: Ledger,
        elapsed: Callable[[], float] = _no_time,
        gate: Gate | None = None,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._prices = prices
        self._ledger = ledger
        self._elapsed = elapsed
        self._reserved = _Need()
        self._in_flight = 0
        self._waiting: deque[_Place] = deque()
        self._gate = gate or Gate()
        self._gate.on_close(self._wake)

    def check_prices(self, models: Iterable[str]) -> None:
        """Raises ConfigError if a money budget stands over a model, or a past, without a price."""
        if self._limits.usd is None:
            return
        self._prices.require(models)
        if self._ledger.total.cost is None:
            raise ConfigError(
                "a money budget cannot be kept: earlier calls of this run have no known price",
                hint="give the budget in tokens or calls, or start a new run",
            )

    def close(self, reason: Stop) -> None:
        """No new call starts from now on: each raises `reason`. Calls in flight finish."""
        self._gate.close(reason)

    async def __call__(self, request: Request) -> Reply:
        need = self._need(request)
        await self._reserve(need)
        try:
            reply = await self._inner(request)
            if not reply.usage.calls:
                return reply
            usage = replace(reply.usage, cost=self._prices.cost(request.model, reply.usage))
            self._ledger.record(request.role, usage)
            return replace(reply, usage=usage)
        finally:
            self._release(need)

    def _need(self, request: Request) -> _Need:
        limits = self._limits
        if limits.tokens is None and limits.usd is None:
            return _Need(calls=1)
        cap = request.sampling.max_tokens
        if cap is None:
            raise ConfigError(
                f"role {request.role} has no length cap, so no budget of tokens or money can hold",
                hint=f"set roles.{request.role}.max_tokens in pco.toml",
            )
        prompt = prompt_bound(request)
        if limits.usd is None:
            return _Need(1, prompt + cap)
        self._prices.require([request.model])
        most = Usage(1, prompt, cap)
        return _Need(1, prompt + cap, self._prices.cost(request.model, most) or 0.0)

    async def _reserve(self, need: _Need) -> None:
        self._gate.check()
        if self._waiting or not self._take(need):
            place = _Place(need, asyncio.get_running_loop().create_future())
            self._waiting.append(place)
            try:
                await place.turn
            except asyncio.CancelledError:
                self._give_up(place)
                raise

    def _take(self, need: _Need) -> bool:
        """Reserves at once if it fits; raises BudgetReached when waiting cannot help."""
        late = self._late()
        passed = self._passed(need)
        if not late and not passed:
            self._reserved += need
            self._in_flight += 1
            return True
        if late or not self._in_flight:
            self._gate.close(self._reached(late or passed))
            self._gate.check()
        return False

    def _release(self, need: _Need) -> None:
        self._in_flight -= 1
        self._reserved = self._reserved - need if self._in_flight else _Need()
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting[0]
            try:
                self._gate.check()
                if place.turn.done():
                    self._waiting.popleft()
                    continue
                if not self._take(place.need):
                    return
            except PcoError as stop:
                # Closing the gate wakes the line as well: this place may have left it by now.
                if self._waiting and self._waiting[0] is place:
                    self._waiting.popleft()
                if not place.turn.done():
                    place.turn.set_exception(stop)
                continue
            self._waiting.popleft()
            place.turn.set_result(None)

    def _give_up(self, place: _Place) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
            self._wake()
        elif not place.turn.cancelled() and place.turn.exception() is None:
            # Its turn came in the very moment of the cancellation.
            self._release(place.need)

    def _late(self) -> str:
        limit = self._limits.seconds
        if limit is None or (spent := self._elapsed()) < limit:
            return ""
        return f"{limit:g} seconds ({spent:.0f} s gone)"

    def _passed(self, need: _Need) -> str:
        """The limit that this call on top of all else could pass, and where it stands; or ''."""
        limits, spent = self._limits, self._ledger.total
        ahead = self._reserved + need
        if limits.calls is not None and spent.calls + ahead.calls > limits.calls:
            return f"{limits.calls} calls ({spent.calls} made)"
        if limits.tokens is not None and spent.tokens + ahead.tokens > limits.tokens:
            return (
                f"{limits.tokens} tokens ({spent.tokens} spent; "
                f"the next call may take up to {need.tokens})"
            )
        paid = spent.cost or 0.0
        if limits.usd is not None and paid + ahead.usd > limits.usd + _EPSILON:
            return (
                f"${limits.usd:g} (${paid:.4f} spent; the next call may cost up to ${need.usd:.4f})"
            )
        return ""

    def _reached(self, what: str) -> BudgetReached:
        return BudgetReached(
            f"the budget is reached: {what}",
            hint="pco train --resume RUN --budget MORE goes on from here",
        )
