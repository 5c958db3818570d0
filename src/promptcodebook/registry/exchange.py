"""A registry, or single versions of it, as a text to hand on: JSON, a line for each.

    {"kind":"registry","format":"promptcodebook registry 1",...}
    {"kind":"version","version":"sha256:...","policy":"...","facts":{...}}     each version
    {"kind":"entry","entry":{...}}                                            each entry of the log
    {"kind":"end","lines":N}

Every line bears the hash of all lines up to it (`sum`) and is written in one way only, so that a
byte that was changed is found, and its line named, before anything is taken in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from promptcodebook.errors import RegistryDamaged, StoreError
from promptcodebook.policy.file import parse_policy_file
from promptcodebook.registry.log import (
    IMPORT,
    LATEST,
    Broken,
    Entry,
    Log,
    canonical,
    check_name,
    version_of,
)
from promptcodebook.registry.registry import Registry
from promptcodebook.registry.storage import Proposal

FORMAT = "promptcodebook registry 1"
_KINDS = {"registry": ("format",), "version": ("version", "policy", "facts"), "entry": ("entry",),
          "end": ("lines",)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """What an import brought: versions that were not there before, entries, the last one's hash."""

    versions: int
    entries: int
    head: str


def export_lines(registry: Registry, sources: Iterable[str] = ()) -> Iterator[str]:
    """The lines, each with its line break; `sources` (NAME@REF, sha256:DIGITS) = these versions
    without the log, none = everything. Raises RefNotFound, RegistryDamaged."""
    wanted = [registry.version(source) for source in sources]
    log = () if wanted else registry.history()
    writer = _Lines()
    yield writer.line("registry", {"format": FORMAT})
    for version in wanted or registry.versions():
        text = registry.text(version.version)
        stored = {"version": version.version, "policy": text, "facts": dict(version.facts)}
        yield writer.line("version", stored)
    for entry in log:
        yield writer.line("entry", {"entry": asdict(entry)})
    yield writer.line("end", {"lines": writer.count + 1})


def import_lines(registry: Registry, lines: Iterable[bytes], name: str = "") -> Taken:
    """Takes in what was exported, once all of it was verified.

    A whole registry comes into an empty one, or into one whose log it continues, entry by entry as
    it is, so that both have the same head; one that it has nothing new for stays as it is. `name`
    takes the versions alone, as those of this codebook, each by an entry of its own: for single
    versions, and for a registry whose log is another one.

    Raises RegistryDamaged naming the first bad line, StoreError where the logs differ.
    """
    found = _read(lines)
    if name:
        return _take_versions(registry, found, check_name(name))
    if not found.entries:
        raise StoreError(
            "the file holds single versions and no log",
            hint="name the codebook that they belong to: pco codebook import FILE --name NAME",
        )
    return _take_log(registry, found)


def _take_log(registry: Registry, found: _Found) -> Taken:
    for version, text in found.policies.items():
        parse_policy_file(text, version)

    def propose(log: Log) -> Proposal:
        ours = [entry.hash for entry in log]
        theirs = [entry.hash for entry in found.entries]
        shared = min(len(ours), len(theirs))
        if ours[:shared] != theirs[:shared]:
            raise StoreError(
                f"the registry {registry.storage.place} has a log of its own, which this one does "
                "not continue",
                hint="take the versions alone: pco codebook import FILE --name NAME",
            )
        new = found.entries[shared:]
        stored = {entry.after for entry in new} - log.versions.keys()
        policies = {v: text for v, text in found.policies.items() if v in stored}
        return Proposal(tuple(new), policies)

    before = len(registry.versions())
    entries = registry.storage.append(propose)
    return Taken(len(registry.versions()) - before, len(entries), registry.storage.read().head)


def _take_versions(registry: Registry, found: _Found, name: str) -> Taken:
    before, entries = len(registry.versions()), 0
    for version, text in found.policies.items():
        moved = registry.store(text, f"{name}@{LATEST}", IMPORT, found.facts[version])
        entries += moved is not None
    return Taken(len(registry.versions()) - before, entries, registry.storage.read().head)


class _Lines:
    """Writes lines, or holds lines to be those that it would write."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = ""

    def line(self, kind: str, values: Mapping[str, object]) -> str:
        tree = {"kind": kind, **values}
        self.count += 1
        text = f"{self._sum}\n{canonical(tree)}"
        self._sum = hashlib.sha256(text.encode()).hexdigest()
        return canonical({**tree, "sum": self._sum}) + "\n"


@dataclass
class _Found:
    """What the lines hold, in order."""

    policies: dict[str, str] = field(default_factory=dict[str, str])
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    entries: list[Entry] = field(default_factory=list[Entry])


def _read(lines: Iterable[bytes]) -> _Found:
    """All lines, verified: each by itself, the log as a whole, and that nothing is missing."""
    found, held, log, ended = _Found(), _Lines(), Log(), False
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            if ended:
                raise Broken("it comes after the end")
            tree = _parse(line, held)
            ended = _take(tree, found, log, number)
        except Broken as fault:
            raise _damaged(number, str(fault)) from None
        except (TypeError, ValueError):
            raise _damaged(number, "a value in it is of another kind") from None
    if not ended:
        raise _damaged(number + 1, "it is missing: the file ends before its end")
    return found


def _damaged(number: int, fault: str) -> RegistryDamaged:
    return RegistryDamaged(
        f"line {number} of the file: {fault}; nothing was taken in",
        hint="export it again, or get another copy",
    )


def _parse(line: bytes, held: _Lines) -> dict[str, Any]:
    try:
        given: object = json.loads(line)
    except (ValueError, RecursionError):
        raise Broken("it is not JSON as it was written") from None
    tree = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    kind = tree.get("kind")
    keys = _KINDS.get(kind) if isinstance(kind, str) else None
    if keys is None or sorted(tree) != sorted((*keys, "kind", "sum")):
        raise Broken("it is no line of an exported registry")
    try:
        same = held.line(str(kind), {key: tree[key] for key in keys}).encode() == line
    except ValueError:  # a number that JSON does not have
        same = False
    if not same:
        raise Broken("it is not as it was written: its hash differs")
    return tree


def _take(tree: Mapping[str, Any], found: _Found, log: Log, number: int) -> bool:
    """Whether this was the last line."""
    kind = tree["kind"]
    if (kind == "registry") != (number == 1) or (kind == "registry" and tree["format"] != FORMAT):
        raise Broken(f"a file of the format {FORMAT!r} does not have it there")
    if kind == "version":
        version, text = str(tree["version"]), str(tree["policy"])
        if version_of(text.encode("utf-8", "surrogatepass")) != version:
            raise Broken(f"its policy is not {version}")
        found.policies[version], found.facts[version] = text, dict(tree["facts"])
    elif kind == "entry":
        entry = Entry.of(tree["entry"])
        log.add(entry)
        if entry.after not in found.policies:
            raise Broken(f"the file does not hold its version {entry.after}")
        found.entries.append(entry)
    elif kind == "end" and tree["lines"] != number:
        raise Broken("it is the last one of another file")
    return kind == "end"
