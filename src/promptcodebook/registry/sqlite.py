"""A registry in one SQLite file: what a team on one machine or one shared folder needs.

The file keeps no log beside it (no WAL): a commit is on the disk before it returns, a kill leaves
it before or after, and what is committed lies under the hashes of one file. A writer holds the
file's lock from reading the log to its commit, so that no two follow the same entry.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from promptcodebook.errors import PcoError, RegistryDamaged, StoreError
from promptcodebook.paths import data_folder, tighten
from promptcodebook.registry.log import Broken, Entry, Log
from promptcodebook.registry.storage import Propose, Row
from promptcodebook.sqlite import Layout, connect, store_os_error
from promptcodebook.sqlite.database import roll_back, store_error

VERIFY = "pco codebook verify names every row that is wrong; put a copy in the registry's place"

_FIELDS = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(_FIELDS)
_MARKS = ", ".join("?" * len(_FIELDS))
_UNREADABLE = (sqlite3.Error, UnicodeError)
"""What SQLite raises for a file that is damaged; the second where its message quotes the damage."""
_LAYOUT = Layout(
    what="registry",
    version=1,
    script=(
        "CREATE TABLE log (seq INTEGER PRIMARY KEY, "
        + ", ".join(f"{name} TEXT NOT NULL" for name in _FIELDS[1:])
        + ")",
        "CREATE INDEX log_by_ref ON log (ref, seq)",
        "CREATE TABLE policies (id INTEGER PRIMARY KEY, version TEXT NOT NULL, "
        "policy BLOB NOT NULL)",
        "CREATE UNIQUE INDEX policies_by_version ON policies (version)",
    ),
    wal=False,
)


class SqliteStorage:
    """The file, made when the first entry is written. Safe for threads, one connection for all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Log()
        self._lock = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        return str(self._path)

    def read(self) -> Log:
        with self._reading() as db:
            if db is not None:
                self._refresh(db)
        return self._log

    def append(self, propose: Propose) -> tuple[Entry, ...]:
        with self._lock:
            try:
                return self._commit(propose)
            except BaseException:
                self._log = Log()  # it may hold what was not committed
                raise

    def policy(self, version: str) -> bytes:
        wanted = "SELECT policy FROM policies WHERE version = ?"
        with self._reading() as db:
            row = None if db is None else db.execute(wanted, (version,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise _damaged(self.place, f"the policy file of {version} is missing")
        return row[0]

    def poll(self, ref: str) -> str | None:
        newest = "SELECT after FROM log WHERE ref = ? ORDER BY seq DESC LIMIT 1"
        with self._reading() as db:
            row = None if db is None else db.execute(newest, (ref,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        with self._lock:
            for db in (self._reader, self._writer):
                if db is not None:
                    db.close()
            self._reader = self._writer = None

    def _fault(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error):
            return store_error(error, self._path, _LAYOUT.what)
        return _damaged(self.place, str(error))

    def _commit(self, propose: Propose) -> tuple[Entry, ...]:
        db = self._open()
        try:
            db.execute("BEGIN IMMEDIATE")
            self._refresh(db)
            proposal = propose(self._log)
            for entry in proposal.entries:  # what the log refuses is not written
                self._log.add(entry)
            db.executemany(
                "INSERT OR IGNORE INTO policies (version, policy) VALUES (?, ?)",
                [(version, text.encode()) for version, text in proposal.policies.items()],
            )
            db.executemany(
                f"INSERT INTO log ({_COLUMNS}) VALUES ({_MARKS})",
                [astuple(entry) for entry in proposal.entries],
            )
            db.execute("COMMIT")
        except Broken as fault:
            raise StoreError(f"the registry {self.place} does not take this: {fault}") from None
        except _UNREADABLE as error:
            raise self._fault(error) from error
        finally:
            roll_back(db)  # nothing where it was committed
        return proposal.entries

    def _refresh(self, db: sqlite3.Connection) -> None:
        """Reads on from where the log was read to; from the beginning in another file's place."""
        if len(self._log):
            row = db.execute("SELECT hash FROM log WHERE seq = ?", (len(self._log),)).fetchone()
            if row is None or row[0] != self._log.head:
                self._log = Log()
        later = f"SELECT {_COLUMNS} FROM log WHERE seq > ? ORDER BY seq"
        for row in db.execute(later, (len(self._log),)):
            try:
                self._log.add(_entry(row))
            except Broken as fault:
                raise _damaged(self.place, f"row {row[0]} of the log: {fault}") from None

    def _open(self) -> sqlite3.Connection:
        """The connection that writes; the file is made where there is none."""
        self._leave_another_file()
        if self._writer is None:
            folder = self._path.parent
            try:
                folder.mkdir(0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise store_os_error(error, folder) from error
            if folder == data_folder():  # any other is not ours to close
                tighten(folder, 0o700)
            self._writer = connect(self._path, _LAYOUT, write=True)
            self._opened = self._inode()
        return self._writer

    def _inode(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _leave_another_file(self) -> None:
        """A copy that was put in the file's place is the registry from then on."""
        if self._opened is not None and self._inode() != self._opened:
            self.close()
            self._opened = None

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection | None]:
        """A connection to read from; None where nothing was written yet."""
        with self._lock:
            try:
                self._leave_another_file()
                if self._reader is None and self._path.is_file():
                    self._reader = connect(self._path, _LAYOUT, write=False)
                    self._opened = self._inode()
                yield self._reader
            except _UNREADABLE as error:
                raise self._fault(error) from error

    def rows(self) -> Iterator[Row]:
        if not self._path.is_file():
            return
        try:
            with closing(connect(self._path, _LAYOUT, write=False)) as db:
                for row in db.execute(f"SELECT {_COLUMNS} FROM log ORDER BY seq"):
                    yield _log_row(f"row {row[0]} of the log", row)
                for number, version, policy in db.execute("SELECT * FROM policies ORDER BY id"):
                    place = f"row {number} of the policies"
                    if isinstance(version, str) and isinstance(policy, bytes):
                        yield Row(place, policy=(version, policy))
                    else:
                        yield Row(place, fault="it does not hold a policy file under its version")
                for (said,) in db.execute("PRAGMA integrity_check").fetchall():
                    if said != "ok":
                        yield Row("the file", fault=" ".join(str(said).split()))
        except (PcoError, *_UNREADABLE) as error:
            yield Row("the file", fault=str(error))


def _entry(row: Sequence[object]) -> Entry:
    return Entry.of(dict(zip(_FIELDS, row, strict=True)))


def _damaged(place: str, fault: str) -> RegistryDamaged:
    return RegistryDamaged(f"the registry {place} is damaged: {fault}", hint=VERIFY)


def _log_row(place: str, row: Sequence[object]) -> Row:
    try:
        return Row(place, _entry(row))
    except Broken as fault:
        return Row(place, fault=str(fault))
