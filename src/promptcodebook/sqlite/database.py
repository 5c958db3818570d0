"""A file of ours: its tables, how it is opened and read, its values, and its faults as errors."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import zstandard

from promptcodebook.errors import DiskFull, StoreError, StoreTooNew
from promptcodebook.paths import make_private_file

_log = logging.getLogger(__name__)
_BUSY_S = 30.0
_SQLITE_BUSY = 5
_SQLITE_FULL = 13
_SQLITE_IOERR = 10
_UNOPENABLE = (8, 14)  # SQLITE_READONLY, SQLITE_CANTOPEN
_SQLITE_INTERRUPT = 9
_MOST_BYTES = 64_000_000
"""What a value may unpack to: ten times the bulkiest step."""
_MOST_PARTS = 4_000_000
"""What it may be made of: each number and list takes many times the memory of its text."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_MOST_ROWS = 1_000_000
_MOST_S = 20.0
"""What one statement may bring and take. SECURITY.md says so of files from strangers."""
_STEPS = 100_000
"""Of SQLite's machine, between two looks at the clock: some milliseconds."""
_ODD = (
    "SELECT name FROM sqlite_master WHERE COALESCE(rootpage, 0) = 0 UNION ALL "
    "SELECT m.name FROM sqlite_master m, pragma_table_xinfo(m.name) x"
    " WHERE m.type = 'table' AND x.hidden LIMIT 1"
)
"""Views, triggers, virtual tables, and columns that are worked out when they are read: reading one
may take for ever. No layout has any."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one kind of file: what it is called in messages, its version, its DDL.

    `since` is the earliest version with the same tables (0 = this one): its files are read, and
    get the present version once they are written to. `later` are tables that came after a version
    was first written, made where they are missing whenever a file is opened to be written.
    `wal` = writes go to a log beside the file first, which is quick; without it each commit is on
    the disk, in the one file, before it returns.
    """

    what: str
    version: int
    script: tuple[str, ...]
    since: int = 0
    later: tuple[str, ...] = ()
    wal: bool = True

    def reads(self, version: int) -> bool:
        return (self.since or self.version) <= version <= self.version


def connect(path: Path, layout: Layout, *, write: bool) -> sqlite3.Connection:
    """An autocommit connection whose file has this layout; `write` creates what is missing.

    Raises StoreTooNew, DiskFull, or StoreError (no such file, not a database, other tables).
    """
    if not write and not path.is_file():
        raise StoreError(f"no {layout.what} at {path}")
    if write:
        with contextlib.suppress(OSError):  # SQLite says it better
            make_private_file(path)  # its side files take after it
    try:
        return _open(str(path), path, layout, write)
    except sqlite3.Error as error:
        if write or _primary(error) not in _UNOPENABLE:
            raise store_error(error, path, layout.what) from error
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise StoreError(
            f"the last writes to the {layout.what} {path} lie in {log.name}, and reading them "
            "needs a folder that can be written to",
            hint=f"copy {path.parent} to such a folder",
        )
    # A read-only folder: WAL needs its side files there, unless no process changes the file.
    try:
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
            raise StoreTooNew(
                f"the {layout.what} {path} has format {version}; "
                f"this version reads formats up to {layout.version}",
                hint="pip install -U promptcodebook",
            )
        if not layout.reads(version):
            raise _foreign(path, layout)
        db.set_progress_handler(None, 0)
    except BaseException:
        db.close()
        raise
    return db


def restrain(db: sqlite3.Connection) -> None:
    """To be called before anything is read from a file, which may be anybody's: what its tables
    call does not reach beyond plain SQL, no value is larger than one may be, and reading ends after
    a while. Raises sqlite3.DatabaseError where something in it is no plain table."""
    db.execute("PRAGMA trusted_schema = OFF")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * _MOST_BYTES)
    _limit_time(db, _MOST_S)
    odd = db.execute(_ODD).fetchone()
    if odd is not None:
        raise sqlite3.DatabaseError(f"{str(odd[0])[:40]!r} in it is no plain table")


def _limit_time(db: sqlite3.Connection, seconds: float) -> None:
    ends = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)


def _create(db: sqlite3.Connection, path: Path, layout: Layout) -> None:
    if layout.wal:
        _keep_a_log(db)
    db.execute(f"PRAGMA synchronous = {'NORMAL' if layout.wal else 'FULL'}")
    if _version(db) != 0:
        if _version(db) < layout.version and layout.reads(_version(db)):
            db.execute(f"PRAGMA user_version = {layout.version}")
        for statement in layout.later if layout.reads(_version(db)) else ():
            db.execute(statement)
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if _version(db) == 0:  # another process may have been quicker
            if db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                raise _foreign(path, layout)
            for statement in (*layout.script, *layout.later):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {layout.version}")
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def _keep_a_log(db: sqlite3.Connection) -> None:
    """WAL. SQLite waits for no other process that is about to do the same, so this waits."""
    ends = time.monotonic() + _BUSY_S
    while db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary(error) != _SQLITE_BUSY or time.monotonic() >= ends:
                raise
            time.sleep(0.01)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _foreign(path: Path, layout: Layout) -> StoreError:
    return StoreError(
        f"{path} is not a {layout.what} of promptcodebook", hint=f"move {path} out of the way"
    )


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
        self._path = path
        self._what = layout.what
        self._most_s = most_s
        self._db = connect(path, layout, write=False)
        self._lock = threading.Lock()

    def row(self, sql: str, parameters: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows at once: the statement bounds how many. StoreError for a million."""
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


def store_error(error: sqlite3.Error, path: Path, what: str, full_hint: str = "") -> StoreError:
    if _primary(error) in (_SQLITE_FULL, _SQLITE_IOERR):
        return DiskFull(
            f"the disk refused a write to the {what} {path}: {error}",
            hint=full_hint
            or f"free space on the disk of {path.parent}, then run the command again",
        )
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return StoreError(
            f"the {what} {path} stayed locked by another process for {_BUSY_S:.0f} s",
            hint="wait for the other process to end, then run the command again",
        )
    if _primary(error) == _SQLITE_INTERRUPT:
        error = sqlite3.OperationalError("reading it took more than a file of ours ever does")
    return StoreError(
        f"the {what} {path} cannot be used: {error}",
        hint=f"move {path} out of the way (it may be damaged)",
    )


def store_os_error(error: OSError, path: Path) -> StoreError:
    """What the system said about a file or folder, as one of our errors."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    kind = DiskFull if full else StoreError
    return kind(
        f"{path} cannot be written: {error.strerror}",
        hint=f"free space on the disk of {path}" if full else f"check that you may write to {path}",
    )


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
            raise StoreError(f"a value of {len(data)} bytes is too large to be stored")
        return self._compressor.compress(data)


def unpack(blob: bytes) -> Any:
    """What `pack` was given. Raises StoreError when the bytes are not such a value."""
    try:
        return json.loads(_decompress(blob).decode("utf-8", "surrogatepass"))
    except (zstandard.ZstdError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(str(error)) from error


def _decompress(blob: bytes) -> bytes:
    # An unknown size (-1) is not ours; one that is too large would fill the memory.
    size = zstandard.frame_content_size(blob)
    if not 0 <= size <= _MOST_BYTES:
        raise _damaged(f"it would unpack to {size} bytes")
    data = zstandard.ZstdDecompressor().decompress(blob, allow_extra_data=False)
    if _has_too_many_parts(data):
        raise _damaged(f"it has more than {_MOST_PARTS:,} parts")
    return data


def _damaged(why: str) -> StoreError:
    return StoreError(
        f"a stored value is damaged: {why}", hint="put a copy of the file in its place"
    )


def _has_too_many_parts(data: bytes) -> bool:
    """Commas and brackets are counted, at first those in texts too, which is quick."""

    def count(text: bytes) -> int:
        return sum(text.count(sign) for sign in (b",", b"[", b"{"))

    return count(data) > _MOST_PARTS and count(_STRING.sub(b"", data)) > _MOST_PARTS
