"""The audit log of a registry: a chain of entries, and all that follows from it.

Each entry holds the hash of the one before it, so that none can be changed, left out or put in
without every later one telling. Where a ref stands, which versions there are and what is known of
them follows from the entries alone (`Log`): nothing else says it, so nothing else can disagree.

A version is named by the SHA-256 of its policy file's bytes, `sha256:` and 64 digits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from promptcodebook.errors import ConfigError, RefNotFound, did_you_mean
from promptcodebook.policy.references import REF, VERSION, WORD

LATEST = "latest"
"""The ref of every codebook that stands at what was stored last; it is never promoted by hand."""
FREEZE, IMPORT, PROMOTE, ROLLBACK, ATTEST = "freeze", "import", "promote", "rollback", "attest"
LOG_NAME = "pco-registry-log"
"""No name of a codebook: on a server that knows prompts only, the log is the one of this name."""
_STORES = (FREEZE, IMPORT)
FIRST = "0" * 64
"""What the first entry has in place of the hash before it."""
_SCHEME = "sha256:"
_NAME = re.compile(WORD)
_NUMBERED = re.compile(r"v\d+", re.IGNORECASE)
"""No name of a ref: MLflow keeps these for itself."""


class Broken(Exception):
    """An entry that cannot stand where it stands, in words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log; a move of a ref unless `action` is 'attest'.

    `time` is ISO 8601 (UTC). `ref` is NAME@REF, '' for an attestation. `before` and `after` are
    versions, `before` '' where the ref did not exist. `facts` is a JSON object as text: what is
    known of a version that is stored, what a gate found, what is attested. `hash` is over all the
    rest, `previous` included.
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
        names = [field.name for field in fields(cls)]
        if sorted(values) != sorted(names):
            raise Broken("it does not have the fields of an entry")
        for name in names:
            if type(values[name]) is not (int if name == "seq" else str):
                raise Broken(f"{name} is not {'a number' if name == 'seq' else 'a text'}")
        return cls(**cast("dict[str, Any]", dict(values)))

    def sealed(self) -> Entry:
        """The entry with its hash."""
        return replace(self, hash=self.digest)

    @property
    def digest(self) -> str:
        """The hash that the entry must bear: SHA-256 (hex) over its canonical JSON without it."""
        tree = asdict(self)
        del tree["hash"]
        return hashlib.sha256(canonical(tree).encode()).hexdigest()

    @property
    def known(self) -> dict[str, Any]:
        """`facts` as a tree."""
        return json.loads(self.facts)

    @property
    def name(self) -> str:
        """The codebook that the entry is about; '' for an attestation."""
        return self.ref.partition("@")[0]


def canonical(tree: Mapping[str, object]) -> str:
    """The one way in which these values are written as JSON: sorted, without blanks, in ASCII."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def version_of(policy: bytes) -> str:
    """What a policy file of these bytes is called."""
    return _SCHEME + hashlib.sha256(policy).hexdigest()


def check_name(name: str) -> str:
    """The name of a codebook. Raises ConfigError."""
    if not _NAME.fullmatch(name) or name == LOG_NAME:
        raise ConfigError(
            f"a codebook cannot be called {name!r}",
            hint="up to 60 letters, digits, '-', '_' and '.', such as tickets",
        )
    return name


def check_ref(ref: str) -> str:
    """A ref that may be promoted to and rolled back, NAME@REF. Raises ConfigError."""
    match = REF.fullmatch(ref)
    if match is None or match[1] == LOG_NAME or _NUMBERED.fullmatch(match[2]):
        raise ConfigError(
            f"{ref!r} is no ref",
            hint="a codebook, '@' and a word, such as tickets@production; not a number like v1",
        )
    if match[2].lower() == LATEST:
        raise ConfigError(
            f"{ref} stands at what was stored last and is not moved by hand",
            hint=f"take another word, such as {match[1]}@production",
        )
    return ref


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class Log:
    """The entries so far, and what follows from them. Grows, never shrinks."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._history: dict[str, list[str]] = {}
        self._stored: dict[str, Entry] = {}
        self._hashes = {FIRST}

    def check(self, entry: Entry) -> None:
        """Raises Broken where the entry cannot come next: for its number, its hash, the hash before
        it, where it says its ref stood, its version, or its facts."""
        if entry.seq != len(self._entries) + 1:
            raise Broken(f"it says that it is entry {entry.seq}, and {self.next} comes next")
        if entry.digest != entry.hash:
            raise Broken("its content does not have the hash that it bears")
        if entry.previous != self.head:
            raise Broken("it does not follow the entry before it: the chain is broken")
        if not _is_object(entry.facts):
            raise Broken("its facts are no JSON object")
        self._check_move(entry)

    def add(self, entry: Entry) -> None:
        """Takes the next entry. Raises Broken, and stays as it was, where anything is wrong."""
        self.check(entry)
        self._entries.append(entry)
        self._hashes.add(entry.hash)
        if entry.action in _STORES:
            self._stored.setdefault(entry.after, entry)
        if entry.action == ROLLBACK:
            history = self._history[entry.ref]
            while history[-1] != entry.after:
                history.pop()
        elif entry.action != ATTEST:
            self._history.setdefault(entry.ref, []).append(entry.after)

    def _check_move(self, entry: Entry) -> None:
        if entry.action not in (*_STORES, PROMOTE, ROLLBACK, ATTEST):
            raise Broken(f"nothing is called {entry.action!r}")
        if (entry.action == ATTEST) != (entry.ref == ""):
            raise Broken(f"{entry.action!r} is not said of {entry.ref or 'no ref'}")
        if entry.before != (self.at(entry.ref) or ""):
            raise Broken(f"{entry.ref} did not stand where it says that it did")
        if entry.after == entry.before:
            raise Broken(f"{entry.ref} stood there already")
        if entry.action in _STORES:
            return
        if entry.after not in self._stored:
            raise Broken(f"no entry stored its version {entry.after}")
        if entry.action == ROLLBACK and entry.after not in self._history.get(entry.ref, ())[:-1]:
            raise Broken(f"{entry.ref} was never at {entry.after}")

    @property
    def head(self) -> str:
        """The hash of the last entry: it stands for the whole log."""
        return self._entries[-1].hash if self._entries else FIRST

    @property
    def next(self) -> int:
        """The number of the entry that comes next, from 1."""
        return len(self._entries) + 1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def holds(self, digest: str) -> bool:
        """Whether this is the hash of an entry, or the one before the first."""
        return digest in self._hashes

    def at(self, ref: str) -> str | None:
        """The version that a ref stands at."""
        history = self._history.get(ref)
        return history[-1] if history else None

    def history(self, ref: str) -> Sequence[str]:
        """The versions that a ref can be rolled back through, the one that it stands at last."""
        return tuple(self._history.get(ref, ()))

    @property
    def refs(self) -> dict[str, str]:
        """Where each ref stands, by name."""
        return {ref: self._history[ref][-1] for ref in sorted(self._history)}

    @property
    def versions(self) -> dict[str, Entry]:
        """Every version with the entry that stored it first, in order."""
        return dict(self._stored)

    @property
    def names(self) -> tuple[str, ...]:
        """The codebooks."""
        return tuple(dict.fromkeys(ref.partition("@")[0] for ref in self._history))

    def about(self, ref: str) -> tuple[Entry, ...]:
        """The entries of one ref (NAME@REF), of one codebook (NAME or NAME@), or all ('')."""
        if not ref:
            return tuple(self._entries)
        whole = ref if "@" in ref else f"{ref}@"
        if whole.endswith("@"):
            return tuple(entry for entry in self._entries if entry.ref.startswith(whole))
        return tuple(entry for entry in self._entries if entry.ref == whole)

    def resolve(self, text: str) -> str:
        """The version that NAME@REF or sha256:DIGITS means. Raises RefNotFound."""
        if VERSION.fullmatch(text):
            return self._by_start(text)
        version = self.at(text)
        if version is None:
            raise RefNotFound(
                f"no ref {text!r} in the registry{did_you_mean(text, self._history)}",
                hint="pco codebook list shows the refs",
            )
        return version

    def _by_start(self, text: str) -> str:
        found = [version for version in self._stored if version.startswith(text)]
        if len(found) == 1:
            return found[0]
        several = f"{len(found)} versions begin with {text}" if found else f"no version {text}"
        raise RefNotFound(
            f"{several} in the registry",
            hint="give more digits" if found else "pco codebook list shows what there is",
        )
