"""What each caller may spend a day, and the last requests with their prompts. A call reserves the
most that it can cost and is booked at what it took, so spending stays within the budget while the
model keeps to the length it was given. The day is UTC's; what was spent on several days is kept, so
a clock that jumps gives no budget twice. Reservations are on disk within a moment:
a restart gives nothing back, and calls cut off by a kill count as spent."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from promptcodebook.base.sqlite import Packer, Reader, unpack
from promptcodebook.calls import Role, Usage
from promptcodebook.config import Budget
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.online.served_log import LAYOUT, BackgroundFile
from promptcodebook.deploy.serve.upstream import UpstreamAnswer
from promptcodebook.errors import StoreError
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.quirks import CAPS
from promptcodebook.lm.wire import cache_written, told_usage

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request's prompt and how it came about. `time` is in UTC, `instincts` the route's texts;
    `input`, `analysis` and `constraints` are empty unless texts are kept."""

    id: str
    time: str
    model: str
    version: str
    mode: str
    route: tuple[int, ...]
    instincts: tuple[str, ...]
    prompt: str
    fallbacks: tuple[str, ...]
    cached: str
    status: int
    input: str = ""
    analysis: str = ""
    constraints: tuple[str, ...] = ()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Records(BackgroundFile):
    def __init__(self, path: Path, most: int) -> None:
        def write(db: sqlite3.Connection, records: Sequence[RequestRecord]) -> None:
            # No copy of each text, as `asdict` makes one: the server waits for the interpreter.
            packer, names = Packer(), [each.name for each in fields(RequestRecord)]
            trees = ({name: getattr(record, name) for name in names} for record in records)
            rows = [(tree["id"], packer.pack(tree)) for tree in trees]
            db.executemany("INSERT INTO requests (id, value) VALUES (?, ?)", rows)

        oldest = "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?"
        super().__init__(path, "requests are", write, lambda db: db.execute(oldest, (most,)))


def find_record(path: Path, request_id: str) -> RequestRecord:
    """Raises StoreError where there is none, or none any more."""
    rows = list[Any]()
    if path.is_file():
        with closing(Reader(path, LAYOUT)) as reader:
            rows = reader.rows("SELECT value FROM requests WHERE id = ?", (request_id,))
    if not rows:
        hint = "only the latest requests are kept (serve.records in pco.toml); PCO_REQUESTS "
        hint += "names the file"
        raise StoreError(f"no request {request_id} is recorded in {path}", hint=hint)
    return TypeAdapter(RequestRecord).validate_python(unpack(rows[0][0]))


_caller: ContextVar[str] = ContextVar("who the calls of a request are for", default="")
_PREAMBLE = 128  # Tokens that a chat template may put around messages, of a byte or more each.
_EPSILON = 1e-9
_DAYS = 7  # The last days in use: a clock that was ahead may come back to one of them.


class Spending(BackgroundFile):
    """The daily budgets of `allowed`, by the caller's name. As an `AttemptLog` it is asked for each
    call of composing a prompt. The first of `models` is the one behind the policy; a request that
    names no length gets `length` where tokens or money count. Raises ConfigError for a money budget
    over an unknown price, StoreError."""

    def __init__(
        self,
        path: Path,
        allowed: Mapping[str, Budget],
        prices: PriceTable,
        models: Sequence[str],
        length: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if any(budget.usd is not None for budget in allowed.values()):
            prices.require(models)
        self._allowed, self._prices = allowed, prices
        self._model, self._length = models[0], length
        self._now = now
        self._in_flight: dict[int, tuple[str, str, Usage]] = {}
        self._tickets = 0
        self._spent: dict[str, dict[str, Usage]] = {}

        def write(db: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
            db.executemany(
                "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT (caller, day) DO UPDATE SET "
                "calls = calls + excluded.calls, tokens = tokens + excluded.tokens, "
                "usd = usd + excluded.usd",
                rows,
            )

        def read(db: sqlite3.Connection) -> None:
            last = "SELECT DISTINCT day FROM spent ORDER BY day DESC LIMIT ?"
            db.execute(f"DELETE FROM spent WHERE day NOT IN ({last})", (_DAYS,))
            for who, day, *spent, usd in db.execute("SELECT * FROM spent ORDER BY day"):
                self._spent.setdefault(day, {})[who] = Usage(*spent, cost=usd)

        def summed(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            """No row is left out: a restart must give nothing back."""
            spent: dict[tuple[str, str], tuple[Any, ...]] = {}
            for *key, calls, tokens, usd in rows:
                before = spent.get((key[0], key[1]), (0, 0, 0.0))
                spent[key[0], key[1]] = before[0] + calls, before[1] + tokens, before[2] + usd
            return [(*key, *sums) for key, sums in spent.items()]

        super().__init__(path, "what callers spend is", write, fewer=summed)
        self.writer.write_now(read)

    def begin(self, role: Role, most: Usage) -> int:
        """Reserves for who the request is for. Raises Refusal when the budget has no room."""
        caller = _caller.get()
        budget = self._allowed.get(caller)
        if budget is None:
            return 0
        today = self._now()
        day = today.date().isoformat()
        spent = self._spent.get(day, {}).get(caller, Usage())
        ahead = spent + replace(most, cost=most.cost or 0.0)
        for limit, needed, words in (
            (budget.calls, ahead.calls, "{:,} calls"),
            (budget.tokens, ahead.tokens, "{:,} tokens"),
            (budget.usd, (ahead.cost or 0.0) - _EPSILON, "${:g}"),
        ):
            if limit is not None and needed > limit:
                midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
                resets = midnight + timedelta(days=1)
                text = f"this key may spend {words.format(limit)} a day, and this call may exceed "
                text += f"that: the budget resets at {resets:%Y-%m-%d %H:%M} UTC"
                wait = int((resets - today).total_seconds())
                raise Refusal(text, status=429, kind="insufficient_quota", retry_after=wait)
        self._tickets += 1
        self._in_flight[self._tickets] = day, caller, most
        self._add(day, caller, most)
        return self._tickets

    def end(self, ticket: int, role: Role, usage: Usage, lost: bool) -> None:
        if ticket:
            day, caller, most = self._in_flight.pop(ticket)
            self._add(day, caller, usage - most)

    def _add(self, day: str, caller: str, usage: Usage) -> None:
        usage = replace(usage, cost=usage.cost or 0.0)
        spent = self._spent.setdefault(day, {})
        spent[caller] = spent.get(caller, Usage()) + usage
        if len(self._spent) > _DAYS:
            del self._spent[next(iter(self._spent))]  # the one that came into use first
        self.put((caller, day, usage.calls, usage.tokens, usage.cost))

    def paying(self, caller: str) -> None:
        _caller.set(caller)

    def measured(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body with a length, and with the usage at the end of a stream."""
        budget = self._allowed.get(_caller.get())
        if budget is None or (budget.tokens is None and budget.usd is None):
            return body
        more: dict[str, object] = {}
        if all(body.get(name) is None for name in CAPS):
            more["max_tokens"] = self._length
        if body.get("stream"):
            given: object = body.get("stream_options")
            options = cast("dict[str, object]", given) if isinstance(given, dict) else {}
            more["stream_options"] = {**options, "include_usage": True}
        return {**body, **more}

    @contextmanager
    def call(
        self, body: Mapping[str, Any], size: int
    ) -> Generator[Callable[[UpstreamAnswer], None]]:
        """What is yielded reads what the call took; else it took the most. Raises Refusal."""
        times = max(body.get(name) or 1 for name in ("n", "best_of"))
        longest = times * max(body.get(name) or 0 for name in CAPS)
        prompt = size + _PREAMBLE
        cost = self._prices.bound(self._model, prompt, longest)
        taken = Usage(1, prompt, longest, cost=cost)

        def learn(answer: UpstreamAnswer) -> None:
            nonlocal taken
            if answer.status != 200:
                taken = Usage(calls=1)
            elif usage := told_usage(answer.usage):
                cost = self._prices.cost(self._model, usage, cache_written(answer.usage))
                taken = replace(usage, cost=cost)

        ticket = self.begin("executor", taken)
        try:
            yield learn
        except Refusal as refusal:
            if refusal.unpaid:
                taken = Usage()
            raise
        finally:
            self.end(ticket, "executor", taken, lost=False)
