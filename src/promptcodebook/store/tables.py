"""The tables of a run's file, and the statements more than one writer of it needs."""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from promptcodebook.calls import Reply, Request, Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.incidents import Incident
from promptcodebook.lm.cache import pack_reply, unpack_reply
from promptcodebook.sqlite import Layout, Packer, Reader, Writer

_log = logging.getLogger(__name__)

_FIRST_BOOKS = (
    "CREATE TABLE journal (id INTEGER PRIMARY KEY, key BLOB NOT NULL, role TEXT NOT NULL,"
    " reply BLOB NOT NULL)",
    "CREATE UNIQUE INDEX journal_by_key ON journal (key)",
    # cost NULL = a price was unknown; NULL + x stays NULL, as Usage.__add__ has it.
    "CREATE TABLE usage (role TEXT PRIMARY KEY, calls INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
    " cached_prompt_tokens INTEGER NOT NULL, cost REAL, latency_s REAL NOT NULL)",
    "CREATE TABLE tally (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL, seconds REAL NOT NULL)",
)
_LATER = (
    # As `usage`, of attempts that brought nothing back, at the most they can have cost.
    "CREATE TABLE IF NOT EXISTS lost (role TEXT PRIMARY KEY, calls INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
    " cached_prompt_tokens INTEGER NOT NULL, cost REAL, latency_s REAL NOT NULL)",
    # The last attempt of each slot that is booked (store/attempts.py).
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
    u = usage
    db.execute(
        _ADD_LOST if lost else _ADD_PAID,
        (
            role,
            u.calls,
            u.prompt_tokens,
            u.completion_tokens,
            u.cached_prompt_tokens,
            u.cost,
            u.latency_s,
        ),
    )


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
    """A `ReplyLog`. What a reply cost is booked with its attempt (store/attempts.py), and handed to
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
