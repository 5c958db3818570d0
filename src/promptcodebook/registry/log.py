"""The log of a registry: a chain of entries, and all that follows from it.

Each entry holds the hash of the one before it, so a later entry shows any change to an earlier one.
What each ref points to and which versions exist follows from the entries alone. A version is named
by the SHA-256 of its policy file's bytes: `sha256:` and 64 digits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, cast

from promptcodebook.errors import ConfigError, RefNotFound, did_you_mean
from promptcodebook.policy.references import REF, VERSION, WORD

LATEST = "latest"
"""The ref of each codebook to its newest version; never promoted by hand."""
FREEZE, IMPORT, PROMOTE, ROLLBACK, ATTEST = "freeze", "import", "promote", "rollback", "attest"
_STORES = (FREEZE, IMPORT)
FIRST = "0" * 64
"""What the first entry has in place of the hash before it."""
_NUMBERED = re.compile(r"v\d+", re.IGNORECASE)
"""No name of a ref: MLflow keeps these for itself."""


class Broken(Exception):
    """Why an entry cannot follow."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log; a move of a ref unless `action` is 'attest'.

    `time` is ISO 8601 (UTC). `ref` is NAME@REF, '' for an attestation. `before` and `after` are
    versions, `before` '' for a new ref. `facts` is a JSON object as text: what is known of a stored
    version, what a gate found, what is attested. `hash` is over all the rest.
    """

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
    def of(cls, values: Mapping[str, object]) -> Entry:
        """Raises Broken unless these are the fields of an entry, each of its type."""
        kinds = {each.name: int if each.name == "seq" else str for each in fields(cls)}
        if {name: type(value) for name, value in values.items()} != kinds:
            raise Broken("it does not have the fields of an entry, each of its type")
        return cls(**cast("dict[str, Any]", dict(values)))

    def sealed(self) -> Entry:
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


def canonical(tree: Mapping[str, object]) -> str:
    """The one way to write these values as JSON: sorted, without blanks, in ASCII."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def version_of(policy: bytes) -> str:
    """The name of a policy file of these bytes."""
    return f"sha256:{hashlib.sha256(policy).hexdigest()}"


def check_name(name: str) -> str:
    """The name of a codebook. Raises ConfigError."""
    if not re.fullmatch(WORD, name):
        raise ConfigError(
            f"a codebook cannot be called {name!r}",
            hint="up to 60 letters, digits, '-', '_' and '.', such as tickets",
        )
    return name


def check_ref(ref: str) -> str:
    """A ref that may be promoted to and rolled back, NAME@REF. Raises ConfigError."""
    match = REF.fullmatch(ref)
    if match is None or _NUMBERED.fullmatch(match[2]):
        raise ConfigError(
            f"{ref!r} is no ref",
            hint="a codebook, '@' and a word, such as tickets@production; not a number like v1",
        )
    if match[2].lower() == LATEST:
        raise ConfigError(
            f"{ref} points to the newest version and is not moved by hand",
            hint=f"take another word, such as {match[1]}@production",
        )
    return ref


class Log:
    """The entries so far, and what follows from them. Grows, never shrinks."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.versions: dict[str, Entry] = {}
        """Every version with the entry that stored it first, in order."""
        self._history: dict[str, list[str]] = {}

    def add(self, entry: Entry) -> None:
        """Takes the next entry. Raises Broken, and stays as it was, where anything is wrong."""
        if entry.seq != self.next:
            raise Broken(f"it says that it is entry {entry.seq}, and {self.next} comes next")
        if entry.digest != entry.hash:
            raise Broken("its hash does not match its content")
        if entry.previous != self.head:
            raise Broken("it does not follow the entry before it: the chain is broken")
        try:
            is_object = isinstance(json.loads(entry.facts), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise Broken("its facts are no JSON object")
        if entry.action not in (*_STORES, PROMOTE, ROLLBACK, ATTEST):
            raise Broken(f"there is no action {entry.action!r}")
        self._check_move(entry)
        self.follow(entry)

    def _check_move(self, entry: Entry) -> None:
        if (entry.action == ATTEST) != (entry.ref == ""):
            raise Broken(f"{entry.action!r} does not go with {entry.ref or 'no ref'}")
        if entry.before != (self.at(entry.ref) or ""):
            raise Broken(f"{entry.ref} did not point to the version that it names")
        if entry.after == entry.before:
            raise Broken(f"{entry.ref} pointed to that version already")
        if entry.action not in _STORES and entry.after not in self.versions:
            raise Broken(f"no entry stored its version {entry.after}")
        if entry.action == ROLLBACK and entry.after not in self.history(entry.ref)[:-1]:
            raise Broken(f"{entry.ref} was never at {entry.after}")

    def follow(self, entry: Entry) -> None:
        """Takes an entry unchecked."""
        self.entries.append(entry)
        if entry.action in _STORES:
            self.versions.setdefault(entry.after, entry)
        history = self._history.setdefault(entry.ref, []) if entry.ref else []
        if entry.action == ROLLBACK and entry.after in history:
            while history[-1] != entry.after:
                history.pop()
        else:
            history.append(entry.after)

    @property
    def head(self) -> str:
        """The hash of the last entry, which depends on all entries."""
        return self.entries[-1].hash if self.entries else FIRST

    @property
    def next(self) -> int:
        """The number of the entry that comes next, from 1."""
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
        """The version that each ref points to, by name."""
        return {ref: self._history[ref][-1] for ref in sorted(self._history)}

    def about(self, ref: str) -> tuple[Entry, ...]:
        """The entries of one ref (NAME@REF), of one codebook (NAME or NAME@), or all ('')."""
        name, _, word = ref.partition("@")
        if word:
            return tuple(entry for entry in self.entries if entry.ref == ref)
        own = f"{name}@" if name else ""
        return tuple(entry for entry in self.entries if entry.ref.startswith(own))

    def resolve(self, text: str) -> str:
        """The version that NAME@REF or sha256:DIGITS means. Raises RefNotFound."""
        if not VERSION.fullmatch(text):
            if (version := self.at(text)) is not None:
                return version
            raise RefNotFound(
                f"no ref {text!r} in the registry{did_you_mean(text, self._history)}",
                hint="pco codebook list shows the refs",
            )
        found = [version for version in self.versions if version.startswith(text)]
        if len(found) == 1:
            return found[0]
        several = f"{len(found)} versions begin with {text}" if found else f"no version {text}"
        raise RefNotFound(
            f"{several} in the registry",
            hint="give more digits" if found else "pco codebook list shows what there is",
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Sealed entries that follow the log's head, and the policy files they store, by version."""

    entries: tuple[Entry, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict[str, str])


Propose = Callable[[Log], Proposal]
"""What to add to a log as it is now."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


class Storage(Protocol):
    """A place for one log and its policy files, shared by processes. An entry is there whole or not
    at all. Raises StoreError; RegistryDamaged for rows that are not as written."""

    @property
    def place(self) -> str:
        """What messages call it."""
        ...

    def read(self) -> Log:
        """The log with all that is committed by now, to be read only."""
        ...

    def append(self, propose: Propose) -> tuple[Entry, ...]:
        """Adds what `propose` asks for to the log as it is then; returns the new entries."""
        ...

    def policy(self, version: str) -> bytes:
        """The bytes stored for a version that the log knows, not checked."""
        ...

    def poll(self, ref: str) -> str | None:
        """The version that a ref points to now, as cheaply as possible; None for no such ref."""
        ...

    def check(self) -> tuple[Log, list[Fault]]:
        """All rows read again: the log up to its first bad entry, and what is wrong."""
        ...
