"""Replies and books of work that is no run: a batch, a shard of one, measured effects, and what
would be lost with its process (an evaluation without a cache). And attempts in flight, in a file of
slots that kill -9 leaves as they are.

A slot is written before its request leaves: the page belongs to the system from then on. It is free
again once the result of the attempt is committed to the run's file. The commit notes slot and
number as well (`settled`), so that a kill between the commit and the freeing books nothing twice.
When the run is opened again, what a kill left is booked as lost, at the most that it can have cost.
"""

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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from promptcodebook.calls import ROLES, Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.lm.budget import AttemptLog, Ledger
from promptcodebook.lm.cache import ReplyLog
from promptcodebook.lm.stack import Supplies
from promptcodebook.paths import make_private_folder, unfinished_folder
from promptcodebook.sqlite import Layout, Reader, Write, Writer, store_os_error
from promptcodebook.store.lock import ATTEMPTS, NO_LINK, RunLock
from promptcodebook.store.tables import BOOKS, RunReplies, SessionClock, add_usage, read_book

_SLOTS = 1024
# role, prompt tokens, completion tokens, cost (NaN = unknown price); the number is written last.
_BODY = struct.Struct("<QQQd")
_NUMBER = struct.Struct("<Q")
_SIZE = _NUMBER.size + _BODY.size
_MOST = 2**53
"""No number that an attempt has is larger."""
_SETTLE = "INSERT OR REPLACE INTO settled VALUES (?, ?)"


class AttemptFile:
    """An `AttemptLog` beside a run's file. Books at once what an earlier process left in flight;
    `recovered` says what that was. Raises DiskFull or StoreError."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self._path = folder / ATTEMPTS
        self._writer = writer
        self._door = threading.Lock()
        self._number = 0
        try:
            self._map = self._open(_SLOTS)
        except OSError as error:
            raise store_os_error(error, self._path) from error
        self.recovered = self._recover()

    def begin(self, role: Role, most: Usage) -> int:
        """Returns once the attempt would survive kill -9; the ticket is its slot. Raises DiskFull
        where what it brings could not be kept."""
        self._writer.require_room()
        cost = math.nan if most.cost is None else most.cost
        with self._door:
            if self._map.closed:
                raise StoreError(f"the run {self._path.parent.name} is closed")
            slot = self._free.pop() if self._free else self._grow()
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

        self._writer.send(work, then=lambda: self._release(ticket))

    def close(self) -> None:
        """Call it when the writer is closed: what it committed is released by then. The file goes
        with the last attempt that was in it. Safe to call twice."""
        with self._door:
            if self._map.closed:
                return
            empty = len(self._free) == len(self._map) // _SIZE
            self._map.close()
        if empty:
            self._path.unlink(missing_ok=True)

    def _release(self, slot: int) -> None:
        with self._door:
            _NUMBER.pack_into(self._map, slot * _SIZE, 0)
            self._free.append(slot)

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
        self._free = list(reversed(range(len(self._map) // _SIZE)))
        return booked

    def _left_behind(self) -> Iterator[tuple[int, int, Role, Usage]]:
        for slot in range(len(self._map) // _SIZE):
            (number,) = _NUMBER.unpack_from(self._map, slot * _SIZE)
            if number:
                at = slot * _SIZE + _NUMBER.size
                role, prompt, completion, cost = _BODY.unpack_from(self._map, at)
                if (
                    role >= len(ROLES)
                    or max(number, prompt, completion) > _MOST
                    or cost < 0
                    or math.isinf(cost)
                ):
                    raise StoreError(
                        f"slot {slot} of {self._path} is damaged: which calls were in flight when "
                        "the run was killed cannot be read",
                        hint=f"rm {self._path}; what those calls cost is then not counted",
                    )
                most = Usage(1, prompt, completion, 0, None if math.isnan(cost) else cost)
                yield slot, number, ROLES[role], most

    def _grow(self) -> int:
        """Twice as many slots; returns the first new one, which is not in the free list."""
        count = len(self._map) // _SIZE
        try:
            grown = self._open(2 * count)
        except OSError as error:
            raise store_os_error(error, self._path) from error
        self._map.close()
        self._map = grown
        self._free.extend(reversed(range(count + 1, 2 * count)))
        return count

    def _open(self, slots: int) -> mmap.mmap:
        """The file with at least that many slots, written out: a page that the disk has no room for
        would end the process."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | NO_LINK
        handle = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size // _SIZE * _SIZE
            if size < slots * _SIZE:
                os.lseek(handle, size, os.SEEK_SET)
                rest = memoryview(bytes(slots * _SIZE - size))
                while rest:
                    rest = rest[os.write(handle, rest) :]
                size = slots * _SIZE
            return mmap.mmap(handle, size)
        finally:
            os.close(handle)


_log = logging.getLogger(__name__)
_UNFINISHED = Layout(what="journal of unfinished work", version=1, script=BOOKS)


class Journal:
    """A file whose layout holds `tables.BOOKS`, and the attempts in flight beside it, in a folder
    that has no other. Made by `open`; who writes must hold the folder's lock."""

    def __init__(self, path: Path, layout: Layout, writer: Writer, clock: SessionClock) -> None:
        self._writer = writer
        self._clock = clock
        self.reader = Reader(path, layout)
        self._attempts = AttemptFile(path.parent, writer)
        self.ledger = Ledger(self.paid(), self.lost(), self._attempts)

    @classmethod
    def open(cls, path: Path, layout: Layout, again: str) -> Journal:
        """Made where there is none; `again` is what to type when a full disk has room once more.
        StoreError."""
        clock = SessionClock(time.monotonic)
        hint = f"free space on the disk of {path.parent}, then {again}"
        writer = Writer(path, layout, full_hint=hint, each_batch=clock.beat, reserve=True)
        try:
            writer.write_now(clock.begin)
            return cls(path, layout, writer, clock)
        except BaseException:
            writer.close()
            raise

    @property
    def replies(self) -> RunReplies:
        """Every reply, on disk before its chain continues."""
        return RunReplies(self.reader, self._writer)

    @property
    def attempt_log(self) -> AttemptLog:
        """Where attempts are kept from before they leave until they are booked."""
        return self._attempts

    def supplies(self) -> Supplies:
        """What a stack needs to journal here and to know what was spent."""
        return Supplies(log=self.replies, ledger=self.ledger, elapsed=lambda: self._clock.elapsed_s)

    def paid(self) -> dict[Role, Usage]:
        """What all sessions paid, by role."""
        self._writer.flush()
        return read_book(self.reader, "usage")

    def lost(self) -> dict[Role, Usage]:
        """The most that attempts lost to failures can have cost, by role."""
        self._writer.flush()
        return read_book(self.reader, "lost")

    @property
    def elapsed_s(self) -> float:
        """Seconds of all sessions."""
        return self._clock.elapsed_s

    def write_now(self, work: Write) -> None:
        """Commits the work, all of it or nothing. DiskFull, StoreError."""
        self._writer.write_now(work)

    def close(self) -> None:
        """Commits what waits."""
        self.reader.close()
        try:
            self._writer.close()
        finally:
            self._attempts.close()


@contextmanager
def until_done(*question: object) -> Generator[Supplies]:
    """Supplies of one budget for work that is no run. What it pays for is in a journal beside the
    reply cache where no cache keeps it: the same question finds it again after a kill. The journal
    goes when the block ends well. Where it cannot be written, a warning says so."""
    asked = repr((str(Path.cwd()), question)).encode("utf-8", "surrogatepass")
    folder = unfinished_folder() / hashlib.sha256(asked).hexdigest()[:32]
    opened: list[tuple[RunLock, Journal]] = []

    def spare() -> ReplyLog | None:
        try:
            if not opened:
                opened.append(_open(folder))
            return opened[0][1].replies
        except StoreError as error:
            _log.warning("a kill would lose what this pays for: %s", error)
            return None

    done = False
    try:
        yield replace(Supplies.of_one_budget(), spare=spare)
        done = True
    finally:
        for lock, journal in opened:
            done = done or journal.reader.row("SELECT 1 FROM journal") is None
            journal.close()
            if done:
                shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _open(folder: Path) -> tuple[RunLock, Journal]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder.parent)
        make_private_folder(folder)
    except OSError as error:
        raise store_os_error(error, folder) from error
    lock = RunLock(folder, "the same is being done")
    try:
        journal = Journal.open(folder / "journal.sqlite", _UNFINISHED, "type it again")
    except BaseException:
        lock.release()
        raise
    return lock, journal
