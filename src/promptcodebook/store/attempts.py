"""Attempts in flight, in a file of slots that kill -9 leaves as they are.

A slot is written before its request leaves, which takes no system call and waits for no thread: the
page belongs to the system from then on. It is free again once what the attempt came to is committed
to the run's file. The commit notes slot and number as well (`settled`), so that a kill between the
commit and the freeing books nothing twice. What a kill leaves behind is booked when the run is
opened again, at the most it can have cost, as lost.
"""

from __future__ import annotations

import math
import mmap
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from promptcodebook.calls import ROLES, Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.sqlite import Writer, store_os_error
from promptcodebook.store.folder import ATTEMPTS
from promptcodebook.store.lock import NO_LINK
from promptcodebook.store.tables import add_usage

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
        """The file with at least so many slots, written out: a page that the disk has no room for
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
