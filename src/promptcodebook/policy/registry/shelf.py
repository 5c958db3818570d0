"""Where a registry lies: the seam between what a registry does and what it is kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from promptcodebook.policy.registry.log import Entry, Log


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


class Shelf(Protocol):
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
