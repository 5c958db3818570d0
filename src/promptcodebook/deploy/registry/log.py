"""The log of a registry: a chain of entries, all that follows from it, and its SQLite file.

Each entry holds the hash of the one before it, so a later entry shows any change to an earlier one.
What each ref points to and which versions exist follows from the entries alone. A version is named
by the SHA-256 of its policy file's bytes: `sha256:` and 64 digits.

The file has no write-ahead log: a commit is on the disk before it returns. A writer holds the
file's lock from reading the log to its commit, so two never follow the same entry. Each look opens
the file, so a copy put in its place is the registry from then on."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from promptcodebook import errors
from promptcodebook.base.paths import data_folder, tighten
from promptcodebook.base.sqlite import Layout, connect, on_disk, roll_back, store_error
from promptcodebook.base.text import parse_json
from promptcodebook.policy.references import REF, VERSION, WORD

LATEST = "latest"  # the ref of each codebook to its newest version; never promoted by hand
_ACTIONS = ("freeze", "promote", "rollback", "attest")
FIRST = "0" * 64  # what the first entry has in place of the hash before it
CANARY = "canary"  # the topic under which a canary's beginning and end are attested


class Broken(Exception):
    """Why an entry cannot follow."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log; a move of a ref unless `action` is 'attest', which has `ref` ''. `time`
    is ISO 8601 (UTC); `before` and `after` are versions, `before` '' for a new ref; `facts` is a
    JSON object as text: of a stored version, of a gate, or attested. `hash` is over the rest."""

    seq: int
    time: str
    who: str
    action: str
    ref: str
    before: str
    after: str
    why: str
    facts: str
    previous: str
    hash: str = ""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> LogEntry:
        """Raises Broken unless these are the fields of an entry, each of its type."""
        kinds = {each.name: int if each.name == "seq" else str for each in fields(cls)}
        if {name: type(value) for name, value in values.items()} != kinds:
            raise Broken("its fields or their types are not those of a log entry")
        return cls(**cast("dict[str, Any]", dict(values)))

    def sealed(self) -> LogEntry:
        return replace(self, hash=self.digest)

    @property
    def digest(self) -> str:
        """The right hash: SHA-256 (hex) over the canonical JSON of the other fields."""
        tree = asdict(self)
        del tree["hash"]
        return hashlib.sha256(canonical(tree).encode()).hexdigest()

    @property
    def known(self) -> dict[str, Any]:
        """`facts` as a tree."""
        return json.loads(self.facts)

    @property
    def canary(self) -> Mapping[str, Any]:
        """What it says of a canary's beginning or end; empty where it is about something else."""
        if self.action != "attest" or f'"topic":"{CANARY}"' not in self.facts:
            return {}
        known = self.known
        found = known.get("found") if known.get("topic") == CANARY else None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def canonical(tree: Mapping[str, object]) -> str:
    """The one way to write these values as JSON: sorted, without blanks, in ASCII."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def version_of(policy: bytes) -> str:
    """The name of a policy file of these bytes."""
    return f"sha256:{hashlib.sha256(policy).hexdigest()}"


def check_name(name: str) -> str:
    """The name of a codebook. Raises ConfigError."""
    if not re.fullmatch(WORD, name):
        hint = "up to 60 letters, digits, '-', '_' and '.', such as tickets"
        raise errors.ConfigError(f"a codebook cannot be called {name!r}", hint=hint)
    return name


def check_ref(ref: str, usage: str = "NAME@REF, such as tickets@production") -> str:
    """A ref that may be promoted to and rolled back, NAME@REF. Raises ConfigError, with the usage
    of the command."""
    match = REF.fullmatch(ref)
    if match is None:
        raise errors.ConfigError(f"{ref!r} is not a ref", hint=f"write {usage}")
    if match[2].lower() == LATEST:
        message = f"{ref} points to the newest version and cannot be moved by hand"
        raise errors.ConfigError(message, hint=f"use a different word: {match[1]}@production")
    return ref


class Log:
    """The entries so far, and what follows from them. Grows, never shrinks."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        # Every version with the entry that stored it first, in order.
        self.versions: dict[str, LogEntry] = {}
        self._history: dict[str, list[str]] = {}
        # The beginning of each ref's canary. A move of the ref ends it, too.
        self.canaries: dict[str, LogEntry] = {}

    def add(self, entry: LogEntry) -> None:
        """Takes the next entry. Raises Broken, and stays as it was, where anything is wrong."""
        if entry.seq != self.next:
            raise Broken(f"it says that it is entry {entry.seq}, but entry {self.next} comes next")
        if entry.digest != entry.hash:
            raise Broken("its hash does not match its content")
        if entry.previous != self.head:
            raise Broken("it does not follow the entry before it: the chain is broken")
        try:
            is_object = isinstance(parse_json(entry.facts), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise Broken("its facts are not a JSON object")
        if entry.action not in _ACTIONS:
            raise Broken(f"there is no action {entry.action!r}")
        self._check_move(entry)
        self.follow(entry)

    def _check_move(self, entry: LogEntry) -> None:
        if (entry.action == "attest") != (entry.ref == ""):
            raise Broken(f"{entry.action!r} does not go with {entry.ref or 'an empty ref'}")
        if entry.before != (self.at(entry.ref) or ""):
            raise Broken(f"{entry.ref} did not point to the version that it names")
        if entry.after == entry.before:
            raise Broken(f"{entry.ref} already pointed to that version")
        if entry.action != "freeze" and entry.after not in self.versions:
            raise Broken(f"no entry stored its version {entry.after}")
        if entry.action == "rollback" and entry.after not in self.history(entry.ref)[:-1]:
            raise Broken(f"{entry.ref} was never at {entry.after}")

    def follow(self, entry: LogEntry) -> None:
        """Takes an entry unchecked."""
        self.entries.append(entry)
        if entry.action == "freeze":
            self.versions.setdefault(entry.after, entry)
        tried = entry.canary
        self.canaries.pop(str(tried.get("ref", entry.ref)), None)
        if "share" in tried:
            self.canaries[str(tried.get("ref"))] = entry
        history = self._history.setdefault(entry.ref, []) if entry.ref else []
        if entry.action == "rollback" and entry.after in history:
            while history[-1] != entry.after:
                history.pop()
        else:
            history.append(entry.after)

    @property
    def head(self) -> str:
        return self.entries[-1].hash if self.entries else FIRST

    @property
    def next(self) -> int:
        return len(self.entries) + 1

    def at(self, ref: str) -> str | None:
        """The version that a ref points to."""
        history = self._history.get(ref)
        return history[-1] if history else None

    def history(self, ref: str) -> Sequence[str]:
        """The versions that a ref can be rolled back through; the present one is last."""
        return tuple(self._history.get(ref, ()))

    @property
    def refs(self) -> dict[str, str]:
        return {ref: self._history[ref][-1] for ref in sorted(self._history)}

    def about(self, ref: str) -> tuple[LogEntry, ...]:
        """The entries of one ref (NAME@REF), of one codebook (NAME or NAME@), or all ('')."""
        name, _, word = ref.partition("@")
        if word:
            return tuple(e for e in self.entries if ref in (e.ref, e.canary.get("ref")))
        own = f"{name}@" if name else ""
        places = ((entry, str(entry.canary.get("ref", entry.ref))) for entry in self.entries)
        return tuple(entry for entry, place in places if place.startswith(own))

    def resolve(self, text: str) -> str:
        """The version that NAME@REF or sha256:DIGITS means. Raises RefNotFound."""
        hint = "pco registry list shows the refs (NAME@REF) and versions (sha256:DIGITS)"
        if not VERSION.fullmatch(text):
            if (version := self.at(text)) is not None:
                return version
            message = f"no ref {text!r} in the registry{errors.did_you_mean(text, self._history)}"
            raise errors.RefNotFound(message, hint=hint)
        found = [version for version in self.versions if version.startswith(text)]
        if len(found) == 1:
            return found[0]
        some = f"{len(found)} versions begin with {text}" if found else f"no version {text}"
        raise errors.RefNotFound(f"{some} in the registry", hint="add digits" if found else hint)


Propose = Callable[[Log], list[LogEntry]]  # sealed entries that follow the head of a log
Policies = Mapping[str, str]  # texts of policy files, by version
NONE: Policies = {}


@dataclass(frozen=True, slots=True)
class LogFault:
    """What is wrong, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


_VERIFY = "pco registry verify names the first bad row; restore the registry from a backup"
_FIELDS = tuple(field.name for field in fields(LogEntry))
_COLUMNS = ", ".join(_FIELDS)
# What SQLite raises for a damaged file; the second where its message quotes the damage.
_UNREADABLE = (sqlite3.Error, UnicodeError)
_LAYOUT = Layout(
    what="registry", version=1, script=(Path(__file__).with_suffix(".sql"),), wal=False
)


class LogFile:
    """The file of one log and its policy files, made with the first entry. Processes share it, and
    an entry is there whole or not at all. Safe for threads. Raises StoreError, and RegistryDamaged
    for rows that are not as written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = Log()
        self._lock = threading.RLock()

    def read(self) -> Log:
        """The log with all that is committed by now, to be read only."""
        with self._reading() as db:
            if db is not None:
                self._refresh(db)
        return self._log

    def append(self, propose: Propose, policies: Policies = NONE) -> list[LogEntry]:
        """Adds the entries that `propose` makes for the log as it is then, with the policy files
        that they store, by version; the new entries."""
        folder = self.path.parent
        with on_disk(folder):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        if folder == data_folder():  # any other is not ours to close
            tighten(folder, 0o700)
        with self._lock, closing(connect(self.path, _LAYOUT, write=True)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                self._refresh(db)
                entries = propose(self._log)
                for entry in entries:
                    self._log.add(entry)
                stored = [(name, text.encode()) for name, text in policies.items()]
                into = "INSERT OR IGNORE INTO policies (version, policy) VALUES (?, ?)"
                db.executemany(into, stored)
                into = f"INSERT INTO log ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
                db.executemany(into, map(astuple, entries))
                db.execute("COMMIT")
            except BaseException as error:
                self._log = Log()  # it may hold what was not committed
                if isinstance(error, Broken):
                    message = f"the registry {self.path} rejects the change: {error}"
                    raise errors.StoreError(message) from None
                if isinstance(error, _UNREADABLE):
                    raise self._fault(error) from error
                raise
            finally:
                roll_back(db)  # nothing where it was committed
        return entries

    def policy(self, version: str) -> str:
        """The text stored for a version that the log knows."""
        with self._reading() as db:
            found = "SELECT policy FROM policies WHERE version = ?"
            row = None if db is None else db.execute(found, (version,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise self._damaged(f"the policy file of {version} is missing")
        if version_of(row[0]) != version:
            raise self._damaged(f"the bytes stored for {version} have a different hash")
        return row[0].decode()

    def check(self) -> tuple[Log, list[LogFault]]:
        """All rows read again: the log up to its first bad entry, and what is wrong."""
        log, faults = Log(), list[LogFault]()
        if not self.path.is_file():
            return log, faults
        try:
            with closing(connect(self.path, _LAYOUT, write=False)) as db:
                faults += [*_log_faults(db, log), *_policy_faults(db, log)]
                for (text,) in db.execute("PRAGMA integrity_check"):
                    if text != "ok":
                        faults.append(LogFault("the file", " ".join(text.split())))
        except (errors.PcoError, *_UNREADABLE) as error:
            faults.append(LogFault("the file", str(error)))
        return log, faults

    def _fault(self, error: Exception) -> errors.StoreError:
        if isinstance(error, sqlite3.Error):
            return store_error(error, self.path, _LAYOUT.what)
        return self._damaged(str(error))

    def _damaged(self, fault: str) -> errors.RegistryDamaged:
        message = f"the registry {self.path} is damaged: {fault}"
        return errors.RegistryDamaged(message, hint=_VERIFY)

    def _refresh(self, db: sqlite3.Connection) -> None:
        """Reads what came since; all of it where another file is in this one's place."""
        if self._log.entries:
            last = "SELECT hash FROM log WHERE seq = ?"
            if db.execute(last, (len(self._log.entries),)).fetchone() != (self._log.head,):
                self._log = Log()
        for fault in _log_faults(db, self._log):
            raise self._damaged(str(fault))

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection | None]:
        """A connection to read from; None where nothing was written yet."""
        with self._lock:
            if not self.path.is_file():
                yield None
                return
            with closing(connect(self.path, _LAYOUT, write=False)) as db:
                try:
                    yield db
                except _UNREADABLE as error:
                    raise self._fault(error) from error


def _log_faults(db: sqlite3.Connection, log: Log) -> list[LogFault]:
    """Reads on where the log ends; the first row that cannot follow, if one cannot."""
    # An empty log starts below the first number, so that a row put before it is noticed.
    wanted = f"SELECT {_COLUMNS} FROM log {'WHERE seq > ?' if log.entries else ''} ORDER BY seq"
    for row in db.execute(wanted, (len(log.entries),) if log.entries else ()):
        try:
            log.add(LogEntry.of(dict(zip(_FIELDS, row, strict=True))))
        except Broken as fault:
            return [LogFault(f"row {row[0]} of the log", str(fault))]
    return []


def _policy_faults(db: sqlite3.Connection, log: Log) -> list[LogFault]:
    faults, found = list[LogFault](), set[object]()
    for number, version, policy in db.execute("SELECT * FROM policies ORDER BY id"):
        found.add(version)
        if not isinstance(policy, bytes) or version_of(policy) != version:
            wrong = f"its bytes do not match {version}"
            faults.append(LogFault(f"row {number} of the policies", wrong))
    missing = "the policy file that it stored is missing"
    lacking = [(v, entry.seq) for v, entry in log.versions.items() if v not in found]
    return faults + [LogFault(f"row {seq} of the log", f"{missing}: {v}") for v, seq in lacking]
