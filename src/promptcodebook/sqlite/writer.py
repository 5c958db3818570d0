"""The writer of one file: a thread that commits whatever waits in one transaction."""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcodebook.errors import DiskFull, StoreError
from promptcodebook.sqlite.database import Layout, connect, roll_back, store_error, store_os_error

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

Write = Callable[[sqlite3.Connection], object]
"""One unit of work on the writing connection. Rerun from scratch when a neighbour in its
transaction fails, so it must only touch the connection."""
_SET_ASIDE = 8 << 20
"""Bytes: hundreds of replies, each with the pages of the file that it touches."""
_BATCH = 2048
"""The most units in one transaction, which bounds what one rollback loses."""
_Answer = tuple["asyncio.Future[None]", Exception | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    work: Write
    waiter: asyncio.Future[None] | ThreadFuture[None] | None = None
    then: Callable[[], None] | None = None


class Writer:
    """One writer thread for one file. `write`, `write_now` return once committed; `send` at once.

    After the disk refused a write, every later one is refused as well (DiskFull): a store with a
    hole in it would be worse than one that ends early. What was committed stays. With a `reserve`
    room is set aside on the disk: once the disk is full, what is under way is written there, and
    `require_room` refuses what would begin.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        *,
        full_hint: str = "",
        each_batch: Write | None = None,
        reserve: bool = False,
    ) -> None:
        self._path = path
        self._what = layout.what
        self._full_hint = full_hint
        self._each_batch = each_batch
        self._reserve = path.with_name(f"{path.name}-reserve") if reserve else None
        self._low: DiskFull | None = None
        self._db = connect(path, layout, write=True)
        if self._reserve is not None:
            try:
                _set_aside(self._reserve)
            except BaseException:
                self._db.close()
                raise
        self._queue: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._closed = False
        self._full: DiskFull | None = None
        self._unheard: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"writer {path.name}", daemon=True)
        self._thread.start()

    async def write(self, work: Write) -> None:
        """Returns when `work` is committed. Cancelling the wait does not undo the write."""
        import asyncio  # here: those who only read, or list runs, do not wait for it

        waiter = asyncio.get_running_loop().create_future()
        self._put(_Unit(work, waiter))
        await waiter

    def write_now(self, work: Write) -> None:
        """`write` for code that is not async: blocks until committed."""
        waiter: ThreadFuture[None] = ThreadFuture()
        self._put(_Unit(work, waiter))
        waiter.result()

    def send(self, work: Write, then: Callable[[], None] | None = None) -> None:
        """Hands `work` over without waiting; its failure is raised by `flush` or `close`.

        `then` is called when it is committed, in the writer's thread.
        """
        self._put(_Unit(work, then=then))

    def flush(self) -> None:
        """Returns when all that was handed over before is committed; raises what failed unheard."""
        self.write_now(lambda db: None)
        self._raise_unheard()

    def require_room(self) -> None:
        """Raises DiskFull once the disk was full, though what was under way was written still."""
        if self._low is not None:
            raise _copy(self._low)

    def close(self) -> None:
        """Commits what waits and ends the thread. Safe to call twice."""
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        if self._reserve is not None:
            self._reserve.unlink(missing_ok=True)
        self._raise_unheard()

    def _put(self, unit: _Unit) -> None:
        with self._door:  # so that nothing lands behind the end mark and waits for ever
            if self._closed:
                raise StoreError(f"the {self._what} {self._path} is closed")
            if self._full is not None:
                raise _copy(self._full)
            self._queue.put(unit)

    def _raise_unheard(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            raise unheard

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._drain()
            results = self._commit(batch) if batch else []
            self._answer(batch, results)
        self._db.close()

    def _drain(self) -> tuple[list[_Unit], bool]:
        batch: list[_Unit] = []
        unit = self._queue.get()
        while unit is not None:
            batch.append(unit)
            if len(batch) == _BATCH:
                return batch, False
            try:
                unit = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Unit]) -> list[Exception | None]:
        """One result per unit: None = committed. A fault is pinned to its unit by going singly."""
        if self._full is not None:
            return [_copy(self._full) for _ in batch]
        try:
            self._transact(batch)
            return [None] * len(batch)
        except Exception as error:
            roll_back(self._db)
            fault = self._fault(error)
        if isinstance(fault, DiskFull):
            if self._reserve is None or self._low is not None:
                self._full = fault
            else:
                self._low = fault
                self._reserve.unlink(missing_ok=True)
            return self._commit(batch)
        if len(batch) == 1:
            return [fault]
        return [result for unit in batch for result in self._commit([unit])]

    def _transact(self, batch: list[_Unit]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        for unit in batch:
            unit.work(db)
        if self._each_batch is not None:
            self._each_batch(db)
        db.execute("COMMIT")

    def _fault(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            fault = store_error(error, self._path, self._what, self._full_hint)
            fault.__cause__ = error
            return fault
        return error

    def _answer(self, batch: list[_Unit], results: Iterable[Exception | None]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
        for unit, error in zip(batch, results, strict=True):
            waiter = unit.waiter
            if isinstance(waiter, ThreadFuture):
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
            elif waiter is not None:
                by_loop.setdefault(waiter.get_loop(), []).append((waiter, error))
            elif error is not None:
                if self._unheard is None:
                    _log.warning("%s", error)
                    self._unheard = error
            elif unit.then is not None:
                unit.then()
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle, answers)
            except RuntimeError:  # that loop has ended, and its waiters with it
                _log.debug("nobody waits any more for a write to %s", self._path)


def _set_aside(path: Path) -> None:
    """A file of its own, never one that is there, that the disk has given its room to. DiskFull,
    StoreError."""
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, _SET_ASIDE)
            except (AttributeError, OSError):  # this system, or this file system, has none
                file.write(bytes(_SET_ASIDE))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise store_os_error(error, path) from error


def _settle(answers: list[_Answer]) -> None:
    for waiter, error in answers:
        if waiter.done():  # cancelled while it waited
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _copy(full: DiskFull) -> DiskFull:
    """One for each waiter: a shared exception would gather the tracebacks of all."""
    copy = DiskFull(str(full), hint=full.hint)
    copy.__cause__ = full.__cause__
    return copy
