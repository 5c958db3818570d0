"""`pco codebook freeze`, `promote`, `rollback` and so on: versions in the registry, and its log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, note, wrap_text
from promptcodebook.cli.settings import Json, Ref, Who, command_group
from promptcodebook.errors import ConfigError, StoreError
from promptcodebook.paths import runs_dir
from promptcodebook.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from promptcodebook.policy.file import PolicyFile
    from promptcodebook.policy.registry.log import Entry
    from promptcodebook.policy.registry.shelf import Version

app = command_group()

_DIGITS = 12
"""Of a version, where it is shown for people; sha256: and these are enough to type."""
_FAULTS = 20
"""Faults that are printed one by one."""

_Why = Annotated[str, typer.Option("--why", help="The reason, for the log.")]
_MovingRef = Annotated[str, typer.Argument(metavar="NAME@REF", help="E.g. tickets@production.")]


@app.command("list")
def list_refs(as_json: Json = False) -> None:
    """Where every ref stands, and the versions that there are."""
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry() as registry:
        refs, versions = registry.refs(), registry.versions()
    if as_json:
        emit({"refs": refs, "versions": [_version_json(version) for version in versions]})
    elif not versions:
        print(f"no versions in the registry {registry.shelf.place}")
    else:
        print(columns([{"ref": ref, "version": _short(at)} for ref, at in refs.items()]))
        print(f"\n{columns([_version_cells(version) for version in versions])}")
        if simulated := [_short(each.version) for each in versions if _simulated(each)]:
            print(f"\n{wrap_text('scored on the simulated model: ' + ', '.join(simulated), '')}")


@app.command()
def freeze(
    ref: Ref,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The codebook, e.g. tickets.")],
    instinct: Annotated[
        list[int] | None,
        typer.Option(
            "--instinct",
            help="Mark this instinct (0..K-1) as frozen in the version: a training that starts "
            "from it does not rewrite it. May be repeated.",
        ),
    ] = None,
    why: _Why = "",
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Store a policy as a version that never changes; NAME@latest moves to it."""
    from dataclasses import replace

    from promptcodebook.policy.references import facts_of, resolve
    from promptcodebook.policy.registry.registry import open_registry
    from promptcodebook.policy.registry.shelf import mark_frozen

    reference = resolve(runs_dir(), ref)
    text, facts = reference.text, replace(facts_of(reference), parent=reference.version)
    if instinct:
        text = mark_frozen(reference.file, instinct).text()
    with open_registry(who=who) as registry:
        version = registry.freeze(text, name, facts, why)
        if as_json:
            emit(_version_json(version))
        else:
            print(f"{version.version}\n{name}@latest stands at it")


@app.command()
def promote(
    source: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="NAME@REF, sha256:DIGITS, a run or a policy file; the latter two "
            "are frozen first.",
        ),
    ],
    ref: _MovingRef,
    why: _Why = "",
    override: Annotated[
        str,
        typer.Option(
            metavar="REASON", help="Move it though the audit is missing or failed; logged."
        ),
    ] = "",
    without_judge: Annotated[
        bool,
        typer.Option(
            "--without-judge", help="Audits by the rules alone, with no model as judge; logged."
        ),
    ] = False,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Move NAME@REF to a version that passed `pco codebook audit`. What serves the ref picks it
    up."""
    from promptcodebook.policy.references import facts_of, resolve
    from promptcodebook.policy.registry.log import check_ref
    from promptcodebook.policy.registry.registry import AuditGate, open_registry

    name = check_ref(ref).partition("@")[0]
    reference = resolve(runs_dir(), source)
    with open_registry(who=who) as registry:
        version = reference.version
        if not version:
            facts = facts_of(reference)
            version = registry.freeze(reference.text, name, facts, why).version
        gate = AuditGate(registry.attestations, without_judge)
        entry = registry.promote(version, ref, why, override, gate)
        _show_move(ref, entry, version, as_json)


@app.command()
def rollback(
    ref: _MovingRef,
    to: Annotated[
        str, typer.Option(help="A version that it was at; without it, the one before.")
    ] = "",
    why: _Why = "",
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Move NAME@REF back to the version before, at once. Again: back one more."""
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry(who=who) as registry:
        entry = registry.rollback(ref, to, why)
        _show_move(ref, entry, entry.after, as_json)


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What pco codebook export wrote.")],
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Take the versions alone, as those of this codebook: for single versions, and "
            "where the registry has a log of its own.",
        ),
    ] = "",
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Take in what was exported, every line verified first."""
    from promptcodebook.policy.registry.exchange import import_lines
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry(who=who) as registry:
        try:
            with file.open("rb") as lines:
                taken = import_lines(registry, lines, name)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise ConfigError(
                f"cannot read {file}: {error.strerror}", hint="pco codebook export -o FILE"
            ) from error
    if as_json:
        emit({"versions": taken.versions, "entries": taken.entries, "head": taken.head})
    else:
        versions, entries = (
            plural(taken.versions, "version"),
            plural(taken.entries, "entry", "entries"),
        )
        print(f"new: {versions} and {entries} of the log")


@app.command()
def verify(
    head: Annotated[
        str,
        typer.Option(
            help="The hash of an entry that was noted elsewhere: the log must still hold it."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Recompute every hash and follow the chain; the first bad row is named, and the exit is 1.

    Note the head that it prints: a chain cannot tell that its last entries were taken off.
    """
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry() as registry:
        found, place = registry.verify(head), registry.shelf.place
    if as_json:
        faults = [{"place": fault.place, "what": fault.what} for fault in found.faults]
        emit({"passes": found.passes, "entries": found.entries, "versions": found.versions,
              "head": found.head, "faults": faults})  # fmt: skip
    elif found.passes:
        entries, versions = (
            plural(found.entries, "entry", "entries"),
            plural(found.versions, "version"),
        )
        print(f"whole: {entries}, {versions}\nhead {found.head}")
    else:
        more = len(found.faults) - _FAULTS
        shown = [f"  {fault}" for fault in found.faults[:_FAULTS]]
        print("\n".join([f"{place} is damaged; the first bad row is the first of these:", *shown]))
        print(f"  and {more} more" if more > 0 else "", end="\n" if more > 0 else "")
    if not found.passes:
        raise typer.Exit(1)


def export_registry(refs: Sequence[str], output: Path | None, as_json: bool) -> None:
    """Writes the whole registry, or single versions of it without the log, as JSON lines."""
    from promptcodebook.paths import whole_file
    from promptcodebook.policy.registry.exchange import export_lines
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry() as registry:
        lines = list(export_lines(registry, refs))
        if output is None:
            sys.stdout.writelines(lines)
            return
        try:
            with whole_file(output) as part, part.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(lines)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise ConfigError(
                f"cannot write {output}: {error.strerror}",
                hint="choose a folder that exists and has space",
            ) from error
    if as_json:
        emit({"file": str(output), "lines": len(lines)})
    else:
        note(f"wrote {output}")


def show_log(ref: str, as_json: bool) -> None:
    """Prints the moves of a ref (NAME@REF), of a codebook (NAME@), or all of them ('')."""
    from dataclasses import asdict

    from promptcodebook.policy.registry.registry import open_registry

    with open_registry() as registry:
        if ref and not ref.endswith("@"):
            registry.resolve(ref)  # says what there is instead
        entries = registry.history(ref)
    if as_json:
        emit([{**asdict(entry), "facts": entry.known} for entry in entries])
    elif entries:
        print(columns([_entry_cells(entry) for entry in entries]))
    else:
        print("the log is empty" if not ref else f"no entry is about {ref}")


def before_and_now(ref: str) -> tuple[PolicyFile, PolicyFile]:
    """The policy that a ref stood at before, and the one that it stands at."""
    from promptcodebook.policy.registry.registry import open_registry

    with open_registry() as registry:
        now, before = registry.policy(ref), registry.before(ref)
        if before is None:
            raise ConfigError(f"{ref} stood nowhere before", hint=f"pco codebook diff OTHER {ref}")
        return registry.policy(before), now


def _show_move(ref: str, entry: Entry | None, version: str, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        moved = None if entry is None else {**asdict(entry), "facts": entry.known}
        emit({"ref": ref, "version": version, "entry": moved})
    elif entry is None:
        print(f"{ref} stood at {version} already")
    else:
        print(f"{ref}: {_short(entry.before) or '(new)'} → {_short(version)}")


def _short(version: str) -> str:
    scheme, colon, digits = version.partition(":")
    return f"{scheme}{colon}{digits[:_DIGITS]}"


def _version_json(version: Version) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(version)


def _simulated(version: Version) -> bool:
    from promptcodebook.store.header import has_simulated

    return "score" in version.facts and has_simulated(version.facts.get("configuration"))


def _version_cells(version: Version) -> dict[str, Any]:
    known = version.facts
    score = known.get("score")
    return {
        "version": _short(version.version),
        "stored": _minute(version.time),
        "who": version.who,
        "run": known.get("run") or "",
        "step": "" if known.get("step") is None else str(known["step"]),
        "score": "" if score is None else f"{score:.3f}",
        "parent": _short(known.get("parent") or ""),
    }


def _entry_cells(entry: Entry) -> dict[str, Any]:
    return {
        "entry": str(entry.seq),
        "when": _minute(entry.time),
        "who": entry.who,
        "what": entry.action,
        "ref": entry.ref,
        "from": _short(entry.before),
        "to": _short(entry.after),
        "why": " ".join(_reasons(entry).split()),
    }


def _reasons(entry: Entry) -> str:
    known = entry.known
    if override := known.get("override"):
        return f"{entry.why} (override: {override})"
    return f"{entry.why} (without a judge)" if known.get("without_judge") else entry.why


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")
