"""Replies and books of work, each in a file: of a run, a batch, a shard of one, measured effects,
and of what would be lost with its process (an evaluation). And attempts in flight,
in a file of slots that kill -9 leaves as they are. A slot is written before its request leaves, and
is free again once the result of the attempt is committed. The commit notes slot and number as well
(`settled`), so that a kill between the commit and the freeing books nothing twice. When the run is
opened again, what a kill left is booked as lost, at its highest possible cost."""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from promptcodebook.base.incidents import Incident
from promptcodebook.base.paths import make_private_folder, unfinished_folder
from promptcodebook.base.sqlite import Layout, Packer, Reader, Write, Writer, on_disk
from promptcodebook.base.text import shell
from promptcodebook.calls import ROLES, Reply, Request, Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.cache import ReplyLog, pack_reply, unpack_reply
from promptcodebook.lm.stack import StackResources
from promptcodebook.store.lock import ATTEMPTS, NO_LINK, RunLock

_log = logging.getLogger(__name__)

_SUMS = "calls", "prompt_tokens", "completion_tokens", "cached_prompt_tokens", "cost", "latency_s"
# Of the second, runs of earlier versions lack some.
FIRST_BOOKS, LATER_BOOKS = (Path(__file__).with_name(f"{n}_books.sql") for n in ("first", "later"))
# Tables of replies, of what they cost, of counts and of sessions.
BOOKS = FIRST_BOOKS, LATER_BOOKS
_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
_ADD_USAGE = f"VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (role) DO UPDATE SET {_ADDED}"
_ADD_COUNT = (
    "INSERT INTO tally VALUES (?, ?)"
    " ON CONFLICT (name) DO UPDATE SET count = count + excluded.count"
)
_SETTLE = "INSERT OR REPLACE INTO settled VALUES (?, ?)"


def add_usage(db: sqlite3.Connection, role: Role, usage: Usage, *, lost: bool = False) -> None:
    """Adds to the role's sum of what was paid, or of what was lost to failures."""
    values = (role, *(getattr(usage, name) for name in _SUMS))
    db.execute(f"INSERT INTO {'lost' if lost else 'usage'} {_ADD_USAGE}", values)


def add_count(db: sqlite3.Connection, name: str, count: int) -> None:
    db.execute(_ADD_COUNT, (name, count))


def read_book(reader: Reader, table: str) -> dict[Role, Usage]:
    """By role, what `usage` (paid) or `lost` sums up."""
    rows = reader.rows(f"SELECT role, {', '.join(_SUMS)} FROM {table} ORDER BY rowid")
    for each in (each for _, *sums in rows for each in sums if each is not None):
        if not (isinstance(each, int | float) and math.isfinite(each)):
            message = f"a sum in the table {table} is not a number"
            raise StoreError(message, hint="restore the file from a backup")
    return {cast(Role, role): Usage(*sums) for role, *sums in rows}


class RunReplies:
    """A `ReplyLog`. A reply's cost is booked with its attempt and handed to the writer first: no
    reply on disk is unpaid. A damaged reply counts as missing: it is asked for again."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer
        self._packer = Packer()  # used by the writer thread alone
        self._damaged: set[bytes] = set()

    def get(self, key: bytes) -> Reply | None:
        try:
            row = self._reader.row("SELECT reply FROM journal WHERE key = ?", (key,))
            return None if row is None else unpack_reply(row[0])
        except StoreError as error:
            _log.warning("a damaged reply in the run's journal is requested again: %s", error)
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


_SLOTS = 1024
# role, prompt tokens, completion tokens, cost (NaN = unknown price); the number is written last.
_BODY = struct.Struct("<QQQd")
_NUMBER = struct.Struct("<Q")
_SIZE = _NUMBER.size + _BODY.size
_MOST = 2**53  # no number that an attempt has is larger


class AttemptFile:
    """An `AttemptLog` beside a run's file. Books at once what an earlier process left in flight;
    `recovered` says what that was. Raises DiskFull or StoreError."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self._path, self._writer = folder / ATTEMPTS, writer
        self._door = threading.Lock()
        self._map = self._open(_SLOTS)
        self._number = 0
        self.recovered = self._recover()
        self._free = list(reversed(range(self._count)))

    def begin(self, role: Role, most: Usage) -> int:
        """Returns its slot once it would survive kill -9. Raises DiskFull when no reply could be
        kept."""
        self._writer.require_room()
        cost = math.nan if most.cost is None else most.cost
        with self._door:
            if self._map.closed:
                raise StoreError(f"the run {self._path.parent.name} is closed")
            if not self._free:
                count = self._count
                grown = self._open(2 * count)
                self._map.close()
                self._map = grown
                self._free.extend(reversed(range(count, 2 * count)))
            slot = self._free.pop()
            self._number += 1
            at = slot * _SIZE
            tokens = most.prompt_tokens, most.completion_tokens
            _BODY.pack_into(self._map, at + _NUMBER.size, ROLES.index(role), *tokens, cost)
            _NUMBER.pack_into(self._map, at, self._number)
        return slot

    def end(self, ticket: int, role: Role, usage: Usage, lost: bool) -> None:
        """Hands over what the attempt came to; its slot is free when that is committed."""
        with self._door:
            (number,) = _NUMBER.unpack_from(self._map, ticket * _SIZE)

        def work(db: sqlite3.Connection) -> None:
            db.execute(_SETTLE, (ticket, number))
            if usage.calls:
                add_usage(db, role, usage, lost=lost)

        def release() -> None:
            with self._door:
                _NUMBER.pack_into(self._map, ticket * _SIZE, 0)
                self._free.append(ticket)

        self._writer.send(work, then=release)

    def close(self) -> None:
        """Call it after the writer is closed. The file goes with its last attempt. Safe twice."""
        with self._door:
            if self._map.closed:
                return
            empty = len(self._free) == self._count
            self._map.close()
        if empty:
            self._path.unlink(missing_ok=True)

    @property
    def _count(self) -> int:
        return len(self._map) // _SIZE

    def _recover(self) -> Usage:
        left = list(self._left_behind())
        booked = Usage()

        def work(db: sqlite3.Connection) -> None:
            nonlocal booked
            booked, latest = Usage(), 0
            settled = dict(db.execute("SELECT slot, number FROM settled"))
            for slot, number, role, most in left:
                latest = max(latest, number)
                if settled.get(slot) != number:
                    add_usage(db, role, most, lost=True)
                    db.execute(_SETTLE, (slot, number))
                    booked += most
            self._number = max(latest, *settled.values()) if settled else latest

        self._writer.write_now(work)
        for slot, *_ in left:
            _NUMBER.pack_into(self._map, slot * _SIZE, 0)
        return booked

    def _left_behind(self) -> Iterator[tuple[int, int, Role, Usage]]:
        for slot in range(self._count):
            (number,) = _NUMBER.unpack_from(self._map, slot * _SIZE)
            if not number:
                continue
            body = _BODY.unpack_from(self._map, slot * _SIZE + _NUMBER.size)
            role, prompt, completion, cost = body
            large = role >= len(ROLES) or max(number, prompt, completion) > _MOST
            if large or cost < 0 or math.isinf(cost):
                message = f"the calls in flight in slot {slot} of {self._path} cannot be read"
                hint = f"rm {shell(self._path)}; the cost of those calls is then not counted"
                raise StoreError(message, hint=hint)
            most = Usage(1, prompt, completion, 0, None if math.isnan(cost) else cost)
            yield slot, number, ROLES[role], most

    def _open(self, slots: int) -> mmap.mmap:
        """Of at least that many slots, written out: a page without room would end the process."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | NO_LINK
        with on_disk(self._path), open(os.open(self._path, flags, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END) // _SIZE * _SIZE
            file.seek(size)
            file.write(bytes(max(0, slots * _SIZE - size)))
            file.flush()
            return mmap.mmap(file.fileno(), max(size, slots * _SIZE))


class Journal:
    """A file whose layout holds `BOOKS`, open for writing, and the attempts in flight beside it, in
    a folder of its own; made with `first` in it. It takes over the folder's `lock`. `again` is what
    to type after a full disk. Raises DiskFull or StoreError."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        again: str,
        *,
        lock: RunLock | None = None,
        first: Write = lambda db: None,
    ) -> None:
        self._folder, self._lock = path.parent, lock
        self._began, self._before_s = time.monotonic(), 0.0
        self._session: int | None = None

        def begin(db: sqlite3.Connection) -> None:
            first(db)
            self._before_s = float(db.execute("SELECT TOTAL(seconds) FROM sessions").fetchone()[0])
            started = datetime.now(UTC).isoformat(timespec="seconds")
            new = db.execute("INSERT INTO sessions (started, seconds) VALUES (?, 0)", (started,))
            self._session = new.lastrowid

        with ExitStack() as undo:
            if lock is not None:
                undo.callback(lock.release)
            hint = f"free space on the disk of {path.parent}, then: {again}"
            self.writer = Writer(path, layout, full_hint=hint, each_batch=self._beat, reserve=True)
            undo.callback(self.writer.close)
            self.writer.write_now(begin)
            self.attempts = AttemptFile(path.parent, self.writer)
            undo.callback(self.attempts.close)
            self.reader = Reader(path, layout)
            undo.callback(self.reader.close)
            self.ledger = Ledger(self.paid(), self.lost(), self.attempts)
            undo.pop_all()

    def _beat(self, db: sqlite3.Connection) -> None:
        """Brings the session's row up to date in every transaction, for a kill may follow."""
        seconds = time.monotonic() - self._began
        db.execute("UPDATE sessions SET seconds = ? WHERE id = ?", (seconds, self._session))

    @property
    def elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._began

    def replies(self) -> RunReplies:
        """Every reply, on disk before its chain continues."""
        return RunReplies(self.reader, self.writer)

    def supplies(self) -> StackResources:
        """What a stack needs to journal here and to know what was spent."""
        return StackResources(
            log=self.replies(), ledger=self.ledger, elapsed=lambda: self.elapsed_s
        )

    def paid(self) -> dict[Role, Usage]:
        """What all sessions paid, by role."""
        self.writer.flush()
        return read_book(self.reader, "usage")

    def lost(self) -> dict[Role, Usage]:
        """The most that attempts lost to failures can have cost, by role."""
        self.writer.flush()
        return read_book(self.reader, "lost")

    def close(self, *, remove: bool = False) -> None:
        """Commits what waits, lets go of the lock; `remove` first takes the folder. Safe twice."""
        self.reader.close()
        try:
            self.writer.close()
        finally:
            self.attempts.close()
            if remove:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                self._lock.release()


_UNFINISHED = Layout(what="journal of unfinished work", version=1, script=BOOKS)


@contextmanager
def until_done(*question: object) -> Generator[StackResources]:
    """Supplies of one budget for work that is no run. What it pays for is in a journal before its
    chain continues, so that it is found after a kill. The journal goes when the block ends well."""
    asked = repr((str(Path.cwd()), question)).encode("utf-8", "surrogatepass")
    folder = unfinished_folder() / hashlib.sha256(asked).hexdigest()[:32]
    opened: list[Journal] = []

    def fallback_log() -> ReplyLog | None:
        try:
            if not opened:
                folder.parent.mkdir(parents=True, exist_ok=True)
                make_private_folder(folder.parent)
                make_private_folder(folder)
                lock = RunLock(folder, "this command is already being run")
                opened.append(
                    Journal(folder / "journal.sqlite", _UNFINISHED, "rerun the command", lock=lock)
                )
            return opened[0].replies()
        except OSError as error:  # StoreErrors among them
            _log.warning("paid replies would be lost if this process were killed: %s", error)
            return None

    done = False
    try:
        yield replace(StackResources.of_one_budget(), fallback_log=fallback_log)
        done = True
    finally:
        for journal in opened:
            unpaid = journal.reader.row("SELECT 1 FROM journal") is None
            journal.close(remove=done or unpaid)
