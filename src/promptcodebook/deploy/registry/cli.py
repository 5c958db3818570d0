"""The registry's commands, and `audit`, whose report decides what may be promoted."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import JsonValue

from promptcodebook.assemble import NO_DATA, OWN_LM, Sources, assemble, plan_data
from promptcodebook.base.paths import read_text
from promptcodebook.base.sync import run_sync
from promptcodebook.base.units import number, plural
from promptcodebook.cli import command
from promptcodebook.cli.command import Json, Unpaid, Who, columns, emit, note, options, wrap_text
from promptcodebook.config import Config
from promptcodebook.deploy.audit import report as auditing
from promptcodebook.deploy.audit.report import (
    AuditReport,
    HazardJudge,
    kind_in_words,
    part_in_words,
)
from promptcodebook.deploy.registry import registry as registering
from promptcodebook.deploy.registry.log import LogEntry, check_ref, version_of
from promptcodebook.errors import ConfigError, DataError, TaskError
from promptcodebook.lm.spec import any_simulated
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.references import Reference, stored_dataset
from promptcodebook.store.header import has_simulated
from promptcodebook.types import Example

_SHORT = 19  # characters of a version's name in a table: sha256: and twelve digits
_FAULTS = 20  # faults that are printed one by one
_COPIES = "copies of training data"

_Why = Annotated[str, typer.Option("--why", help="Reason for the log.")]
_MovingRef = Annotated[
    str, typer.Argument(metavar="NAME@REF", help="The ref, e.g. tickets@production.")
]


def list_versions(as_json: Json = False) -> None:
    """List all versions, and the version that each ref points to."""
    with registering.open_registry() as registry:
        refs, versions = registry.refs(), registry.versions()
    if as_json:
        emit({"refs": refs, "versions": [asdict(version) for version in versions]})
    elif not versions:
        print(f"no versions in the registry {registry.file.path}")
    else:
        print(columns([{"ref": ref, "version": at[:_SHORT]} for ref, at in refs.items()]))
        rows, simulated = list[dict[str, str]](), list[str]()
        for each in versions:
            known, score, step = each.facts, each.facts.get("score"), each.facts.get("step")
            name, stored = each.version[:_SHORT], each.time[:16].replace("T", " ")
            row = {"version": name, "stored": stored, "who": each.who}
            row["run"], row["step"] = known.get("run") or "", "" if step is None else str(step)
            row["score"], row["parent"] = number(score, missing=""), known.get("parent") or ""
            rows.append({**row, "parent": row["parent"][:_SHORT]})
            if "score" in known and has_simulated(known.get("configuration")):
                simulated.append(name)
        print(f"\n{columns(rows)}")
        if simulated:
            print(f"\n{wrap_text('scored on the simulated model: ' + ', '.join(simulated), '')}")


def freeze(
    ref: command.Ref,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The codebook's name, e.g. tickets.")],
    instinct: list[int] | None = typer.Option(
        None, help="Freeze this instinct (0..K-1); may be repeated."
    ),
    why: _Why = "",
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Store a policy as a version that never changes; NAME@latest moves to it.

    Training that starts from this version does not rewrite frozen instincts."""
    reference = command.resolved(ref, use=True)
    text, file = reference.text, reference.file
    if instinct:
        entries = list(file.codebook)
        for k in instinct:
            command.require_index(k, len(entries))
            entries[k] = entries[k].model_copy(update={"frozen": True})
        text = file.model_copy(update={"codebook": tuple(entries)}).text()
    facts = replace(_facts_of(reference), parent=reference.version)
    with registering.open_registry(who=who) as registry:
        version = registry.freeze(text, name, facts, why)
        tree = {**asdict(version), "caution": reference.caution}
        text = f"{version.version}\n{name}@latest points to it"
        command.show(lambda: tree, lambda: text, as_json=as_json)


def promote(
    source: Annotated[
        str,
        typer.Argument(metavar="REF", help="A version, or a run or policy file to freeze first."),
    ],
    ref: _MovingRef,
    why: _Why = "",
    override: str = typer.Option(
        "", metavar="REASON", help="Move the ref without a passing audit; this is logged."
    ),
    without_judge: bool = typer.Option(
        False, "--without-judge", help="Rely only on the audit's rules; this is logged."
    ),
    canary: str = typer.Option(
        "", metavar="SHARE", help="Try the version on this share of requests first, such as 10%."
    ),
    margin: float = typer.Option(
        0.0, min=-0.99, max=0.99, help="How much more a canary must earn than the current version."
    ),
    split: str = typer.Option(
        "conversation",
        metavar="conversation|caller|header:NAME",
        help="What stays on one version: a conversation (a request, if serve.sticky is off), "
        "a caller's key, or a header.",
    ),
    despite_verdict: bool = typer.Option(
        False, "--despite-verdict", help="Move the ref even if no verdict says to deploy."
    ),
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Move NAME@REF to a version that passed `pco registry audit`; servers that use the ref switch
    to it.

    With `--canary`, the ref moves once feedback shows that the version is better. The canary ends
    if feedback or failures show harm, or if you run `rollback`.
    """
    usage = "the version first, then NAME@REF: pco registry promote last tickets@production"
    name = check_ref(ref, usage).partition("@")[0]
    tried = _canary_of(canary, margin, split) if canary else None
    reference = command.resolved(source, use=True)
    with registering.open_registry(who=who) as registry:
        if not (version := reference.version):
            version = registry.freeze(reference.text, name, _facts_of(reference), why).version
        entry = registry.promote(version, ref, why, override, without_judge, tried, despite_verdict)
        _show_move(ref, entry, version, as_json, reference.caution)


def _canary_of(share: str, margin: float, split: str) -> dict[str, JsonValue]:
    digits, percent, _ = share.partition("%")
    try:
        part = float(digits) / (100 if percent else 1)
    except ValueError:
        part = 0.0
    if not 0 < part < 1:
        raise ConfigError(f"--canary {share} is not between 0 and 1", hint="--canary 10%")
    if not re.fullmatch(r"conversation|caller|header:[\w-]+", split, re.ASCII):
        message = f"--split {split!r} must be conversation, caller or header:NAME"
        raise ConfigError(message, hint="--split header:X-Session-Id")
    return {"share": part, "margin": margin, "split": split}


def _facts_of(reference: Reference) -> registering.Facts:
    header, best, about = reference.header, reference.best, reference.file.about
    if header is not None and best is not None:
        return registering.Facts(
            run=header.id,
            step=best.step + 1,
            score=best.score,
            configuration=header.settings,
            data=dict(header.fingerprints),
            written_by=header.version,
            verdict=reference.verdict,
        )
    run, score, data = (about.get(key) for key in ("run", "score", "data"))
    return registering.Facts(
        run=run if isinstance(run, str) else "",
        score=float(score) if isinstance(score, int | float) else None,
        data=cast("dict[str, Any]", data) if isinstance(data, dict) else {},
        written_by=str(about.get("version") or ""),
        verdict=reference.verdict,
    )


def rollback(
    ref: _MovingRef,
    to: str = typer.Option("", help="An earlier version of the ref; default: the previous one."),
    why: _Why = "",
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Move NAME@REF back to its previous version; repeat to go back further.

    Without `--to`, a rollback during a canary ends the canary; the ref does not move."""
    with registering.open_registry(who=who) as registry:
        entry = registry.rollback(ref, to, why)
        _show_move(ref, entry, entry.after, as_json)


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from pco registry export.")],
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Import an exported registry, after verifying every line."""
    try:
        data = read_text(file).encode()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8", hint="pco registry export -o FILE") from None
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise ConfigError(message, hint="pco registry export -o FILE") from error
    with registering.open_registry(who=who) as registry:
        taken = registering.import_lines(registry, io.BytesIO(data))
    entries = plural(taken.entries, "log entry", "log entries")
    text = f"new: {plural(taken.versions, 'version')} and {entries}"
    command.show(lambda: asdict(taken), lambda: text, as_json=as_json)


def verify(
    head: str = typer.Option("", help="Hash of an entry that the log must still contain."),
    as_json: Json = False,
) -> None:
    """Recompute every hash and check the chain; if a row is bad, name the first bad row and exit 1.

    Write down the printed head: the chain cannot show whether its last entries were removed."""
    with registering.open_registry() as registry:
        found, place = registry.verify(head), registry.file.path
    if as_json:
        emit({"passes": found.passes, **asdict(found)})
    elif found.passes:
        entries = plural(found.entries, "entry", "entries")
        print(f"intact: {entries}, {plural(found.versions, 'version')}\nhead {found.head}")
    else:
        more = len(found.faults) - _FAULTS
        print(f"{place} is damaged:", *found.faults[:_FAULTS], sep="\n  ")
        print(f"  and {more} more\n" if more > 0 else "", end="")
    if not found.passes:
        raise typer.Exit(1)


def show_log(ref: str, as_json: bool) -> None:
    with registering.open_registry() as registry:
        if ref and not ref.endswith("@"):
            registry.resolve(ref)  # says what there is instead
        entries = registry.history(ref)
    if as_json:
        emit([{**asdict(entry), "facts": entry.known} for entry in entries])
    elif entries:
        print(columns([_entry_cells(entry) for entry in entries]))
    else:
        print("the log is empty" if not ref else f"no entries about {ref}")


def _show_move(
    ref: str, entry: LogEntry | None, version: str, as_json: bool, caution: str = ""
) -> None:
    if as_json:
        moved = None if entry is None else {**asdict(entry), "facts": entry.known}
        emit({"ref": ref, "version": version, "caution": caution, "entry": moved})
    elif entry is None:
        print(f"{ref} already points to {version}")
    elif (tried := entry.canary) and "share" in tried:
        print(f"{ref}: {tried['share']:.3g} of requests try {version[:_SHORT]}")
        note("pco serve --feedback judges the canary, which otherwise never ends by itself")
    elif tried:
        print(f"{ref} does not move: its canary {version[:_SHORT]} ended")
    else:
        print(f"{ref}: {entry.before[:_SHORT] or '(new)'} → {version[:_SHORT]}")


def _entry_cells(entry: LogEntry) -> dict[str, Any]:
    known, why = entry.known, entry.why
    if override := known.get("override"):
        why += f" (override: {override})"
    elif known.get("without_judge"):
        why += " (without a judge)"
    when, tried = entry.time[:16].replace("T", " "), entry.canary
    what = {"what": entry.action, "ref": str(tried.get("ref", entry.ref))}
    if tried:
        what["what"] = f"canary {tried['share']:.3g}" if "share" in tried else "canary ended"
    moved = {"from": entry.before[:_SHORT], "to": entry.after[:_SHORT]}
    row = {"entry": str(entry.seq), "when": when, "who": entry.who, **what, **moved}
    return {**row, "why": " ".join(why.split())}


@options
def audit(
    ref: command.Ref,
    rules_only: bool = typer.Option(
        False, "--rules-only", help="Do not ask a model about hazards."
    ),
    *,
    typed: Unpaid,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Scan every instinct, directive and prompt of a policy; exit 1 if a finding is rated high.

    The rules look for instructions directed against the user, operator or evaluator, and for
    personal data, secrets, addresses and copies of training data. They also find hidden or
    look-alike letters, encoded text, role markers and unreadable text. The judge's model is asked
    about hazards; without its answers, no audit passes. The report lists what was not checked. For
    a registry version, the report goes into the log and decides whether `promote` accepts it."""
    reference = command.resolved(ref, trust=typed.trust)
    training, why = _training(reference, typed)
    judging = None if rules_only else _judging(reference, typed)
    if judging is None:
        report = auditing.audit(reference.file, training)
    else:
        note(f"asking {judging.lm} about hazards")
        report = run_sync(_judged(judging, reference, training))
    left_out = (why if why and line == auditing.NO_DATA else line for line in report.left_out)
    report = replace(report, left_out=tuple(left_out))
    tree = {"ref": reference.name, **report.to_json()}
    command.show(lambda: tree, lambda: _report_text(reference.name, report), as_json=as_json)
    # Kept beside the version that these bytes are, where the registry has it.
    version = version_of(reference.text.encode())
    found = json.loads(json.dumps(report.to_json()))  # as the log gives it back
    with registering.open_registry(who=who) as registry:
        if version in registry.file.read().versions:
            if found not in registry.attestations(version, registering.AUDIT)[-1:]:
                entry = registry.attest(version, registering.AUDIT, found)
                if ended := entry.canary:
                    note(f"{ended['ref']} does not move: its canary {version[:_SHORT]} ended")
        elif not report.fails:
            note("to promote it: pco registry freeze REF NAME, then audit NAME@latest")
    if report.fails:
        raise typer.Exit(1)


async def _judged(
    config: Config, reference: Reference, training: Sequence[Example] | None
) -> AuditReport:
    def nothing(example: Example, output: str) -> float:
        raise AssertionError(f"an audit has no reward: {example.id}")

    # The judge alone is wanted: no data, no reward, and no code that a configuration names.
    sources = Sources(data=NO_DATA, reward=nothing, templates=load_templates("default"))
    models = assemble(config, sources).models
    try:
        judge = HazardJudge(models.ask, config.lm)
        return await auditing.audit_with_judge(reference.file, judge, training)
    finally:
        await models.close()


def _judging(reference: Reference, typed: Unpaid) -> Config | None:
    """The configuration of the role judge alone; None where it has no model that can be asked. A
    run that is not trusted brings none: no address in it is called."""
    own = reference.header is not None and reference.header.settings.get("lm") != OWN_LM
    if own and reference.trusted:
        config, _ = command.settings_for(reference, typed)
    else:
        lm = {"lm": typed.lm} if typed.lm else {}
        config, _ = command.gather_settings(typed.config, lm, typed.sets)
    model = config.model_of("judge")
    if not model or model == OWN_LM or any_simulated([model]):
        return None
    kept = {"judge": config.roles["judge"].model_copy(update={"model": None})}
    alone = {"lm": model, "roles": kept, "task": "", "executor": "", "compose_per_stage": False}
    return config.model_copy(update=alone)


def _training(reference: Reference, typed: Unpaid) -> tuple[Sequence[Example] | None, str]:
    """The training examples that texts are compared with, or None and why."""
    header, data = reference.header, None
    try:
        if header is not None and typed.given().keeps_own(reference) and typed.data is None:
            if not reference.trusted:
                return None, f"{_COPIES}: the run is not yours, so its data is not read (--trust)"
            data = stored_dataset(header)
        else:
            flags = command.flag_layer(typed.task, typed.data)
            config, base = command.gather_settings(typed.config, flags, typed.sets)
            if config.task or config.data.path or config.data.train:
                data = plan_data(config, base)
    except (ConfigError, DataError, TaskError) as error:
        return None, f"{_COPIES}: the data could not be read: {error}"
    return (data.train if data is not None else None), ""


def _report_text(name: str, report: AuditReport) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    shown = ", ".join(f"{counts[s]} {s}" for s in ("high", "medium", "low") if counts[s])
    lines = [f"{name}: {len(report.texts)} texts, {shown or 'nothing found'}", ""]
    for each in report.findings:
        source = "" if each.source == "rules" else f" ({each.source})"
        lines += [
            f"{each.severity:<6}  {part_in_words(each.where)} [{each.start}:{each.end}]  "
            f"{kind_in_words(each.kind)}",
            wrap_text(f"{each.reason}: {each.quote}{source}", " " * 8),
        ]
    looked = ["rules"]
    looked += [f"{report.rows} training examples"] if report.rows is not None else []
    looked += [f"hazards judged by {report.judge}"] if report.judge else []
    lines += [""] if report.findings else []
    lines.append(wrap_text(f"checked: {', '.join(looked)}", ""))
    lines += [wrap_text(f"left out: {line}", "") for line in report.left_out]
    alone = "" if report.judge else "; no model judged the texts"
    last = "does not pass: a finding is rated high" if report.fails else f"{report.verdict}{alone}"
    return "\n".join([*lines, last])
