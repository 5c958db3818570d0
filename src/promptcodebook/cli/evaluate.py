"""`pco eval` and `pco compare`: how good a policy is on a split, alone or beside another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import BETWEEN, announced, columns, emit, note, wrap_text
from promptcodebook.cli.settings import (
    Budget,
    ConfigOption,
    ConfigPath,
    Count,
    DataDir,
    Json,
    Model,
    Ref,
    Runs,
    Sets,
    SplitName,
    TaskName,
    Trust,
    Typed,
    command_group,
)
from promptcodebook.text import printable
from promptcodebook.units import cost_text, number, percent

if TYPE_CHECKING:
    from promptcodebook.run.evaluation import Assessment, Comparison

app = command_group()

RowName = Annotated[
    str,
    typer.Option(
        "--row",
        metavar="ROW",
        help="Of its verdict: learned, present, none, concat, best_fixed, best_single, oracle.",
    ),
]


@app.command("eval")
def evaluate(
    ref: Ref,
    config: ConfigPath = None,
    task: TaskName = None,
    data: DataDir = None,
    split: SplitName = "test",
    lm: Model = None,
    count: Count = None,
    samples: Runs = 1,
    row: RowName = "learned",
    at_least: Annotated[
        float | None,
        typer.Option("--at-least", help="Exit 1 where the mean reward is below this."),
    ] = None,
    budget: Budget = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Reward with its 95 % interval, failures, and what a query costs.

    Greedy, or with --samples N the mean of N sampled runs per example (AIME's published metric is
    the mean of five). A run is evaluated under its own settings, unless a task or a pco.toml is
    named, and by its own models, unless others are given. --row evaluates another row of its
    verdict: one prompt for all (present, none, concat, best_fixed, best_single), or the right
    instructions, where the task knows them (oracle). Save the output of --json to compare it later:
    pco compare A.json B.json
    """
    from promptcodebook.run.evaluation import Evaluating, Sample
    from promptcodebook.sync import run_sync

    given = Typed(config, task, data, lm, budget, sets or (), trust).given("pco eval")
    sample = Sample(split, count, samples)
    with given.until_done(ref, sample, row) as kept:
        asked = Evaluating.of(ref, kept, sample, row, progress=True)
        assessment = run_sync(asked.answer(), announced(asked.interrupt))
    if as_json:
        emit(assessment.as_json())
    else:
        print(_assessment_text(assessment))
    mean = assessment.row.score.mean
    if at_least is not None and not mean >= at_least:
        note(f"the mean reward {number(mean)} is below --at-least {at_least:g}")
        raise typer.Exit(1)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A run, a policy file, or a saved `pco eval --json`.")],
    b: Annotated[str, typer.Argument(help="What to compare it with.")],
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    split: SplitName = "test",
    lm: Model = None,
    count: Count = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=0.0,
            help="Exit 1 unless A loses at most this against B, by the whole interval.",
        ),
    ] = None,
    budget: Budget = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The gain of A over B, paired by example, with its 95 % interval.

    Where one is a saved evaluation, the other is evaluated on its split and examples. --budget
    limits both together.
    """
    from promptcodebook.run.evaluation import Comparing, Sample
    from promptcodebook.sync import run_sync

    given = Typed(config, task, data, lm, budget, sets or (), trust).given("pco compare")
    sample = Sample(split, count)
    with given.until_done(a, b, sample) as kept:
        asked = Comparing.of((a, b), kept, sample, progress=True)
        comparison = run_sync(asked.answer(), announced(asked.interrupt))
    if as_json:
        emit(comparison.as_json())
    else:
        print(_comparison_text(comparison))
    if margin is not None and not comparison.gain.low >= -margin:
        note(f"A may lose {number(-comparison.gain.low)} against B, more than --margin {margin:g}")
        raise typer.Exit(1)


def _assessment_text(assessment: Assessment) -> str:
    row, usage = assessment.row, assessment.row.per_query
    model = "simulated model, " if assessment.simulated else ""
    n, length = len(assessment.evaluation.rollouts), row.prompt_length
    per = "query" if assessment.runs == 1 else f"example, all {assessment.runs} sampled runs of it"
    facts = {
        "policy": assessment.name,
        **({} if assessment.kind == "learned" else {"row": assessment.kind}),
        "reward": row.score.text(between=BETWEEN),
        "answered only": number(row.answered),
        "failed": str(row.failed),
        "truncated": str(row.truncated),
        "fallback routes": "-" if row.fallbacks is None else percent(row.fallbacks),
        "longest prompt": "-" if length is None else f"{length.longest} tokens",
        f"per {per}": (
            f"{number(row.calls_per_query, 1)} calls, {usage.tokens} tokens, "
            f"{number(usage.latency_s, 2)} s, {cost_text(usage.cost)}"
        ),
    }
    width = max(map(len, facts))
    lines = [f"{model}{assessment.evaluation.split} split, n = {n}", ""]
    lines += [wrap_text(value, f"{name:<{width}}  ") for name, value in facts.items()]
    first = next((r for r in assessment.evaluation.rollouts if r.failure is not None), None)
    if first is not None and first.failure is not None:
        failure = first.failure
        what = f"{failure.kind} at {failure.stage}: {failure.message}"
        lines += ["", wrap_text(f"{row.failed} failed; the first, {first.example_id}: {what}", "")]
    return printable("\n".join(lines))


def _comparison_text(comparison: Comparison) -> str:
    rows = [
        {
            "": mark,
            "policy": side.name,
            "reward": number(side.score.mean),
            "95 %": side.score.ends(between=BETWEEN),
        }
        for mark, side in (("A", comparison.a), ("B", comparison.b))
    ]
    model = "simulated model, " if comparison.simulated else ""
    return (
        f"{model}{comparison.split} split, n = {comparison.gain.n}:\n\n{columns(rows)}\n\n"
        f"{comparison.sentence}"
    )
