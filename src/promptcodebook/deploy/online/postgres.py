"""The log of requests in Postgres, for any number of servers: `PCO_FEEDBACK=postgresql://...`. One
thread writes what came in a moment in one transaction. A broken connection is opened again and its
batch written again: a row that is there already is not added twice. Feedback gets its number under
a lock of all servers: a reader who has seen a number misses none that is committed later."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from promptcodebook.base.sqlite import Packer
from promptcodebook.deploy.online import log
from promptcodebook.deploy.online.log import Feedback, FeedbackStatus, Room, Served, ServedLog
from promptcodebook.errors import ConfigError, DiskFull, StoreError, StoreTooNew

_pg: Any = import_module("psycopg")
_log = logging.getLogger(__name__)
_MOMENT_S, _BATCH = 0.2, 2048
_LOCK_S, _CLOSE_S = 3, 15.0
"""How long a write waits for another session's lock, and `close` for a database."""
_PATIENCE = {"connect_timeout": 5, "keepalives_idle": 15, "tcp_user_timeout": 15_000}
_SCHEMA, _DISK_FULL = "promptcodebook", "53100"
_OF_A_ROW = ("22", "23", "54", "P0")
"""Classes of errors that a row's own content or size causes: they do not pass with time."""
_LOCK = f"SELECT pg_advisory_xact_lock(hashtext('{_SCHEMA}'))"
MIGRATIONS = (
    tuple(each.format(bytes="BYTEA", number="BIGSERIAL PRIMARY KEY") for each in log.TABLES),
)
"""What makes the tables of one version those of the next, each whole or not at all."""
_Unit = tuple[Feedback, str | None, Room, Future[FeedbackStatus]]
"""Feedback, its caller, the room for it, and what becomes of it."""


_OWNERS = "SELECT id, caller, erased FROM served WHERE id = ANY(%s)"
_KNOWN = "SELECT id, key, reward, said FROM feedback WHERE id = ANY(%s)"


def _sql(statement: str) -> str:
    return statement.replace("?", "%s")


class PostgresLog(ServedLog):
    """Its tables are made where they are missing. Raises ConfigError, and StoreTooNew for tables of
    a later version."""

    def __init__(self, url: str, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        try:
            parts = _pg.conninfo.conninfo_to_dict(url)
        except _pg.Error:
            parts = {"host": "@"}
        host, port, name = (str(parts.get(each, "")) for each in ("host", "port", "dbname"))
        # A password with one of these signs in it is read as a host, and errors name the host.
        if "@" in host + port + name or not (port or "0").replace(",", "").isdecimal():
            message = "PCO_FEEDBACK is no address of a Postgres database"
            hint = "write postgresql://USER:PASSWORD@HOST/DATABASE; signs in a password as %40, %2F"
            raise ConfigError(message, hint=hint)
        self._where = f"the Postgres database {name or 'of this user'} at {host or 'localhost'}"
        # The server's default waits for ever; an address may say another time.
        patience = f"-c lock_timeout={_LOCK_S}s"
        options = f"{patience} {parts.pop('options', '')} -c search_path={_SCHEMA}"
        self._opening = {**_PATIENCE, **parts, "options": options}
        with self._connected() as db:
            self._migrate(db, migrations)
        self._db, self._packer = None, Packer()
        self._waiting, self._lock = deque[Served](), threading.Lock()
        self._queue: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer postgres", daemon=True)
        self._thread.start()

    @contextmanager
    def _connected(self) -> Generator[Any]:
        """A connection for one transaction. Raises StoreError."""
        try:
            with _pg.connect(**self._opening) as db:
                yield db
        except _pg.Error as error:
            raise self._fault(error) from None

    def _fault(self, error: Any) -> StoreError:
        # Of an error in a row the text may quote what a caller said.
        cause = str(error).split("\n")[0] if self._passes(error) else type(error).__name__
        kind = DiskFull if getattr(error, "sqlstate", "") == _DISK_FULL else StoreError
        return kind(f"{self._where} cannot be used: {cause}", hint="is it up? psql $PCO_FEEDBACK")

    def _passes(self, error: Any) -> bool:
        """Whether the same write may succeed later: it is no row's fault."""
        if state := getattr(error, "sqlstate", None):
            return not state.startswith(_OF_A_ROW)
        return isinstance(error, _pg.OperationalError | _pg.InterfaceError)

    def _migrate(self, db: Any, migrations: Sequence[Sequence[str]]) -> None:
        db.execute("SET LOCAL lock_timeout = 0")  # another server's migration may take its time
        db.execute(_LOCK)
        if db.execute(f"SELECT to_regclass('{_SCHEMA}.layout')").fetchone()[0] is None:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
            db.execute("CREATE TABLE layout AS SELECT 0 AS version")
        [version] = db.execute("SELECT version FROM layout").fetchone()
        if version > (own := len(migrations)):
            text = f"{self._where} has tables of format {version}; this version knows up to {own}"
            raise StoreTooNew(text, hint="pip install -U promptcodebook")
        for statement in (each for step in migrations[version:] for each in step):
            db.execute(statement)
        if version < own:
            db.execute("UPDATE layout SET version = %s", (own,))

    def put(self, item: Served) -> None:
        with self._lock:
            self._waiting.append(item)
            self._drop()

    def _drop(self) -> None:
        """Drops and counts the oldest of too many."""
        while len(self._waiting) > log.WAITING:
            self._waiting.popleft()
            self.lost += 1

    async def _give(self, feedback: Feedback, caller: str | None, room: Room) -> FeedbackStatus:
        if not self._thread.is_alive():
            raise StoreError(f"{self._where} is closed")
        became = Future[FeedbackStatus]()
        with suppress(TimeoutError):
            if not self._stalls:
                self._queue.put((feedback, caller, room, became))
                return await asyncio.wait_for(asyncio.wrap_future(became), 2 * log.SLOW_S)
        hint = "send it again later: what is there already is not added twice"
        raise StoreError(f"{self._where} does not answer", hint=hint)

    def _run(self) -> None:
        over = False
        while not over or (self._waiting and not self.fails):
            units: list[_Unit | None] = []
            with suppress(queue.Empty):
                units.append(self._queue.get(timeout=_MOMENT_S))
                while len(units) < _BATCH:
                    units.append(self._queue.get_nowait())
            over = over or None in units
            given = [unit for unit in units if unit and unit[-1].set_running_or_notify_cancel()]
            with self._lock:
                served = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if served or given:
                self._began = time.monotonic()
                self._commit(served, given)
                self._began = math.inf
        if self._waiting:
            _log.error("%d requests are not recorded", len(self._waiting))
        if self._db is not None:
            self._db.close()

    def _commit(self, served: Sequence[Served], given: Sequence[_Unit], again: bool = True) -> None:
        """A fault is pinned to its row by going singly. Requests wait for a database that is
        away; feedback is refused."""
        try:
            became = self._write(served, given)
        except Exception as error:
            fault, passing = self._fault(error), self._passes(error)
            if again and self._db is not None and self._db.closed:
                return self._commit(served, given, False)
            if not passing and len(served) + len(given) > 1:
                for each in served:
                    self._commit([each], ())
                for unit in given:
                    self._commit((), [unit])
                return None
            if served and not (passing and self._failed):
                _log.error("requests are not recorded: %s", fault)
            if passing:
                self._failed = self._failed or bool(served)
                with self._lock:
                    self._waiting.extendleft(reversed(served))
                    self._drop()
            else:
                self.lost += len(served)
            for *_, future in given:
                future.set_exception(fault)
        else:
            self._failed = self._failed and not served
            for (*_, future), so in zip(given, became, strict=True):
                future.set_result(so)

    def _write(self, served: Sequence[Served], given: Sequence[_Unit]) -> list[FeedbackStatus]:
        if self._db is None or self._db.closed:
            self._db = _pg.connect(**self._opening, autocommit=True)
        with self._db.transaction(), self._db.cursor() as cursor:
            if given:  # first: a migration takes it before the tables
                cursor.execute(_LOCK)
            cursor.executemany(_sql(log.INSERT), [log.row_of(s, self._packer) for s in served])
            if not given:
                return []
            ids = ([unit[0].request_id for unit in given],)
            rows = {row[0]: row[1:] for row in cursor.execute(_OWNERS, ids)}
            known = {each: list[list[Any]]() for each in ids[0]}
            for each, *content in cursor.execute(_KNOWN, ids):
                known[each].append(content)
            became = list[FeedbackStatus]()
            for feedback, caller, room, _ in given:
                there, row = known[feedback.request_id], rows.get(feedback.request_id)
                became.append(log.judged(row, there, feedback, caller, room))
                if became[-1] == "kept":
                    added = log.feedback_row(feedback)
                    there.append([added[1], *added[3:]])
                    cursor.execute(_sql(log.ADD), added)
        return became

    def _rows(self, sql: str, given: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._connected() as db:
            return db.execute(_sql(sql), given).fetchall()

    def erase(self, ids: Sequence[str]) -> int:
        with self._connected() as db:
            db.execute(_LOCK)
            return sum(log.erase(lambda sql, given: db.execute(_sql(sql), given), i) for i in ids)

    def _forget(self, ids: Sequence[str]) -> None:
        with self._connected() as db:
            db.execute(_LOCK)
            for sql in log.FORGET:
                db.cursor().executemany(_sql(sql), [(each,) for each in ids])

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.error("%s does not answer: the last requests are not recorded", self._where)
