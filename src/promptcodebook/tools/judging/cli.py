"""`pco judge`: how far a judge agrees with people, and a verdict that allows for its error. A
verdict needs labels of a random choice of test inputs, of the answers of every row: `sheet` writes
them down, `verdict` reads them back. Labels are found again by input and answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.assemble import NO_DATA, Assembled, Sources, assemble
from promptcodebook.base.intervals import Bounds, Interval
from promptcodebook.base.paths import run_reference, runs_dir, write_whole
from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shell
from promptcodebook.base.units import plural
from promptcodebook.cli import command
from promptcodebook.cli.command import BETWEEN, Json, RunRef, note, show, wrap_text
from promptcodebook.data import sample
from promptcodebook.errors import ConfigError, DataError, StoreError
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.references import stored_examples
from promptcodebook.progress import counting
from promptcodebook.report.pages import csv_text, sheet_cell
from promptcodebook.run.decision import JUDGED, JudgingTerms, RowSource, conclude
from promptcodebook.run.verdict import Conclusion
from promptcodebook.store.events import Concluded
from promptcodebook.store.header import has_simulated
from promptcodebook.store.journal import until_done
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from promptcodebook.tools.judging.calibration import (
    Calibration,
    Labels,
    answer_key,
    calibrate,
    judge_items,
)
from promptcodebook.tools.judging.figures import ENOUGH, rectified
from promptcodebook.types import Evaluation, Rollout

judge = command.command_group(
    "Measure how closely a judge agrees with people; correct a verdict for the judge's error."
)
# The share of the inputs of a sheet that may lack a label: left out by choice, they would bias.
_SPARE = 0.1
LabelsPath = Annotated[Path, typer.Argument(metavar="LABELS", help="Labels as CSV or JSONL.")]
ScaleOption = Annotated[
    tuple[float, float] | None, typer.Option("--scale", help="Lowest and highest label, e.g. 1 5.")
]


@judge.command("calibrate")
def calibrate_judge(
    labels: LabelsPath,
    reward: str = typer.Option(
        "", metavar="KIND", help="The reward; default: the reward in pco.toml."
    ),
    rubric: str = typer.Option("", help="The judge's rubric; default: the rubric in pco.toml."),
    scale: ScaleOption = None,
    out: Path | None = typer.Option(None, help="Default: LABELS, ending in .judge.json."),
    config: command.ConfigOption = None,
    lm: command.ModelOption = None,
    budget: command.BudgetOption = None,
    sets: command.Sets = None,
    as_json: Json = False,
) -> None:
    """Have the judge rate answers that people labelled, and report whether to trust the judge.

    LABELS has the columns input, answer and label, and optionally target and id. To resume, rerun
    the command; finished calls are not repeated."""
    named = {"kind": "judge", "rubric": rubric} if rubric else reward
    settled, base = command.gather_settings(
        config, command.flag_layer(lm=lm, budget=budget, reward=named or None), sets
    )
    # The judge alone is wanted: no data, and no agent that the configuration names.
    role = {"judge": settled.roles["judge"].model_copy(update={"model": None})}
    alone = {"lm": settled.model_of("judge"), "roles": role, "executor": ""}
    settled = settled.model_copy(update={**alone, "compose_per_stage": False})
    sources = Sources(base=base, data=NO_DATA, templates=load_templates("default"))
    with until_done("judge calibrate", str(labels), named) as supplies:
        assembled = assemble(settled, sources, supplies)
        read = Labels.read(labels, assembled.config.reward_range, scale)
        stop = command.announced(assembled.models.interrupt)
        made = run_sync(_calibrate(assembled, read), stop)
    target = out or labels.with_suffix(".judge.json")
    tree = {**asdict(made), "labels": labels.name}
    _write(target, json.dumps(tree, ensure_ascii=False, indent=2) + "\n")
    show(lambda: tree, lambda: _calibration_text(made), as_json=as_json)
    note(f"wrote {target}")


async def _calibrate(assembled: Assembled, labels: Labels) -> Calibration:
    models, items = assembled.models, labels.items
    more, name, simulated = "raise the budget", "judging labelled answers", models.simulated
    async with models.at_work(more, f"{more}; everything paid for so far is kept"):
        with counting(name, len(items), sys.stderr, simulated=simulated) as count:
            found = await judge_items(assembled, items, count)
    return calibrate(assembled, labels, found)


def _calibration_text(made: Calibration) -> str:
    rows = f"{made.judged} judged, {len(made.failures)} could not be, {made.blank} unlabelled"
    kappa = "unknown" if made.kappa is None else made.kappa.text(between=BETWEEN)
    facts = {
        "judge": f"{made.judge}{' (simulated)' if made.simulated else ''}",
        "rows": rows + "".join(f"; the first: {failure}" for failure in made.failures[:1]),
        "agrees": made.agreement.text(between=BETWEEN),
        "kappa": kappa,
    }
    lines = (wrap_text(value, f"{name:<8}") for name, value in facts.items())
    return "\n".join([*lines, "", wrap_text(f"{made.decision}: {made.why}", "")])


@judge.command()
def sheet(
    run: RunRef,
    count: int = typer.Option(60, "--n", min=ENOUGH, help="Number of random test inputs."),
    out: Path = typer.Option(Path("labels.csv"), "--out", "-o", help="The file to write."),
    trust: command.Trust = False,
    as_json: Json = False,
) -> None:
    """Export a run's test answers for blind labelling."""
    with closing(RunStore.open(find_run(runs_dir(), run))) as store:
        if store.header.private or not (store.ours or trust):
            message = "the run's data is private or not yours, so no sheet can show it"
            raise ConfigError(message, hint="add --trust if you trust the run's author")
        rows, _ = _judged(store)
        examples, name = stored_examples(store.header), store.header.id
    tests = [
        examples[r.example_id] for r in rows[0].evaluation.rollouts if r.example_id in examples
    ]
    lines = list[tuple[str, ...]]()
    for example in sample(tests, count):
        rollouts = (r for row in rows for r in row.evaluation.rollouts if not row.reference)
        mine = (r for r in rollouts if r.example_id == example.id and not _empty(r))
        answers = list({answer_key(r.output): r.output for r in mine}.values())
        keyed_random("sheet", example.id).shuffle(answers)
        lines += [(example.id, example.input, example.target or "", a, "") for a in answers]
    if not lines:
        raise DataError("the run's test data is no longer here", hint="pco runs show RUN")
    _write(out, csv_text(("id", "input", "target", "answer", "label"), lines, name))
    wrote = f"wrote {plural(len(lines), 'answer')} to {out}"
    text = f"{wrote}; then: pco judge verdict {shell(run, out)}"
    show(lambda: {"file": str(out), "answers": len(lines)}, lambda: text, as_json=as_json)


@judge.command()
def verdict(
    run: RunRef, labels: LabelsPath, scale: ScaleOption = None, as_json: Json = False
) -> None:
    """Recompute a run's verdict from labels of its test answers, allowing for the judge's error in
    the intervals.

    The run stores the new verdict, so its report and `pco runs show` include it. No new answers are
    made, so this does not count as a look at the test split."""
    with closing(RunStore.open(find_run(runs_dir(), run), write=True)) as store:
        header, state = store.header, store.outline()
        entries, first = _judged(store)
        low, high = header.config.get("reward_range") or (0.0, 1.0)
        simulated = has_simulated(header.config)
        samples = header.config.get("samples", 1)
        terms = JudgingTerms(
            (float(low), float(high)),
            simulated=simulated,
            look=state.looks + 1,
            earlier=first.earlier,
            samples=samples,
            missing=first.missing,
            max_cost=header.configuration.verdict.max_cost,
        )
        people = _People(Labels.read(labels, terms.bounds, scale), terms.bounds)
        before, made = conclude(entries, terms), conclude(entries, replace(terms, paired=people))
        kept = first.text.startswith(before.sentence)
        tail = first.text[len(before.sentence) :].replace(JUDGED, "").split() if kept else []
        text = " ".join([made.sentence, *tail, people.sentence(labels, entries)])
        made = replace(made, sentence=text)
        judged = replace(first, text=text, worth=made.worth, deploy=made.deploy)
        store.append(replace(judged, rows=made.table.as_json()))
        headline = made.headline(run_reference(store.path))
    tree = {"headline": asdict(headline), "sentence": text, "worth": made.worth}
    shown = command.headline_text(headline), wrap_text(text, ""), command.verdict_text(made.table)
    show(
        lambda: {**tree, "deploy": made.deploy, "rows": made.table.as_json()},
        lambda: "\n\n".join(shown),
        as_json=as_json,
    )


def _judged(store: RunStore) -> tuple[list[RowSource], Concluded]:
    conclusion = Conclusion.of(store.outline(), store.header)
    if conclusion is None or not conclusion.rows:
        raise StoreError(f"the run {store.header.id} has no verdict", hint="pco runs list")
    judged = {each.name: each for each in store.test_evaluations()}
    made = [(row, judged[row.name]) for row in conclusion.rows]
    first = next(store.conclusions())
    return [RowSource(row.title or row.name, e, row.reference) for row, e in made], first


def _empty(rollout: Rollout) -> bool:
    return rollout.failure is not None and not rollout.output


@dataclass
class _People:
    """Differences as people see them (`Terms.paired`), where their labels allow for that. `known`
    are pairs of rows, `used` the test inputs with labels and all."""

    labels: Labels
    bounds: Bounds
    known: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    used: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        items = self.labels.items
        self._label = {(sheet_cell(i.example.id), answer_key(i.answer)): i.label for i in items}
        self._ids = {sheet_cell(i.example.id) for i in items}

    def _of(self, rollout: Rollout) -> float | None:
        if _empty(rollout):
            return self.bounds[0]
        return self._label.get((sheet_cell(rollout.example_id), answer_key(rollout.output)))

    def __call__(self, a: Evaluation, b: Evaluation, side: float) -> Interval | None:
        labelled, others, missing = list[tuple[float, float]](), list[float](), 0
        groups = list[str](), list[str]()
        of = a.groups or [rollout.example_id for rollout in a.rollouts]
        rollouts = zip(a.rollouts, b.rollouts, a.rewards, b.rewards, of, strict=True)
        for x, y, first, second, group in rollouts:
            left, right = self._of(x), self._of(y)
            if sheet_cell(x.example_id) in self._ids and left is not None and right is not None:
                labelled.append((left - right, first - second))
                groups[0].append(group)
            else:
                missing += sheet_cell(x.example_id) in self._ids
                others.append(first - second)
                groups[1].append(group)
        if len(labelled) < ENOUGH or missing > _SPARE * (missing + len(labelled)):
            return None
        self.known.add((a.name, b.name))
        self.used = len(labelled), len(a.rollouts)
        width = self.bounds[1] - self.bounds[0]
        return rectified(labelled, others, (-width, width), side, groups)

    def sentence(self, path: Path, entries: Sequence[RowSource]) -> str:
        """What the verdict says of it. Raises DataError when labels do not cover the result."""
        names = [entry.evaluation.name for entry in entries]
        if (names[-1], names[0]) not in self.known:
            message = f"{path} does not show the judge's error on this run: it needs labels for "
            message += f"the answers of {names[0]} and {names[-1]} to {ENOUGH} test inputs"
            raise DataError(message, hint="pco judge sheet RUN writes the answers to label")
        sure = {name for pair in self.known for name in pair}
        rows = " and ".join(repr(name) for name in names if name not in sure)
        return (
            "A model gave the rewards. The gains and their intervals allow for its error, using "
            "people's labels on {} of {} test inputs".format(*self.used)
            + (f", except for {rows}, where the error is unknown." if rows else ".")
        )


def _write(target: Path, text: str) -> None:
    try:
        write_whole(target, text)
    except OSError as error:
        hint = "choose a writable location with free space"
        raise ConfigError(f"cannot write {target}: {error.strerror}", hint=hint) from error
