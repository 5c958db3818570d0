"""The tables of a run's file, the statements more than one writer of it needs, and events as rows.

An event has a light part, which every reader sees, and a bulky one (a step's traces, an
evaluation's full rollouts), which is fetched when asked for: reading a long run takes memory for
one step at a time. The names of the kinds on disk never change, so that old runs open.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from promptcodebook.calls import Reply, Request, Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.incidents import Incident
from promptcodebook.lm.cache import pack_reply, unpack_reply
from promptcodebook.sqlite import Layout, Packer, Reader, Writer, pack, unpack
from promptcodebook.store.events import (
    Amended,
    Broke,
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    Started,
    Stepped,
    Trained,
    Validated,
)
from promptcodebook.types import Failure, Rollout, Trace

_log = logging.getLogger(__name__)

_BOOK = (
    "role TEXT PRIMARY KEY, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,"
    " completion_tokens INTEGER NOT NULL, cached_prompt_tokens INTEGER NOT NULL, cost REAL,"
    " latency_s REAL NOT NULL"
)
_FIRST_BOOKS = (
    "CREATE TABLE journal (id INTEGER PRIMARY KEY, key BLOB NOT NULL, role TEXT NOT NULL,"
    " reply BLOB NOT NULL)",
    "CREATE UNIQUE INDEX journal_by_key ON journal (key)",
    # cost NULL = a price was unknown; NULL + x stays NULL, as Usage.__add__ has it.
    f"CREATE TABLE usage ({_BOOK})",
    "CREATE TABLE tally (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL, seconds REAL NOT NULL)",
)
_LATER = (
    # As `usage`, of attempts without a reply: the most they can have cost.
    f"CREATE TABLE IF NOT EXISTS lost ({_BOOK})",
    # The last attempt of each slot that is booked (store/journal.py).
    "CREATE TABLE IF NOT EXISTS settled (slot INTEGER PRIMARY KEY, number INTEGER NOT NULL)",
)
BOOKS = (*_FIRST_BOOKS, *_LATER)
"""Tables of replies, of what they cost, of counts and of sessions."""

LAYOUT = Layout(
    what="run store",
    version=2,  # events of 2 name an instinct by its index, of 1 by 'c<index>'
    since=1,
    script=(
        "CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL)",
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, step INTEGER,"
        " light BLOB NOT NULL)",
        "CREATE INDEX events_by_kind ON events (kind, step)",
        "CREATE UNIQUE INDEX one_event_a_step ON events (step) WHERE kind = 'stepped'",
        # Apart from `events`, so that the fold reads no page of it.
        "CREATE TABLE bulk (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)",
        *_FIRST_BOOKS,
    ),
    later=_LATER,
)

_ADD_USAGE = """
INSERT INTO {book} VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (role) DO UPDATE SET
  calls = calls + excluded.calls,
  prompt_tokens = prompt_tokens + excluded.prompt_tokens,
  completion_tokens = completion_tokens + excluded.completion_tokens,
  cached_prompt_tokens = cached_prompt_tokens + excluded.cached_prompt_tokens,
  cost = cost + excluded.cost,
  latency_s = latency_s + excluded.latency_s
"""
_ADD_PAID, _ADD_LOST = (_ADD_USAGE.format(book=book) for book in ("usage", "lost"))
_ADD_COUNT = """
INSERT INTO tally VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET count = count + excluded.count
"""


def add_usage(db: sqlite3.Connection, role: Role, usage: Usage, *, lost: bool = False) -> None:
    """Adds to the role's sum of what was paid, or of what was lost to failures."""
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens
    values = (role, usage.calls, *tokens, usage.cost, usage.latency_s)
    db.execute(_ADD_LOST if lost else _ADD_PAID, values)


def read_book(reader: Reader, table: str) -> dict[Role, Usage]:
    """By role, what `usage` (paid) or `lost` sums up."""
    rows = reader.rows(
        "SELECT role, calls, prompt_tokens, completion_tokens, cached_prompt_tokens, cost,"
        f" latency_s FROM {table} ORDER BY rowid"
    )
    for each in (each for _, *sums in rows for each in sums if each is not None):
        if not (isinstance(each, int | float) and math.isfinite(each)):
            raise StoreError(
                f"a sum in the table {table} is no number", hint="put a copy in the file's place"
            )
    return {cast(Role, role): Usage(*sums) for role, *sums in rows}


def add_count(db: sqlite3.Connection, name: str, count: int) -> None:
    """Adds to the count of an incident."""
    db.execute(_ADD_COUNT, (name, count))


def find_reply(reader: Reader, key: bytes) -> Reply | None:
    """The reply in a journal with the usage it had when it was paid, or None. StoreError: its bytes
    are damaged."""
    row = reader.row("SELECT reply FROM journal WHERE key = ?", (key,))
    return None if row is None else unpack_reply(row[0])


class SessionClock:
    """One row per session, brought up to date in every transaction: kill -9 loses no more than
    the time since the last commit. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._row: int | None = None
        self._before_s = 0.0

    def begin(self, db: sqlite3.Connection) -> None:
        """Work for the session's first transaction."""
        self._before_s = float(db.execute("SELECT TOTAL(seconds) FROM sessions").fetchone()[0])
        started = datetime.now(UTC).isoformat(timespec="seconds")
        new = db.execute("INSERT INTO sessions (started, seconds) VALUES (?, 0)", (started,))
        self._row = new.lastrowid

    def beat(self, db: sqlite3.Connection) -> None:
        """Work for every transaction."""
        seconds = self._clock() - self._began
        db.execute("UPDATE sessions SET seconds = ? WHERE id = ?", (seconds, self._row))

    @property
    def elapsed_s(self) -> float:
        """Seconds of all sessions, this one up to now."""
        return self._before_s + self._clock() - self._began


class RunReplies:
    """A `ReplyLog`. What a reply cost is booked with its attempt (store/journal.py), and handed to
    the writer before the reply is: no reply is on disk that is not paid for.

    A reply whose bytes are damaged is as one that never came: it is asked for again, and replaced.
    """

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._packer = Packer()  # used by the writer thread alone
        self._damaged: set[bytes] = set()

    def get(self, key: bytes) -> Reply | None:
        """The reply with the usage it had when it was paid, or None."""
        try:
            return find_reply(self._reader, key)
        except StoreError as error:
            _log.warning("a reply in the run's journal is asked for again: %s", error)
            self._damaged.add(key)
            return None

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        """Returns once the reply is committed. A key that is there already keeps its reply."""
        damaged = key in self._damaged

        def work(db: sqlite3.Connection) -> None:
            if damaged:
                db.execute("DELETE FROM journal WHERE key = ?", (key,))
                add_count(db, Incident.JOURNAL_DAMAGED, 1)
            db.execute(
                "INSERT OR IGNORE INTO journal (key, role, reply) VALUES (?, ?, ?)",
                (key, request.role, pack_reply(reply, self._packer)),
            )

        await self._writer.write(work)
        self._damaged.discard(key)


_KINDS: Mapping[str, type] = {
    "started": Started,
    "stepped": Stepped,
    "broke": Broke,
    "validated": Validated,
    "trained": Trained,
    "judged": Compared,
    "concluded": Concluded,
    "ended": Ended,
    "resumed": Resumed,
    "amended": Amended,
}


@dataclass(frozen=True, slots=True)
class PackedEvent:
    """An event as its row: `step` is None where the event belongs to none, `bulk` where empty."""

    kind: str
    step: int | None
    light: bytes
    bulk: bytes | None = None


def pack_event(event: Event) -> PackedEvent:
    """The row of an event."""
    kind = next(k for k, c in _KINDS.items() if isinstance(event, c))
    step: int | None = None
    bulk: bytes | None = None
    light: Event = event
    if isinstance(event, Stepped):
        step = event.step.index
        light = Stepped(replace(event.step, traces=()))
        bulk = pack(_traces_adapter().dump_python(event.step.traces))
    elif isinstance(event, Broke):
        step = event.step
        light = replace(event, traces=())
        bulk = pack(_traces_adapter().dump_python(event.traces))
    elif isinstance(event, Validated | Compared):
        step = event.step if isinstance(event, Validated) else None
        slim = tuple(map(_slim_rollout, event.evaluation.rollouts))
        light = replace(event, evaluation=replace(event.evaluation, rollouts=slim))
        bulk = pack(_rollouts_adapter().dump_python(event.evaluation.rollouts))
    elif isinstance(event, Resumed):
        step = event.step
    return PackedEvent(kind, step, pack(_adapter(kind).dump_python(light)), bulk)


def unpack_event(row: PackedEvent, *, texts: bool = True) -> Event:
    """The event of a row: without traces and with slim rollouts where `bulk` was not fetched.

    Without `texts` the traces of a step keep their figures, and their texts, most of a long run,
    are not read. Raises StoreError for a damaged row or an unknown kind.
    """
    if row.kind not in _KINDS:
        raise StoreError(
            f"the run holds an event of unknown kind {row.kind!r}",
            hint="pip install -U promptcodebook (a newer version may have written it)",
        )
    event: Event = _read(
        lambda: _adapter(row.kind).validate_python(_update(row.kind, unpack(row.light)))
    )
    if row.bulk is None:
        return event
    if isinstance(event, Stepped):
        return Stepped(replace(event.step, traces=unpack_traces(row.bulk, texts=texts)))
    if isinstance(event, Broke):
        return replace(event, traces=unpack_traces(row.bulk, texts=texts))
    if isinstance(event, Validated | Compared) and texts:
        bulk = row.bulk
        rollouts = _read(lambda: _rollouts_adapter().validate_python(unpack(bulk)))
        return replace(event, evaluation=replace(event.evaluation, rollouts=rollouts))
    return event


def unpack_traces(bulk: bytes, *, texts: bool = True) -> tuple[Trace, ...]:
    """The traces of a step's bulky part, with their texts or only with their figures."""
    tree = unpack(bulk)

    def build() -> tuple[Trace, ...]:
        for trace in () if texts else tree:
            _drop_texts(trace)
        return _traces_adapter().validate_python(tree)

    return _read(build)


def _drop_texts(trace: dict[str, Any]) -> None:
    """Takes out of a stored trace what people and models wrote, but not why it failed."""
    rollout: dict[str, Any] = trace["rollout"]
    route: dict[str, Any] = rollout.get("route") or {}
    gradients: dict[str, Any] = trace.get("gradients") or {}
    for name in ("prompt", "output", "feedback", "fields", "stages"):
        rollout.pop(name, None)
    for name in ("constraints", "analysis"):
        route.pop(name, None)
    if trace.get("verdict"):
        trace["verdict"] = {"score": trace["verdict"]["score"], "feedback": ""}
    trace["gradients"] = {"severity": gradients.get("severity", {})}


def _update(kind: str, tree: Any) -> Any:
    """A light event of version 0.1 as it would be written today: there c_k was named 'c<k>', and a
    rewrite that was taken back was not `kept`."""
    if kind == "stepped":
        step = tree["step"]
        for rewrite in step["rewrites"]:
            name = rewrite["variable"]
            if isinstance(name, str) and name[1:].isdecimal():
                rewrite["variable"] = int(name[1:])
        if isinstance(step.get("reverted"), bool):
            step["reverted"] = []
    return tree


def _read(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"at {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # before it is validated
        what = f"in its shape ({type(error).__name__})"
    raise StoreError(
        f"a stored event is damaged {what}",
        hint="put a copy of the run's folder in its place, or start a new run",
    )


def _slim_rollout(rollout: Rollout) -> Rollout:
    route = rollout.route and replace(rollout.route, constraints=(), analysis="")
    failure = rollout.failure and Failure(rollout.failure.stage, rollout.failure.kind, "")
    return Rollout(
        example_id=rollout.example_id,
        route=route,
        reward=rollout.reward,
        truncated=rollout.truncated,
        failure=failure,
        usage=rollout.usage,
        prompt_length=rollout.prompt_length,
    )


# Building an adapter takes milliseconds, so each is built once, when first needed.
@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


@cache
def _traces_adapter() -> TypeAdapter[tuple[Trace, ...]]:
    return TypeAdapter(tuple[Trace, ...])


@cache
def _rollouts_adapter() -> TypeAdapter[tuple[Rollout, ...]]:
    return TypeAdapter(tuple[Rollout, ...])
