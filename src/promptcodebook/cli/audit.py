"""`pco codebook audit`: what is wrong with a policy's texts, before it is promoted or handed on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit, note, wrap_text
from promptcodebook.cli.settings import (
    ConfigOption,
    DataDir,
    Json,
    Model,
    Ref,
    Sets,
    TaskName,
    Trust,
    Who,
)
from promptcodebook.errors import ConfigError, DataError, TaskError
from promptcodebook.paths import runs_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from promptcodebook.cli.settings import Typed
    from promptcodebook.config import Config
    from promptcodebook.policy.audit.judge import PresidioScan
    from promptcodebook.policy.audit.report import AuditReport
    from promptcodebook.policy.audit.scan import Finding
    from promptcodebook.policy.references import Reference
    from promptcodebook.types import Example

_COPIES = "copies of training data"
RulesOnly = Annotated[bool, typer.Option("--rules-only", help="Ask no model about hazards.")]
UsePresidio = Annotated[
    bool, typer.Option("--presidio", help="Look for personal data with Presidio too.")
]


def audit(
    ref: Ref,
    rules_only: RulesOnly = False,
    presidio: UsePresidio = False,
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    sets: Sets = None,
    trust: Trust = False,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Scan every instinct, directive and prompt of a policy; exit 1 if a finding is high.

    Rules look for orders against user, operator or evaluator, personal data, secrets, addresses,
    hidden or false letters, encoded text, role markers, text that they cannot read, and copies of
    training data. The role judge is asked
    about hazards where it has a model; without one no audit passes, and at best no rule fired. What
    could not be looked for is said. Of a version in the registry the report goes into its log, and
    lets it be promoted or not.
    """
    from promptcodebook.cli.settings import Typed
    from promptcodebook.policy.audit.judge import PresidioScan
    from promptcodebook.policy.references import resolve

    reference = resolve(runs_dir(), ref, trust=trust)
    typed = Typed(config, task, data, lm, None, sets or ())
    names = PresidioScan() if presidio else None
    report = _audit(reference, typed, names, rules_only=rules_only)
    if as_json:
        emit({"ref": reference.name, **report.to_json()})
    else:
        print(_report_text(reference.name, report))
    _attest(reference, report, who)
    if report.fails:
        raise typer.Exit(1)


def _audit(
    reference: Reference, typed: Typed, presidio: PresidioScan | None, *, rules_only: bool
) -> AuditReport:
    from promptcodebook.assemble import NO_DATA as NOTHING
    from promptcodebook.assemble import Sources, assemble
    from promptcodebook.method.templates import load_templates
    from promptcodebook.policy.audit.judge import HazardJudge
    from promptcodebook.policy.audit.report import NO_DATA, audit_with_judge
    from promptcodebook.policy.audit.report import audit as scan
    from promptcodebook.sync import run_sync

    training, why = _training(reference, typed)
    config = None if rules_only else _judging(reference, typed)

    def because(report: AuditReport) -> AuditReport:
        lines = (why if why and line == NO_DATA else line for line in report.left_out)
        return replace(report, left_out=tuple(lines))

    if config is None:
        return because(scan(reference.file, training, presidio))

    async def judged(config: Config) -> AuditReport:
        # The judge alone is wanted: no data, no reward, and no code that a configuration names.
        sources = Sources(data=NOTHING, reward=_no_reward, templates=load_templates("default"))
        models = assemble(config, sources).models
        try:
            judge = HazardJudge(models.ask, config.lm)
            return await audit_with_judge(reference.file, judge, training, presidio)
        finally:
            await models.close()

    note(f"asking {config.lm} about hazards")
    return because(run_sync(judged(config)))


def _attest(reference: Reference, report: AuditReport, who: str) -> None:
    """Keeps the report beside the version that these bytes are, where the registry has it."""
    from promptcodebook.policy.registry.log import version_of
    from promptcodebook.policy.registry.registry import AUDIT, open_registry

    version = version_of(reference.text.encode())
    found = json.loads(json.dumps(report.to_json()))  # as the log gives it back
    with open_registry(who=who) as registry:
        if version in registry.shelf.read().versions:
            if found not in registry.attestations(version, AUDIT)[-1:]:
                registry.attest(version, AUDIT, found)
        elif not report.fails:
            note("to promote it: pco codebook freeze REF NAME, then audit NAME@latest")


def _judging(reference: Reference, typed: Typed) -> Config | None:
    """The configuration of the role judge alone; None where it has no model that can be asked.

    A run that is not trusted brings none: its texts are read, and nobody it names is called.
    """
    from promptcodebook.assemble import OWN_LM
    from promptcodebook.cli.settings import gather_settings, settings_for
    from promptcodebook.lm.spec import any_simulated

    own = reference.header is not None and reference.header.settings.get("lm") != OWN_LM
    if own and reference.trusted:
        config, _ = settings_for(reference, typed)
    else:
        config, _ = gather_settings(typed.config, {"lm": typed.lm} if typed.lm else {}, typed.sets)
    model = config.model_of("judge")
    if not model or model == OWN_LM or any_simulated([model]):
        return None
    kept = {"judge": config.roles["judge"].model_copy(update={"model": None})}
    alone = {"lm": model, "roles": kept, "task": "", "executor": "", "compose_per_stage": False}
    return config.model_copy(update=alone)


def _no_reward(example: Example, output: str) -> float:
    """Nothing is scored in an audit."""
    raise AssertionError(f"an audit has no reward: {example.id}")


def _training(reference: Reference, typed: Typed) -> tuple[Sequence[Example] | None, str]:
    """The training examples that texts are compared with, or None and why."""
    from promptcodebook.assemble import plan_data
    from promptcodebook.cli.settings import flag_layer, gather_settings
    from promptcodebook.policy.references import stored_dataset

    header, data = reference.header, None
    try:
        if header is not None and typed.given().keeps_own(reference) and typed.data is None:
            if not reference.trusted:
                return None, f"{_COPIES}: the run is not yours, and its data are not read (--trust)"
            data = stored_dataset(header)
        else:
            config, base = gather_settings(
                typed.config, flag_layer(typed.task, typed.data), typed.sets
            )
            if config.task or config.data.path or config.data.train:
                data = plan_data(config, base)
    except (ConfigError, DataError, TaskError) as error:
        return None, f"{_COPIES}: they could not be read: {error}"
    return (data.train if data is not None else None), ""


def _report_text(name: str, report: AuditReport) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    shown = ", ".join(f"{counts[s]} {s}" for s in ("high", "medium", "low") if counts[s])
    lines = [f"{name}: {len(report.texts)} texts, {shown or 'nothing found'}", ""]
    lines += [_finding_text(finding) for finding in report.findings]
    looked = ["rules"]
    looked += [f"{report.rows} training examples"] if report.rows is not None else []
    looked += [f"hazards as {report.judge} sees them"] if report.judge else []
    lines += [""] if report.findings else []
    lines.append(wrap_text(f"looked at: {', '.join(looked)}", ""))
    lines += [wrap_text(f"left out: {line}", "") for line in report.left_out]
    alone = "" if report.judge else "; no model judged the texts"
    last = "does not pass: a finding is high" if report.fails else f"{report.verdict}{alone}"
    return "\n".join([*lines, last])


def _finding_text(finding: Finding) -> str:
    place = f"{finding.where} [{finding.start}:{finding.end}]"
    source = "" if finding.source == "rules" else f" ({finding.source})"
    said = f"{finding.reason}: {finding.quote}{source}"
    return f"{finding.severity:<6}  {place}  {finding.kind}\n{wrap_text(said, '        ')}"
