"""Money, tokens, calls and seconds: what a run may spend, what it spent, and what calls cost. Each
attempt reserves the most it can cost before it leaves, so spending never passes a limit, as long as
the endpoint keeps to its length cap. A lost attempt is booked at its highest possible cost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from typing import Protocol

from promptcodebook import errors
from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.calls import LM, Limits, Reply, Request, Role, Usage
from promptcodebook.config import Budget
from promptcodebook.config.schema import Price
from promptcodebook.lm.limit import StopSignal, WaitingLine
from promptcodebook.lm.spec import MODELS, parse_spec
from promptcodebook.lm.wire import beyond_texts, byte_size, count_usage


class AttemptLog(Protocol):
    """Where attempts outlive the process. `begin` returns a ticket once the attempt would survive
    kill -9; what is never ended was in flight at the kill. `end` books it and returns at once."""

    def begin(self, role: Role, most: Usage) -> int: ...

    def end(self, ticket: int, role: Role, usage: Usage, lost: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request on its way to a server, and the most it can cost."""

    role: Role
    most: Usage
    ticket: int


class Ledger:
    """Sums over a run's sessions: answered or refused attempts, lost ones at most, and both."""

    def __init__(
        self,
        spent: Mapping[Role, Usage] | None = None,
        lost: Mapping[Role, Usage] | None = None,
        log: AttemptLog | None = None,
    ) -> None:
        self.usage, self.lost = dict(spent or {}), dict(lost or {})
        self.total = sum((*self.usage.values(), *self.lost.values()), Usage())
        self._log = log

    @property
    def lost_total(self) -> Usage:
        return sum(self.lost.values(), Usage())

    def begin(self, role: Role, most: Usage) -> Attempt:
        return Attempt(role, most, 0 if self._log is None else self._log.begin(role, most))

    def end(self, attempt: Attempt, usage: Usage, *, lost: bool = False) -> None:
        role, book = attempt.role, self.lost if lost else self.usage
        if usage.calls:
            book[role] = book.get(role, Usage()) + usage
            self.total += usage
        if self._log is not None:
            self._log.end(attempt.ticket, role, usage, lost)


_FREE = Price(prompt=0.0, completion=0.0)


class PriceTable:
    """Prices by full spec or by model name; the user's own come before the listed ones."""

    def __init__(self, extra: Mapping[str, Price] | None = None) -> None:
        self._extra = dict(extra or {})
        self._known: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """The price of a model spec; None = unknown."""
        if model not in self._known:
            self._known[model] = self._extra.get(model) or self._listed(model)
        return self._known[model]

    def _listed(self, model: str) -> Price | None:
        try:
            spec = parse_spec(model, {})
        except errors.PcoError:
            return None
        name = "simulated" if spec.kind == "simulated" else spec.model
        if name in self._extra:
            return self._extra[name]
        if spec.in_process:
            return _FREE
        with suppress(errors.MissingExtra):
            return errors.import_part(MODELS, "prices", "a listed price", "litellm")(spec)
        return None

    def cost(self, model: str, usage: Usage, written: int = 0) -> float | None:
        """USD for the tokens, of which `written` went into a cache; None = unknown price."""
        if (price := self.price(model)) is None:
            return None
        cached = min(usage.cached_prompt_tokens, usage.prompt_tokens)
        per_cached = price.prompt if price.cached is None else price.cached
        per_written = price.prompt if price.cache_write is None else price.cache_write
        prompt = (usage.prompt_tokens - cached) * price.prompt + cached * per_cached
        prompt += min(written, usage.prompt_tokens - cached) * (per_written - price.prompt)
        return (prompt + usage.completion_tokens * price.completion) / 1e6

    def bound(self, model: str, prompt: int, completion: int) -> float | None:
        """The most USD that these tokens can cost, cached or not; None = unknown."""
        if (price := self.price(model)) is None:
            return None
        per_prompt = max(price.prompt, price.cached or 0.0, price.cache_write or 0.0)
        return (prompt * per_prompt + completion * price.completion) / 1e6

    def require(self, models: Iterable[str]) -> None:
        for model in models:
            if self.price(model) is None:
                message = f"a money budget needs a price, but none is known for {model!r}"
                raise errors.ConfigError(message, hint=f"in pco.toml: {price_lines(model)}")


def price_lines(model: str) -> str:
    lines = "the lines prompt = ... and completion = ... (USD per million tokens)"
    return f'[prices."{model}"], followed by {lines}'


_PER_MESSAGE = 8
_PREAMBLE = 128  # some chat templates put a preamble of their own before the first message
_EPSILON = 1e-9  # room for the rounding of sums of prices
_LATER_S = 0.01  # the deadline's alarm and the run's clock need not agree to the millisecond
_NOTHING_KEPT = Budget(calls=0, tokens=0, usd=0.0, seconds=0.0)


class BudgetGate:
    """Lets attempts through while the budget allows: `enter` before each, `leave` after it.
    `elapsed` gives the run's seconds, earlier sessions included. An attempt that only has to wait
    for others to end waits. When the seconds are over, every wait of the stack ends too."""

    def __init__(
        self,
        limits: Budget,
        prices: PriceTable,
        ledger: Ledger,
        elapsed: Callable[[], float] = lambda: 0.0,
        stop: StopSignal | None = None,
    ) -> None:
        self.prices = prices
        self.ledger = ledger
        self.stop_signal = stop or StopSignal()
        self._limits = limits
        self._kept = _NOTHING_KEPT
        self._elapsed = elapsed
        self._reserved = Usage()
        self._in_flight = 0
        self._line = WaitingLine(self._take, self.leave)
        self._alarm: asyncio.TimerHandle | None = None
        self._asked, self._opened = False, False
        self.stop_signal.on_give(self._line.advance)

    @property
    def limits(self) -> Limits:
        """What may be spent in all, without the time."""
        return self._limits.limits

    def check_prices(self, models: Iterable[str]) -> None:
        """Raises ConfigError for a money budget over models or earlier calls of unknown price."""
        if self._limits.usd is None:
            return
        self.prices.require(models)
        if self.ledger.total.cost is None:
            message = "a money budget needs prices, but earlier calls of this run have none"
            hint = "set the budget in tokens or calls, or start a new run"
            raise errors.ConfigError(message, hint=hint)

    def stop(self, reason: errors.Stop) -> None:
        """No new call starts from now on. Calls in flight finish."""
        self._asked = True
        self.stop_signal.give(reason)

    def book(self, own: Usage) -> Usage:
        """Counts what a program reports of calls of its own: no cost, or one of 0, is not known.
        Raises BudgetReached, and ConfigError when it cannot be read or a money budget lacks a
        cost."""
        counts = astuple(own)[:4] if isinstance(own, Usage) else ("",)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not all(isinstance(n, int) and n >= 0 for n in counts):
            hint = "pco.Usage(calls=1, prompt_tokens=..., completion_tokens=..., cost=...)"
            raise errors.ConfigError(f"the executor reported the usage {own!r}", hint=hint)
        usage = replace(own, calls=own.calls or int(own.tokens > 0), cost=own.cost or None)
        if self._limits.usd is not None and usage.cost is None:
            message = "a money budget needs costs, but the executor reports calls without them"
            hint = "report them in USD, or set the budget in tokens or calls"
            raise errors.ConfigError(message, hint=hint)
        self.ledger.end(self.ledger.begin("executor", usage), usage)
        if not self._in_flight and (passed := self._limit_passed(Usage())):
            self._end(passed)
        self.stop_signal.check()
        return usage

    def keep_back(self, kept: Budget) -> None:
        """Keeps that much of each limit unspent until `open_reserve`; None = nothing of it."""
        if not self._opened:
            self._keep(kept)

    def open_reserve(self, kept: Budget = _NOTHING_KEPT) -> bool:
        """Whether more may be spent now: what was kept back is, but what is still `kept`, unless
        the user asked to stop."""
        self._opened = True
        if self._asked or not any(self._kept.model_dump().values()):
            return False
        self.stop_signal.withdraw()
        self._keep(kept)
        return True

    def _keep(self, kept: Budget) -> None:
        self._kept = kept
        if self._alarm is not None:
            self._arm()

    def most(self, request: Request) -> Usage:
        """The most that an attempt at this request can cost."""
        limits, cap = self._limits, request.sampling.max_tokens
        if cap is None and (limits.tokens is not None or limits.usd is not None):
            what = f"role {request.role} has no length cap, so no token or money budget can be kept"
            raise errors.ConfigError(what, hint=f"set roles.{request.role}.max_tokens in pco.toml")
        if limits.usd is not None:
            self.prices.require([request.model])
        prompt = prompt_bound(request)
        cost = self.prices.bound(request.model, prompt, cap or 0)
        return Usage(1, prompt, cap or 0, 0, cost if cap is not None or cost == 0.0 else None)

    async def enter(self, most: Usage) -> None:
        """Reserves; waits where attempts in flight may leave room. Raises Stop."""
        if self._limits.seconds is not None and self._alarm is None:
            self._arm()
        await self._line.join(most)

    def leave(self, most: Usage) -> None:
        self._in_flight -= 1
        self._reserved = self._reserved - _priced(most) if self._in_flight else Usage()
        self._line.advance()

    def _take(self, most: Usage) -> bool:
        """Reserves at once if it fits; raises Stop when waiting cannot help."""
        self.stop_signal.check()
        late = self._time_over()
        passed = late or self._limit_passed(most)
        if not passed:
            self._reserved += _priced(most)
            self._in_flight += 1
            return True
        if late or not self._in_flight:
            self._end(passed)
            self.stop_signal.check()
        return False

    def _arm(self) -> None:
        """Sets the alarm that ends every wait at the deadline: a Retry-After, a line, a slot."""
        if self._alarm is not None:
            self._alarm.cancel()
        wait = max(_LATER_S, self._seconds_left())
        self._alarm = asyncio.get_running_loop().call_later(wait, self._ring)

    def _ring(self) -> None:
        if late := self._time_over():
            self._end(late)
        else:
            self._arm()

    def _seconds_left(self) -> float:
        limit = self._limits.seconds
        return math.inf if limit is None else limit - (self._kept.seconds or 0.0) - self._elapsed()

    def _time_over(self) -> str:
        if self._seconds_left() > 0.0:
            return ""
        kept = self._kept.seconds or 0.0
        back = f"; {kept:.0f} s reserved for the verdict" if kept else ""
        return f"{self._limits.seconds:g} seconds ({self._elapsed():.0f} s elapsed{back})"

    def _limit_passed(self, most: Usage) -> str:
        """The limit that this call could pass, and how much of it is spent; or ''."""
        limits, kept, spent = self._limits, self._kept, self.ledger.total
        calls, tokens, usd = kept.calls or 0, kept.tokens or 0, kept.usd or 0.0
        ahead, paid = self._reserved + _priced(most), spent.cost or 0.0

        def back(amount: object, is_kept: float) -> str:
            return f"; {amount} reserved for the verdict" if is_kept else ""

        if limits.calls is not None and spent.calls + ahead.calls > limits.calls - calls:
            return f"{limits.calls} calls ({spent.calls} made{back(calls, calls)})"
        if limits.tokens is not None and spent.tokens + ahead.tokens > limits.tokens - tokens:
            next_call = f"the next call may take up to {most.tokens}{back(tokens, tokens)}"
            return f"{limits.tokens} tokens ({spent.tokens} spent; {next_call})"
        if limits.usd is not None and paid + (ahead.cost or 0.0) > limits.usd - usd + _EPSILON:
            rest = back(f"${usd:.4f}", usd)
            next_call = f"the next call may cost up to ${most.cost or 0.0:.4f}{rest}"
            return f"${limits.usd:g} (${paid:.4f} spent; {next_call})"
        return ""

    def _end(self, what: str) -> None:
        reason = f"the budget is reached: {what}"
        hint = "pco train --resume RUN --budget MORE continues from here"
        self.stop_signal.give(errors.BudgetReached(reason, hint=hint))


def _priced(most: Usage) -> Usage:
    """A reservation: an unknown price counts as none."""
    return most if most.cost is not None else replace(most, cost=0.0)


def prompt_bound(request: Request) -> int:
    """Never less than the prompt's tokens: a token covers at least one byte of text."""
    size = _PREAMBLE + sum(byte_size(m.content) + _PER_MESSAGE for m in request.messages)
    form = 0 if request.schema is None else request.schema.size
    return size + form + beyond_texts(request, 1)


# The most bytes of text in one token (the longest runs of spaces are one token).
_BYTES_A_TOKEN = 128
# What a server may put around a prompt, or write beyond the cap, and still be believed.
_TIMES, _BEYOND = 4, 4096


class Attempted:
    """An LM whose every call is one attempt at `inner`, which makes one request and no more. Raises
    BudgetReached where that could pass the budget. A refused attempt is booked as a call without
    tokens, one that reached no server not at all. An impossible token count is replaced by ours."""

    def __init__(self, inner: LM, gate: BudgetGate, tally: Tally) -> None:
        self._inner = inner
        self._gate = gate
        self._tally = tally

    async def __call__(self, request: Request) -> Reply:
        most = self._gate.most(request)
        await self._gate.enter(most)
        try:
            return await self._attempt(request, most)
        except errors.StoreError as error:
            self._gate.stop_signal.give(error)  # what is asked for from now on could not be booked
            raise
        finally:
            self._gate.leave(most)

    async def _attempt(self, request: Request, most: Usage) -> Reply:
        ledger = self._gate.ledger
        attempt = ledger.begin(request.role, most)
        try:
            reply = await self._inner(request)
        except errors.LMError as error:
            cost = self._gate.prices.cost(request.model, error.usage)
            known = replace(error.usage, cost=cost) if error.usage.calls else Usage(int(error.sent))
            ledger.end(attempt, most if error.lost else known, lost=error.lost)
            raise
        except errors.PcoError:  # a wrong setting: nothing was sent
            ledger.end(attempt, Usage())
            raise
        except BaseException:  # a cancelled call may have been paid for
            ledger.end(attempt, most, lost=True)
            raise
        if reply.source != "live":
            ledger.end(attempt, Usage())
            return reply
        if not credible(reply.usage, request, reply.text, most):
            usage = count_usage(request, reply.text, reply.usage.latency_s)
            reply = replace(reply, usage=usage, estimated=True)
        if reply.estimated:
            self._tally(Incident.USAGE_REPLACED)
        cost = self._gate.prices.cost(request.model, reply.usage, reply.cache_written)
        usage = replace(reply.usage, cost=cost)
        ledger.end(attempt, usage)
        return replace(reply, usage=usage)


def credible(usage: Usage, request: Request, text: str, most: Usage) -> bool:
    """Whether a reply can have taken that many tokens. `most` is the bound of its attempt."""
    asked = sum(byte_size(m.content) for m in request.messages)
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    written = byte_size(text)
    capped = request.sampling.max_tokens is not None
    longest = max(most.completion_tokens, written)
    return (
        usage.calls > 0
        and max(1, asked // _BYTES_A_TOKEN) <= prompt <= _TIMES * most.prompt_tokens + _BEYOND
        and -(-written // _BYTES_A_TOKEN) <= completion
        # Hidden thoughts count too: without a cap their number is unknown.
        and (not capped or completion <= _TIMES * longest + _BEYOND)
        and 0 <= usage.cached_prompt_tokens <= prompt
    )
