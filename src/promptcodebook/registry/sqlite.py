"""A registry in one SQLite file: what a team on one machine or one shared folder needs.

The file has no write-ahead log: a commit is on the disk before it returns, and a kill leaves the
file as before or as after. A writer holds the file's lock from reading the log to its commit, so
two never follow the same entry. Each look opens the file, so a copy put in its place is the
registry from then on.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from promptcodebook.errors import PcoError, RegistryDamaged, StoreError
from promptcodebook.paths import data_folder, tighten
from promptcodebook.registry.log import Broken, Entry, Fault, Log, Propose, version_of
from promptcodebook.sqlite import Layout, connect, roll_back, store_error, store_os_error

VERIFY = "pco codebook verify names the first bad row; put a copy in the registry's place"

_FIELDS = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(_FIELDS)
_UNREADABLE = (sqlite3.Error, UnicodeError)
"""What SQLite raises for a damaged file; the second where its message quotes the damage."""
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
    """The file, made with the first entry. Safe for threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Log()
        self._lock = threading.RLock()

    @property
    def place(self) -> str:
        return str(self._path)

    def read(self) -> Log:
        with self._reading() as db:
            if db is not None:
                self._refresh(db)
        return self._log

    def append(self, propose: Propose) -> tuple[Entry, ...]:
        folder = self._path.parent
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise store_os_error(error, folder) from error
        if folder == data_folder():  # any other is not ours to close
            tighten(folder, 0o700)
        with self._lock, closing(connect(self._path, _LAYOUT, write=True)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                self._refresh(db)
                proposal = propose(self._log)
                for entry in proposal.entries:
                    self._log.add(entry)
                policies = [(name, text.encode()) for name, text in proposal.policies.items()]
                into = "INSERT OR IGNORE INTO policies (version, policy) VALUES (?, ?)"
                db.executemany(into, policies)
                into = f"INSERT INTO log ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
                db.executemany(into, [astuple(entry) for entry in proposal.entries])
                db.execute("COMMIT")
            except BaseException as error:
                self._log = Log()  # it may hold what was not committed
                if isinstance(error, Broken):
                    said = f"the registry {self.place} does not take this: {error}"
                    raise StoreError(said) from None
                if isinstance(error, _UNREADABLE):
                    raise self._fault(error) from error
                raise
            finally:
                roll_back(db)  # nothing where it was committed
        return proposal.entries

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

    def check(self) -> tuple[Log, list[Fault]]:
        log, faults = Log(), list[Fault]()
        if not self._path.is_file():
            return log, faults
        try:
            with closing(connect(self._path, _LAYOUT, write=False)) as db:
                faults += [*_log_faults(db, log), *_policy_faults(db, log)]
                said = db.execute("PRAGMA integrity_check").fetchall()
                faults += [Fault("the file", " ".join(text.split())) for (text,) in said
                           if text != "ok"]  # fmt: skip
        except (PcoError, *_UNREADABLE) as error:
            faults.append(Fault("the file", str(error)))
        return log, faults

    def _fault(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error):
            return store_error(error, self._path, _LAYOUT.what)
        return _damaged(self.place, str(error))

    def _refresh(self, db: sqlite3.Connection) -> None:
        """Reads what came since; all of it where another file is in this one's place."""
        if self._log.entries:
            last = "SELECT hash FROM log WHERE seq = ?"
            if db.execute(last, (len(self._log.entries),)).fetchone() != (self._log.head,):
                self._log = Log()
        for fault in _log_faults(db, self._log):
            raise _damaged(self.place, str(fault))

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection | None]:
        """A connection to read from; None where nothing was written yet."""
        with self._lock:
            if not self._path.is_file():
                yield None
                return
            with closing(connect(self._path, _LAYOUT, write=False)) as db:
                try:
                    yield db
                except _UNREADABLE as error:
                    raise self._fault(error) from error


def _damaged(place: str, fault: str) -> RegistryDamaged:
    return RegistryDamaged(f"the registry {place} is damaged: {fault}", hint=VERIFY)


def _log_faults(db: sqlite3.Connection, log: Log) -> list[Fault]:
    """Reads on where the log ends; the first row that cannot follow, if one cannot."""
    # An empty log starts below the first number, so that a row put before it is noticed.
    wanted = f"SELECT {_COLUMNS} FROM log {'WHERE seq > ?' if log.entries else ''} ORDER BY seq"
    for row in db.execute(wanted, (len(log.entries),) if log.entries else ()):
        try:
            log.add(Entry.of(dict(zip(_FIELDS, row, strict=True))))
        except Broken as fault:
            return [Fault(f"row {row[0]} of the log", str(fault))]
    return []


def _policy_faults(db: sqlite3.Connection, log: Log) -> list[Fault]:
    """Policy files that are not as written, or missing."""
    faults, found = list[Fault](), set[object]()
    for number, version, policy in db.execute("SELECT * FROM policies ORDER BY id"):
        found.add(version)
        if not isinstance(policy, bytes) or version_of(policy) != version:
            place = f"row {number} of the policies"
            faults.append(Fault(place, f"its bytes are not those of {version}"))
    for version, entry in log.versions.items():
        if version not in found:
            missing = f"the policy file that it stored is missing: {version}"
            faults.append(Fault(f"row {entry.seq} of the log", missing))
    return faults
