"""The budget of all roles together: checked before each call, with all in flight reserved.

A call reserves the most it can cost: one call, an upper bound of its prompt tokens, its whole
length cap, and their price. So spending plus reservations never passes a limit, as long as the
endpoint keeps to the length cap it was given.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from promptcodebook.calls import LM, Reply, Request, Role, Usage
from promptcodebook.config import Budget, Price
from promptcodebook.errors import BudgetReached, ConfigError, PcoError, Stop
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stop import StopSignal

__all__ = [
    "Budgeted",
    "Ledger",
    "PriceTable",
    "price_lines",
    "prompt_bound",
]

_PER_MESSAGE = 8
# Some chat templates put a preamble of their own before the first message.
_PREAMBLE = 128
# Room for the rounding of sums of prices.
_EPSILON = 1e-9
# USD per million tokens: prompt, completion, cached prompt.
_LISTED: Mapping[str, tuple[float, float, float]] = {
    "gpt-4o": (2.50, 10.00, 1.25),
    "gpt-4o-mini": (0.15, 0.60, 0.075),
    "gpt-4.1": (2.00, 8.00, 0.50),
    "gpt-4.1-mini": (0.40, 1.60, 0.10),
    "gpt-4.1-nano": (0.10, 0.40, 0.025),
    "gpt-5": (1.25, 10.00, 0.125),
    "gpt-5-mini": (0.25, 2.00, 0.025),
    "gpt-5-nano": (0.05, 0.40, 0.005),
    "o3": (2.00, 8.00, 0.50),
    "o4-mini": (1.10, 4.40, 0.275),
}
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_FREE = Price(prompt=0.0, completion=0.0)


def _no_time() -> float:
    return 0.0


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
        stop: StopSignal | None = None,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._prices = prices
        self._ledger = ledger
        self._elapsed = elapsed
        self._reserved = _Need()
        self._in_flight = 0
        self._waiting: deque[_Place] = deque()
        self._stop = stop or StopSignal()
        self._stop.on_give(self._wake)

    def check_prices(self, models: Iterable[str]) -> None:
        """Raises ConfigError for a money budget over models or earlier calls of unknown price."""
        if self._limits.usd is None:
            return
        self._prices.require(models)
        if self._ledger.total.cost is None:
            raise ConfigError(
                "a money budget cannot be kept: earlier calls of this run have no known price",
                hint="give the budget in tokens or calls, or start a new run",
            )

    def stop(self, reason: Stop) -> None:
        """No new call starts from now on: each raises `reason`. Calls in flight finish."""
        self._stop.give(reason)

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
        self._stop.check()
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
        late = self._time_over()
        passed = self._limit_passed(need)
        if not late and not passed:
            self._reserved += need
            self._in_flight += 1
            return True
        if late or not self._in_flight:
            self._stop.give(self._stop_reason(late or passed))
            self._stop.check()
        return False

    def _release(self, need: _Need) -> None:
        self._in_flight -= 1
        self._reserved = self._reserved - need if self._in_flight else _Need()
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting[0]
            try:
                self._stop.check()
                if place.turn.done():
                    self._waiting.popleft()
                    continue
                if not self._take(place.need):
                    return
            except PcoError as reason:
                # The stop signal wakes the line as well: this place may have left it by now.
                if self._waiting and self._waiting[0] is place:
                    self._waiting.popleft()
                if not place.turn.done():
                    place.turn.set_exception(reason)
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

    def _time_over(self) -> str:
        limit = self._limits.seconds
        if limit is None or (spent := self._elapsed()) < limit:
            return ""
        return f"{limit:g} seconds ({spent:.0f} s gone)"

    def _limit_passed(self, need: _Need) -> str:
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

    def _stop_reason(self, what: str) -> BudgetReached:
        return BudgetReached(
            f"the budget is reached: {what}",
            hint="pco train --resume RUN --budget MORE goes on from here",
        )


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


class Ledger:
    """Usage by role, over all sessions of a run; `sink` is told of each paid call."""

    def __init__(
        self,
        spent: Mapping[Role, Usage] | None = None,
        sink: Callable[[Role, Usage], None] | None = None,
    ) -> None:
        self.usage: dict[Role, Usage] = dict(spent or {})
        self.total = sum(self.usage.values(), Usage())
        self._sink = sink

    def record(self, role: Role, usage: Usage) -> None:
        """Books one paid call."""
        self.usage[role] = self.usage.get(role, Usage()) + usage
        self.total += usage
        if self._sink is not None:
            self._sink(role, usage)


class PriceTable:
    """Prices by full spec or by model name; the user's own come before the built-in ones."""

    def __init__(self, extra: Mapping[str, Price] | None = None) -> None:
        self._extra = dict(extra or {})
        self._known: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """The price of a model spec; None = unknown."""
        if model not in self._known:
            self._known[model] = self._look_up(model)
        return self._known[model]

    def cost(self, model: str, usage: Usage) -> float | None:
        """USD for the usage's tokens; None = unknown price. Cached tokens cost as listed."""
        price = self.price(model)
        if price is None:
            return None
        cached = min(usage.cached_prompt_tokens, usage.prompt_tokens)
        per_cached = price.prompt if price.cached is None else price.cached
        fresh = usage.prompt_tokens - cached
        total = fresh * price.prompt + cached * per_cached
        return (total + usage.completion_tokens * price.completion) / 1e6

    def require(self, models: Iterable[str]) -> None:
        """Raises ConfigError for the first model without a price."""
        for model in models:
            if self.price(model) is None:
                raise ConfigError(
                    f"a money budget needs a price, and none is known for {model!r}",
                    hint=f"in pco.toml: {price_lines(model)}",
                )

    def _look_up(self, model: str) -> Price | None:
        if model in self._extra:
            return self._extra[model]
        try:
            spec = parse_spec(model, {})
        except PcoError:
            return None
        if spec.kind == "simulated":
            return self._extra.get("simulated", _FREE)
        if spec.model in self._extra:
            return self._extra[spec.model]
        listed = spec.base_url.startswith("https://api.openai.com/")
        row = _LISTED.get(_DATED.sub("", spec.model)) if listed else None
        return Price(prompt=row[0], completion=row[1], cached=row[2]) if row else None


def price_lines(model: str) -> str:
    """What to write into pco.toml for a model without a price."""
    return (
        f'[prices."{model}"] and below it the lines prompt = ... and completion = ... '
        "(USD per million tokens)"
    )
