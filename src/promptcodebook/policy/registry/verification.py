"""Every hash of a registry computed anew, and the chain walked from its first entry."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.policy.registry.log import FIRST, Broken, Entry, Log, version_of
from promptcodebook.policy.registry.shelf import Row, Shelf


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """How many entries and versions were found whole, the last entry's hash, and the faults, the
    first of the log's rows first."""

    entries: int
    versions: int
    head: str
    faults: tuple[Fault, ...]

    @property
    def passes(self) -> bool:
        return not self.faults


class _Walk:
    """The rows so far. After the first break each later entry is held to its own hash alone."""

    def __init__(self, head: str) -> None:
        self.log = Log()
        self.faults: list[Fault] = []
        self._wanted = head
        self._broken = False
        self._policies: dict[str, str] = {}

    def take(self, row: Row) -> None:
        if row.fault:
            self._broken = self._broken or row.policy is None
            self.faults.append(Fault(row.place, row.fault))
        elif row.entry is not None:
            self._take_entry(row.place, row.entry)
        elif row.policy is not None:
            self._take_policy(row.place, *row.policy)

    def _take_entry(self, place: str, entry: Entry) -> None:
        try:
            if not self._broken:
                self.log.add(entry)
            elif entry.digest != entry.hash:
                raise Broken("its content does not have the hash that it bears")
        except Broken as fault:
            self._broken = True
            self.faults.append(Fault(place, str(fault)))

    def _take_policy(self, place: str, version: str, policy: bytes) -> None:
        if version_of(policy) != version:
            self.faults.append(Fault(place, f"its bytes are not those of {version}"))
        elif not self._broken and version not in self.log.versions:
            self.faults.append(Fault(place, f"no entry of the log stored {version}"))
        self._policies[version] = place

    def end(self) -> Verification:
        versions = self.log.versions
        for version, entry in versions.items():
            if version not in self._policies:
                what = f"the policy file that it stored is missing: {version}"
                self.faults.append(Fault(f"row {entry.seq} of the log", what))
        if self._wanted and not self.log.holds(self._wanted):
            what = f"no entry has the hash {self._wanted}: entries are missing at its end"
            self.faults.append(Fault("the log", what))
        found = sum(version in self._policies for version in versions)
        return Verification(len(self.log), found, self.log.head, tuple(self.faults))


def verify(shelf: Shelf, head: str = "") -> Verification:
    """Recomputes the hash of every entry and of every policy file, and follows the chain.

    A chain does not tell that its last entries were taken off: `head`, the hash of an entry that
    was noted elsewhere, does ('' = none was).
    """
    walk = _Walk(head if head != FIRST else "")
    for row in shelf.rows():
        walk.take(row)
    return walk.end()
