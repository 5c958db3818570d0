"""SQLite as the house uses it: WAL, one writer thread that groups commits, point-lookup reads. An
awaited write costs a queue put and a future, not a transaction. With `synchronous = NORMAL` a
commit survives kill -9 of the process; a power cut may lose the last commits, never the file.
Values are packed as zstd-compressed JSON in which a lone surrogate of a model's reply survives."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

import zstandard

from promptcodebook.base.paths import make_private_file
from promptcodebook.errors import DiskFull, PcoError, StoreError, StoreTooNew

if TYPE_CHECKING:
    import asyncio

_Future = TypeVar("_Future", "Future[None]", "asyncio.Future[None]")
_log = logging.getLogger(__name__)
_BUSY_S = 30.0
_MOST_BYTES = 64_000_000  # what a value may unpack to: ten times the bulkiest step
# What it may be made of: each number and list takes many times the memory of its text.
_MOST_PARTS = 4_000_000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_MOST_ROWS = 1_000_000
# What one statement may bring and take. SECURITY.md says so of files from strangers.
_MOST_S = 20.0
_STEPS = 100_000  # of SQLite's machine, between two looks at the clock: some milliseconds
# Views, triggers, virtual tables and computed columns: reading one may take for ever.
_ODD = (
    "SELECT name FROM sqlite_master WHERE COALESCE(rootpage, 0) = 0 UNION ALL "
    "SELECT m.name FROM sqlite_master m, pragma_table_xinfo(m.name) x"
    " WHERE m.type = 'table' AND x.hidden LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one kind of file: what it is called in messages, its version, its DDL: each a
    statement, or a file of statements with a ; at the end of the last line of each. `since`
    is the earliest version with the same tables (0 = this one): its files are read, and get the
    present version once they are written to. `later` makes what a file that is opened to be written
    lacks, all or nothing: each is a CREATE ... IF NOT EXISTS. Without `wal`, writes to a log beside
    the file, each commit is on the disk before it returns."""

    what: str
    version: int
    script: tuple[str | Path, ...]
    since: int = 0
    later: tuple[str | Path, ...] = ()
    wal: bool = True

    def reads(self, version: int) -> bool:
        return (self.since or self.version) <= version <= self.version


def _statements(script: Sequence[str | Path]) -> list[str]:
    texts = (part if isinstance(part, str) else part.read_text("utf-8") for part in script)
    return [each for text in texts for each in text.split(";\n") if each]


def connect(path: Path, layout: Layout, *, write: bool) -> sqlite3.Connection:
    """An autocommit connection; `write` makes what is missing. Raises StoreTooNew or StoreError."""
    if not write and not path.is_file():
        raise StoreError(f"no {layout.what} at {path}")
    if write:
        with contextlib.suppress(OSError):  # SQLite says it better
            make_private_file(path)  # its side files take after it
    try:
        try:
            return _open(str(path), path, layout, write)
        except sqlite3.Error as error:
            unopenable = _primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
            if write or not unopenable:
                raise
        log = path.with_name(f"{path.name}-wal")
        if log.is_file() and log.stat().st_size:
            message = f"the {layout.what} {path} cannot be read: {path.parent} is not writable"
            raise StoreError(message, hint=f"copy {path.parent} to a writable folder")
        # A read-only folder: WAL needs its side files there, unless no process changes the file.
        return _open(f"file:{quote(str(path))}?mode=ro&immutable=1", path, layout, False)
    except sqlite3.Error as error:
        raise store_error(error, path, layout.what) from error


def _open(name: str, path: Path, layout: Layout, write: bool) -> sqlite3.Connection:
    db = sqlite3.connect(
        name,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        uri=name.startswith("file:"),
    )
    try:
        restrain(db)
        if write:
            _create(db, path, layout)
        else:
            db.execute("PRAGMA query_only = ON")
        version = _version(db)
        if version > layout.version:
            message = f"the {layout.what} {path} has format {version}, too new for this version"
            raise StoreTooNew(message, hint="pip install -U promptcodebook")
        if not layout.reads(version):
            raise _foreign(path, layout)
        db.set_progress_handler(None, 0)
    except BaseException:
        db.close()
        raise
    return db


def restrain(db: sqlite3.Connection) -> None:
    """Call it before anything is read from a file, which may be anybody's. Raises
    sqlite3.DatabaseError where something in it is no plain table."""
    db.execute("PRAGMA trusted_schema = OFF")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * _MOST_BYTES)
    _limit_time(db, _MOST_S)
    odd = db.execute(_ODD).fetchone()
    if odd is not None:
        raise sqlite3.DatabaseError(f"it contains {str(odd[0])[:40]!r}, which is not a plain table")


def _limit_time(db: sqlite3.Connection, seconds: float) -> None:
    ends = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)


def _create(db: sqlite3.Connection, path: Path, layout: Layout) -> None:
    ends = time.monotonic() + _BUSY_S
    while layout.wal and db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # SQLite waits for no other process that is about to do the same, so this waits.
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= ends:
                raise
            time.sleep(0.01)
    db.execute(f"PRAGMA synchronous = {'NORMAL' if layout.wal else 'FULL'}")
    version, there = _version(db), {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    later = _statements(layout.later)
    if version == layout.version and all(each.split()[5] in there for each in later):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)  # another process may have been quicker
        if version == 0:
            if db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                raise _foreign(path, layout)
            for statement in _statements(layout.script):
                db.execute(statement)
        if version == 0 or layout.reads(version):
            for statement in later:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {layout.version}")
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _foreign(path: Path, layout: Layout) -> StoreError:
    message = f"{path} is not a promptcodebook {layout.what}"
    return StoreError(message, hint=f"move {path} out of the way")


def roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error as error:
            _log.debug("rollback failed: %s", error)


class Reader:
    """A connection for reading, shared by threads; sees every commit made before the call. No
    statement takes longer than `most_s`, even in a hostile file."""

    def __init__(self, path: Path, layout: Layout, most_s: float = _MOST_S) -> None:
        self._path, self._what, self._most_s = path, layout.what, most_s
        self._db = connect(path, layout, write=False)
        self._lock = threading.Lock()

    def row(self, sql: str, parameters: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        return next(iter(self.rows(sql, parameters)), None)

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows at once: the statement bounds how many. Raises StoreError for a million."""
        try:
            with self._lock:
                _limit_time(self._db, self._most_s)
                rows = self._db.execute(sql, parameters).fetchmany(_MOST_ROWS)
        except sqlite3.Error as error:
            raise store_error(error, self._path, self._what) from error
        if len(rows) == _MOST_ROWS:
            raise store_error(sqlite3.DataError("it has too many rows"), self._path, self._what)
        return rows

    def has(self, table: str) -> bool:
        """Whether the file has this table: an old one lacks those of `Layout.later`."""
        named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self.row(named, (table,)) is not None

    def close(self) -> None:
        with self._lock:
            self._db.close()


# Work on the writing connection alone: it is rerun when its transaction's neighbour fails.
Write = Callable[[sqlite3.Connection], object]
_Waiter: TypeAlias = "Future[None] | asyncio.Future[None]"
_Unit = tuple[Write, _Waiter]
_SET_ASIDE = 8 << 20  # bytes: hundreds of replies, each with the pages of the file that it touches
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BATCH = 2048  # the most units in one transaction, which bounds what one rollback loses


class Writer:
    """One writer thread for one file. `write`, `write_now` return once committed; `send` and
    `submit` at once. After the disk refused a write, every later one is refused as well (DiskFull):
    a store with a hole in it would be worse than one that ends early. What was committed stays. One
    that `recovers` may have holes, and each write to it is tried. With a `reserve`
    room is set aside on the disk: once the disk is full, what is under way is written there, and
    `require_room` refuses what would begin."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        *,
        full_hint: str = "",
        each_batch: Write | None = None,
        reserve: bool = False,
        recovers: bool = False,
    ) -> None:
        self._path = path
        self._recovers = recovers
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
        self._unheard: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"writer {path.name}", daemon=True)
        self._thread.start()

    async def write(self, work: Write) -> None:
        """Returns when `work` is committed. Cancelling the wait does not undo the write."""
        import asyncio  # here: those who only read, or list runs, do not wait for it

        await self._put(work, asyncio.get_running_loop().create_future())

    def write_now(self, work: Write) -> None:
        """`write` for code that is not async: blocks until committed."""
        self.submit(work).result()

    def submit(self, work: Write) -> Future[None]:
        """Hands `work` over; the future is settled in the writer's thread."""
        return self._put(work, Future())

    def send(self, work: Write, then: Callable[[], None] | None = None) -> None:
        """Hands `work` over; `flush` or `close` raise its failure. `then` is for its commit."""

        def done(future: Future[None]) -> None:
            if (error := future.exception()) is None:
                if then is not None:
                    then()
            elif self._unheard is None:
                _log.warning("%s", error)
                self._unheard = error

        self.submit(work).add_done_callback(done)

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

    def _put(self, work: Write, future: _Future) -> _Future:
        with self._door:  # so that nothing lands behind the end mark and waits for ever
            if self._closed:
                raise StoreError(f"the {self._what} {self._path} is closed")
            if self._full is not None:
                raise _copy(self._full)
            self._queue.put((work, future))
        return future

    def _raise_unheard(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            raise unheard

    def _run(self) -> None:
        ended = False
        while not ended:
            taken = [self._queue.get()]
            while len(taken) < _BATCH and not self._queue.empty():
                taken.append(self._queue.get())
            batch = [unit for unit in taken if unit is not None]
            ended = len(batch) < len(taken)  # the end mark is the last there is
            results = self._commit(batch) if batch else []
            # A loop is woken once for a batch: waking it for each reply costs a tenth of a call.
            by_loop: dict[Any, list[tuple[_Waiter, Exception | None]]] = {}
            for (_, future), error in zip(batch, results, strict=True):
                loop = None if isinstance(future, Future) else future.get_loop()
                by_loop.setdefault(loop, []).append((future, error))
            _settle(by_loop.pop(None, []))
            for loop, answers in by_loop.items():
                with contextlib.suppress(RuntimeError):  # it has ended, and its waiters with it
                    loop.call_soon_threadsafe(_settle, answers)
        self._db.close()

    def _commit(self, batch: list[_Unit]) -> list[Exception | None]:
        """One result per unit: None = committed. A fault is pinned to its unit by going singly."""
        if self._full is not None:
            return [_copy(self._full) for _ in batch]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for work, _ in batch:
                work(self._db)
            if self._each_batch is not None:
                self._each_batch(self._db)
            self._db.execute("COMMIT")
            return [None] * len(batch)
        except Exception as error:
            roll_back(self._db)
            fault = error
            if isinstance(error, sqlite3.Error):
                fault = store_error(error, self._path, self._what, self._full_hint)
                fault.__cause__ = error
                full = self._recovers and isinstance(fault, DiskFull)
                if full or _primary(error) in _HELD:  # each single unit would wait as long
                    return [_copy(fault) for _ in batch]
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


def _set_aside(path: Path) -> None:
    """A new file that the disk has given its room to. Raises DiskFull or StoreError."""
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


def _settle(answers: Sequence[tuple[_Waiter, Exception | None]]) -> None:
    for waiter, error in answers:
        if not waiter.done():  # else it was cancelled while it waited
            waiter.set_result(None) if error is None else waiter.set_exception(error)


def _copy(fault: StoreError) -> StoreError:
    """One for each waiter: a shared exception would gather the tracebacks of all."""
    copy = type(fault)(str(fault), hint=fault.hint)
    copy.__cause__ = fault.__cause__
    return copy


def store_error(error: sqlite3.Error, path: Path, what: str, full_hint: str = "") -> StoreError:
    primary = _primary(error)
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        free = f"free space on the disk of {path.parent}, then rerun the command"
        message = f"the disk refused a write to the {what} {path}: {error}"
        return DiskFull(message, hint=full_hint or free)
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        message = f"the {what} {path} was locked by another process for {_BUSY_S:.0f} s"
        return StoreError(message, hint="wait until it ends, then rerun the command")
    slow = "it takes far longer to read than any file that promptcodebook writes"
    why = slow if primary == sqlite3.SQLITE_INTERRUPT else error
    message = f"the {what} {path} cannot be used: {why}"
    return StoreError(message, hint=f"move {path} out of the way (it may be damaged)")


def store_os_error(error: OSError, path: Path) -> StoreError:
    """What the system said about a file or folder, as one of our errors."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    kind = DiskFull if full else StoreError
    hint = f"free space on the disk of {path}" if full else f"check write access to {path}"
    return kind(f"{path} cannot be written: {error.strerror}", hint=hint)


@contextlib.contextmanager
def on_disk(path: Path) -> Generator[None]:
    """What the disk refuses in the block becomes a StoreError or DiskFull about the path."""
    try:
        yield
    except PcoError:
        raise
    except OSError as error:
        raise store_os_error(error, path) from error


def _primary(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def pack(value: object) -> bytes:
    """JSON, compressed, with a checksum. Tuples come back as lists; NaN and lone surrogates as
    they were. Raises StoreError for a value too large to be read again."""
    return Packer().pack(value)


class Packer:
    """`pack` with a compressor of its own: twice as quick, and for one thread only."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(write_checksum=True)

    def pack(self, value: object) -> bytes:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > _MOST_BYTES or _has_too_many_parts(data):
            raise StoreError(f"a value of {len(data)} bytes is too large to store")
        return self._compressor.compress(data)


def unpack(blob: bytes) -> Any:
    """What `pack` was given. Raises StoreError when the bytes are not such a value."""
    try:
        # An unknown size (-1) is not ours; one that is too large would fill the memory.
        size = zstandard.frame_content_size(blob)
        if not 0 <= size <= _MOST_BYTES:
            raise ValueError(f"it would unpack to {size} bytes")
        data = zstandard.ZstdDecompressor().decompress(blob, allow_extra_data=False)
        if _has_too_many_parts(data):
            raise ValueError(f"it has more than {_MOST_PARTS:,} parts")
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except (zstandard.ZstdError, ValueError, TypeError, RecursionError) as error:
        message = f"a stored value is damaged: {error}"
        raise StoreError(message, hint="restore the file from a backup") from error


def _has_too_many_parts(data: bytes) -> bool:
    """Commas and brackets are counted, at first those in texts too, which is quick."""

    def count(text: bytes) -> int:
        return sum(text.count(sign) for sign in (b",", b"[", b"{"))

    return count(data) > _MOST_PARTS and count(_STRING.sub(b"", data)) > _MOST_PARTS
