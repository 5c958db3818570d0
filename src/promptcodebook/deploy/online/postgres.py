"""The log of requests in Postgres, for any number of servers: `PCO_FEEDBACK=postgresql://...`. One
thread writes what came in a moment in one transaction. A broken connection is opened again and its
batch written again: a row that is there already is not added twice. Feedback gets its number under
a lock of all servers: a reader who has seen a number misses none that is committed later."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from promptcodebook.base.sqlite import Packer
from promptcodebook.deploy.online import log
from promptcodebook.deploy.online.log import ROOM, Feedback, FeedbackStatus, Room, Served, ServedLog
from promptcodebook.errors import ConfigError, DiskFull, StoreError, StoreTooNew

_pg: Any = import_module("psycopg")
_log = logging.getLogger(__name__)
_MOMENT_S, _BATCH, _WAITING = 0.2, 2048, 50_000
"""The last is how many requests wait for a database that is away; beyond it the oldest are lost."""
_PATIENCE = {"connect_timeout": 5, "keepalives_idle": 15, "tcp_user_timeout": 15_000}
_SCHEMA, _DISK_FULL = "promptcodebook", "53100"
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
    """Its tables are made where they are missing. ConfigError, and
    StoreTooNew for tables of a later version."""

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
        options = f"{parts.pop('options', '')} -c search_path={_SCHEMA}"
        self._opening = {**_PATIENCE, **parts, "options": options}
        with self._connected() as db:
            self._migrate(db, migrations)
        self.fails, self._db, self._packer = False, None, Packer()
        self._waiting = deque[Served](maxlen=_WAITING)
        self._queue: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer postgres", daemon=True)
        self._thread.start()

    @contextmanager
    def _connected(self) -> Generator[Any]:
        """A connection for one transaction. StoreError."""
        try:
            with _pg.connect(**self._opening) as db:
                yield db
        except _pg.Error as error:
            raise self._fault(error) from None

    def _fault(self, error: Any) -> StoreError:
        # Of an error in a row the text may quote what a caller said.
        said = str(error).split("\n")[0] if self._passes(error) else type(error).__name__
        kind = DiskFull if getattr(error, "sqlstate", "") == _DISK_FULL else StoreError
        return kind(f"{self._where} cannot be used: {said}", hint="is it up? psql $PCO_FEEDBACK")

    def _passes(self, error: Exception) -> bool:
        return isinstance(error, _pg.OperationalError | _pg.InterfaceError)

    def _migrate(self, db: Any, migrations: Sequence[Sequence[str]]) -> None:
        db.execute(_LOCK)
        if db.execute(f"SELECT to_regclass('{_SCHEMA}.layout')").fetchone()[0] is None:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
            db.execute("CREATE TABLE layout AS SELECT 0 AS version")
        [version] = db.execute("SELECT version FROM layout").fetchone()
        if version > (own := len(migrations)):
            said = f"{self._where} has tables of format {version}; this version knows up to {own}"
            raise StoreTooNew(said, hint="pip install -U promptcodebook")
        for statement in (each for step in migrations[version:] for each in step):
            db.execute(statement)
        if version < own:
            db.execute("UPDATE layout SET version = %s", (own,))

    def put(self, item: Served) -> None:
        self._waiting.append(item)

    async def give(
        self, feedback: Feedback, caller: str | None, room: Room = ROOM
    ) -> FeedbackStatus:
        async def once() -> FeedbackStatus:
            if not self._thread.is_alive():
                raise StoreError(f"{self._where} is closed")
            became = Future[FeedbackStatus]()
            self._queue.put((feedback, caller, room, became))
            return await asyncio.wrap_future(became)

        return await log.patiently(once)

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
            served = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if served or given:
                self._commit(served, given)
        if self._db is not None:
            self._db.close()

    def _commit(self, served: Sequence[Served], given: Sequence[_Unit], again: bool = True) -> None:
        """A fault is pinned to its row by going singly. Requests wait for a database that is
        away; feedback is refused."""
        try:
            became = self._write(served, given)
        except Exception as error:
            if (passing := self._passes(error)) and again:
                return self._commit(served, given, False)
            if not passing and len(served) + len(given) > 1:
                singly = [*(((s,), ()) for s in served), *(((), (unit,)) for unit in given)]
                return [self._commit(*each) for each in singly][-1]
            fault = self._fault(error)
            if served and not self.fails:
                _log.error("requests are not recorded: %s", fault)
            self.fails = self.fails or bool(served)
            self._waiting.extendleft(reversed(served) if passing else ())
            for *_, future in given:
                future.set_exception(fault)
        else:
            self.fails = self.fails and not served
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
                    added = log.said(feedback)
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
        self._thread.join()
