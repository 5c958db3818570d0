"""What a registry needs of the place where it lies, and the values that it stores there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from promptcodebook.errors import ConfigError
from promptcodebook.policy.file import PolicyFile
from promptcodebook.registry.log import Entry, Log


def _none() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Proposal:
    """Sealed entries that follow the log's head, and the policy files they store, by version."""

    entries: tuple[Entry, ...] = ()
    policies: Mapping[str, str] = field(default_factory=_none)


Propose = Callable[[Log], Proposal]
"""What is to be added to a log as it stands. Asked again when another process was quicker."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was found: where, and its entry, its policy file (version and bytes), or what is
    wrong with it (`fault`)."""

    place: str
    entry: Entry | None = None
    policy: tuple[str, bytes] | None = None
    fault: str = ""


class Storage(Protocol):
    """A place for one log and its policy files, shared by processes.

    Each entry is there whole or not at all, whatever becomes of who writes it, and entries that
    were read once stay. Raises StoreError; RegistryDamaged for rows that are not as written.
    """

    @property
    def place(self) -> str:
        """What it is called in messages."""
        ...

    def read(self) -> Log:
        """The log with all that is committed by now; for looking only."""
        ...

    def append(self, propose: Propose) -> tuple[Entry, ...]:
        """Adds what `propose` asks for to the log as it stands then; the entries that came in."""
        ...

    def policy(self, version: str) -> bytes:
        """The bytes stored for a version that the log knows, not checked."""
        ...

    def poll(self, ref: str) -> str | None:
        """Where a ref stands now, as cheaply as it can be known; None where it does not exist."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every row as it lies there, damaged ones too: entries in order, then policy files, then
        what does not fit together."""
        ...

    def close(self) -> None: ...


def _no_fields() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a version came from, outside of its hash.

    `parent` is the version that it was made from ('' = none that is known), `run` a run's id,
    `step` the updates behind it (None = not known), `score` its validation score, `configuration`
    the run's settings without secrets, `data` the fingerprint of each split, `written_by` the
    version of this library. `digest` is over the policy without what its file says `about` it:
    versions of one digest prompt alike.
    """

    parent: str = ""
    run: str = ""
    step: int | None = None
    score: float | None = None
    configuration: Mapping[str, Any] = field(default_factory=_no_fields)
    data: Mapping[str, Any] = field(default_factory=_no_fields)
    written_by: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A policy that is stored: its name (`sha256:` and digits), where it came from, when and by
    whom it was stored first, and the refs that stand at it."""

    version: str
    facts: Mapping[str, Any]
    time: str
    who: str
    refs: tuple[str, ...] = ()


def mark_frozen(file: PolicyFile, instincts: Collection[int]) -> PolicyFile:
    """The policy with these instincts (0..K-1) marked so that a training which starts from it does
    not rewrite them. Raises ConfigError for one that it does not have."""
    size = len(file.codebook)
    outside = [k for k in instincts if not 0 <= k < size]
    if outside:
        raise ConfigError(
            f"the codebook has no index {outside[0]}: it has {size} instincts",
            hint=f"choose one of 0..{size - 1}",
        )
    entries = [
        entry.model_copy(update={"frozen": entry.frozen or k in instincts})
        for k, entry in enumerate(file.codebook)
    ]
    return file.model_copy(update={"codebook": tuple(entries)})
