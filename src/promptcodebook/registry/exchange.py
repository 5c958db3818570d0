"""A registry, or single versions of it, as JSON lines to hand on.

    {"kind":"registry","format":"promptcodebook registry 1",...}
    {"kind":"version","version":"sha256:...","policy":"...","facts":{...}}     each version
    {"kind":"entry","entry":{...}}                                            each entry of the log
    {"kind":"end","lines":N}

Every line carries the hash of all lines up to it (`sum`), so an import names a line with a changed
byte before it takes anything in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from promptcodebook.errors import RegistryDamaged, StoreError
from promptcodebook.policy.file import parse_policy_file
from promptcodebook.registry.log import (
    IMPORT,
    LATEST,
    Broken,
    Entry,
    Log,
    Proposal,
    canonical,
    check_name,
    version_of,
)
from promptcodebook.registry.registry import Registry

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
    trees: list[dict[str, Any]] = [{"kind": "registry", "format": FORMAT}]
    for version in wanted or registry.versions():
        text = registry.text(version.version)
        stored = {"version": version.version, "policy": text, "facts": dict(version.facts)}
        trees.append({"kind": "version", **stored})
    trees += [{"kind": "entry", "entry": asdict(entry)} for entry in log]
    trees.append({"kind": "end", "lines": len(trees) + 1})
    sum_ = ""
    for tree in trees:
        sum_ = _sum(sum_, tree)
        yield canonical({**tree, "sum": sum_}) + "\n"


def import_lines(registry: Registry, lines: Iterable[bytes], name: str = "") -> Taken:
    """Takes in what was exported, once all of it is verified.

    A whole registry comes into an empty one, or into one whose log it continues, so that both have
    the same head. `name` takes the versions alone, as new entries of this codebook: for single
    versions, and for a registry with another log.

    Raises RegistryDamaged naming the first bad line, StoreError where the logs differ.
    """
    versions, theirs = _read(lines)
    before = len(registry.versions())
    if name:
        ref = f"{check_name(name)}@{LATEST}"
        entries = sum(
            registry.store(tree["policy"], ref, IMPORT, tree["facts"]) is not None
            for tree in versions.values()
        )
    elif not theirs.entries:
        raise StoreError(
            "the file holds single versions and no log",
            hint="name the codebook that they belong to: pco codebook import FILE --name NAME",
        )
    else:
        policies = {version: str(tree["policy"]) for version, tree in versions.items()}
        entries = _take_log(registry, theirs, policies)
    return Taken(len(registry.versions()) - before, entries, registry.storage.read().head)


def _take_log(registry: Registry, theirs: Log, policies: Mapping[str, str]) -> int:
    for version, text in policies.items():
        parse_policy_file(text, version)

    def propose(log: Log) -> Proposal:
        shared = min(len(log.entries), len(theirs.entries))
        if log.entries[:shared] != theirs.entries[:shared]:
            raise StoreError(
                f"the registry {registry.storage.place} has a log of its own, which this one does "
                "not continue",
                hint="take the versions alone: pco codebook import FILE --name NAME",
            )
        new = tuple(theirs.entries[shared:])
        return Proposal(new, {entry.after: policies[entry.after] for entry in new})

    return len(registry.storage.append(propose))


def _sum(before: str, tree: Mapping[str, object]) -> str:
    return hashlib.sha256(f"{before}\n{canonical(tree)}".encode()).hexdigest()


def _read(lines: Iterable[bytes]) -> tuple[dict[str, dict[str, Any]], Log]:
    """The version lines by version, and the log: each line is verified, and none is missing."""
    versions, log = dict[str, dict[str, Any]](), Log()
    number, sum_, ended = 0, "", False
    for number, line in enumerate(lines, 1):
        try:
            if ended:
                raise Broken("it comes after the end")
            tree = _parse(line, sum_)
            sum_, ended = tree["sum"], tree["kind"] == "end"
            _take(tree, versions, log, number)
        except (Broken, TypeError, ValueError) as fault:
            what = str(fault) if isinstance(fault, Broken) else "a value in it is of another kind"
            raise _damaged(number, what) from None
    if not ended:
        raise _damaged(number + 1, "it is missing: the file ends before its end")
    return versions, log


def _damaged(number: int, fault: str) -> RegistryDamaged:
    return RegistryDamaged(
        f"line {number} of the file: {fault}; nothing was taken in",
        hint="export it again, or get another copy",
    )


def _parse(line: bytes, sum_: str) -> dict[str, Any]:
    try:
        tree: Any = json.loads(line)
        keys = _KINDS[tree["kind"]]
        if sorted(tree) != sorted((*keys, "kind", "sum")):
            raise KeyError
    except (ValueError, RecursionError):
        raise Broken("it is not JSON as it was written") from None
    except (KeyError, TypeError):
        raise Broken("it is no line of an exported registry") from None
    try:
        plain = {key: tree[key] for key in (*keys, "kind")}
        same = f"{canonical({**plain, 'sum': _sum(sum_, plain)})}\n".encode() == line
    except ValueError:  # a number that JSON does not have
        same = False
    if not same:
        raise Broken("it is not as it was written: its hash differs")
    return tree


def _take(tree: dict[str, Any], versions: dict[str, dict[str, Any]], log: Log, number: int) -> None:
    first = tree["kind"] == "registry"
    if first != (number == 1) or (first and tree["format"] != FORMAT):
        raise Broken(f"a file of the format {FORMAT!r} does not have it there")
    match tree["kind"]:
        case "version":
            version, text = tree["version"], tree["policy"]
            if version_of(str(text).encode("utf-8", "surrogatepass")) != version:
                raise Broken(f"its policy is not {version}")
            versions[version] = {"policy": str(text), "facts": dict(tree["facts"])}
        case "entry":
            entry = Entry.of(tree["entry"])
            log.add(entry)
            if entry.after not in versions:
                raise Broken(f"the file does not hold its version {entry.after}")
        case "end" if tree["lines"] != number:
            raise Broken("it is the last one of another file")
        case _:
            pass
