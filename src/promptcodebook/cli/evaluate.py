"""How good a policy is on a split: `pco eval` alone, `pco compare` beside another, `pco distill`
without its encoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import BETWEEN, announced, columns, note, show, wrap_text
from promptcodebook.cli.settings import (
    ConfigPath,
    Count,
    Json,
    Ref,
    Runs,
    SplitName,
    Typed,
    command_group,
    options,
)
from promptcodebook.errors import ConfigError
from promptcodebook.text import printable
from promptcodebook.units import cost_text, number, percent

if TYPE_CHECKING:
    from promptcodebook.routing.ranking import Agreement
    from promptcodebook.run.evaluation import Assessment, Comparison
    from promptcodebook.run.measuring import Distillation

app = command_group()

DISTILLED = "distilled.json"


@dataclass(frozen=True)
class _TypedPath(Typed):
    """The settings file is an argument, not an option."""

    config: ConfigPath = None


@app.command("eval")
@options
def evaluate(
    ref: Ref,
    typed: _TypedPath,
    split: SplitName = "test",
    count: Count = None,
    samples: Runs = 1,
    row: Annotated[
        str,
        typer.Option(
            "--row",
            metavar="ROW",
            help="Of its verdict: learned, present, none, concat, best_fixed, best_single, oracle.",
        ),
    ] = "learned",
    at_least: Annotated[
        float | None,
        typer.Option("--at-least", help="Exit 1 where the mean reward is below this."),
    ] = None,
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

    sample = Sample(split, count, samples)
    with typed.given("pco eval").until_done(ref, sample, row) as kept:
        asked = Evaluating.of(ref, kept, sample, row, progress=True)
        made = run_sync(asked.answer(), announced(asked.subject.interrupt))
    show(made.as_json, lambda: _assessment_text(made), as_json=as_json)
    mean = made.row.score.mean
    if at_least is not None and not mean >= at_least:
        note(f"the mean reward {number(mean)} is below --at-least {at_least:g}")
        raise typer.Exit(1)


@app.command()
@options
def compare(
    a: Annotated[str, typer.Argument(help="A run, a policy file, or a saved `pco eval --json`.")],
    b: Annotated[str, typer.Argument(help="What to compare it with.")],
    typed: Typed,
    split: SplitName = "test",
    count: Count = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=0.0,
            help="Exit 1 unless A loses at most this against B, by the whole interval.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """The gain of A over B, paired by example, with its 95 % interval.

    Where one is a saved evaluation, the other is evaluated on its split and examples. --budget
    limits both together.
    """
    from promptcodebook.run.evaluation import Comparing, Sample
    from promptcodebook.sync import run_sync

    sample = Sample(split, count)
    with typed.given("pco compare").until_done(a, b, sample) as kept:
        asked = Comparing.of((a, b), kept, sample, progress=True)
        made = run_sync(asked.answer(), announced(asked.interrupt))
    show(made.as_json, lambda: _comparison_text(made), as_json=as_json)
    if margin is not None and not made.gain.low >= -margin:
        note(f"A may lose {number(-made.gain.low)} against B, more than --margin {margin:g}")
        raise typer.Exit(1)


def _assessment_text(made: Assessment) -> str:
    row, usage, rollouts = made.row, made.row.per_query, made.evaluation.rollouts
    model = "simulated model, " if made.simulated else ""
    per = "query" if made.runs == 1 else f"example, all {made.runs} sampled runs of it"
    facts = {
        "policy": made.name,
        **({} if made.kind == "learned" else {"row": made.kind}),
        "reward": row.score.text(between=BETWEEN),
        "answered only": number(row.answered),
        "failed": str(row.failed),
        "truncated": str(row.truncated),
        "fallback routes": "-" if row.fallbacks is None else percent(row.fallbacks),
        "longest prompt": f"{row.prompt_length.longest} tokens" if row.prompt_length else "-",
        f"per {per}": (
            f"{number(row.calls_per_query, 1)} calls, {usage.tokens} tokens, "
            f"{number(usage.latency_s, 2)} s, {cost_text(usage.cost)}"
        ),
    }
    width = max(map(len, facts))
    lines = [f"{model}{made.evaluation.split} split, n = {len(rollouts)}", ""]
    lines += [wrap_text(value, f"{name:<{width}}  ") for name, value in facts.items()]
    for first in [r for r in rollouts if r.failure is not None][:1]:
        assert first.failure is not None
        what = f"{first.failure.kind} at {first.failure.stage}: {first.failure.message}"
        lines += ["", wrap_text(f"{row.failed} failed; the first, {first.example_id}: {what}", "")]
    return printable("\n".join(lines))


def _comparison_text(made: Comparison) -> str:
    rows = [
        {
            "": mark,
            "policy": side.name,
            "reward": number(side.score.mean),
            "95 %": side.score.ends(between=BETWEEN),
        }
        for mark, side in (("A", made.a), ("B", made.b))
    ]
    model = "simulated model, " if made.simulated else ""
    head = f"{model}{made.split} split, n = {made.gain.n}:"
    return f"{head}\n\n{columns(rows)}\n\n{made.sentence}"


@app.command()
@options
def distill(
    ref: Ref,
    typed: Typed,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The policy file; else distilled.json in the run."),
    ] = None,
    fresh: Annotated[
        int, typer.Option("--fresh", min=0, help="Ask the encoder on this many training inputs.")
    ] = 0,
    margin: Annotated[
        float,
        typer.Option("--margin", min=0.0, help="Loss that counts as none, of the reward's range."),
    ] = 0.02,
    count: Count = None,
    as_json: Json = False,
) -> None:
    """Learn the encoder's routes, so that a query asks one model call less.

    A linear ranking is fitted to the routes that the encoder gave in training, and to fresh ones
    where asked. Then both policies answer the validation split, or --n examples of it: that costs
    calls, and their number is printed first. The policy file is written in any case; it is offered
    as the default only where the whole 95 % interval of the difference in reward lies above minus
    the margin.
    """
    from promptcodebook.run.measuring import Distiller, Needs
    from promptcodebook.run.subject import Subject
    from promptcodebook.sync import run_sync

    needs = Needs(fresh, count, margin)
    with typed.given("pco distill").until_done(ref, needs) as kept:
        subject = Subject.resolve(ref, kept)
        if output is None and subject.run is None:
            raise ConfigError(
                f"{ref} is a policy file: it is not said where to write the distilled one",
                hint=f"pco distill {ref} -o {DISTILLED}",
            )
        target = output or (subject.run or Path()) / DISTILLED
        distiller = Distiller.of(subject, needs)
        note(distiller.plan)
        made = run_sync(distiller.distil(note), distiller.subject.interrupt)
        made.file.save(target)
    facts = {"ref": subject.reference.name, "policy": str(target)}
    show(lambda: facts | made.as_json(), lambda: _distilled_text(made, target), as_json=as_json)


def _distilled_text(made: Distillation, target: Path) -> str:
    lines = [f"learned from the encoder's routes of {made.inputs} training inputs", ""]
    lines += ["agreement with the encoder: the same set, and the share of instincts in common"]
    lines += _agreement("held out of training", made.cross)
    lines += [*_agreement("validation", made.validation), ""]
    if made.difference is None:
        why = "There is no validation split, so that no difference in reward is known."
        lines.append(wrap_text(why, ""))
    else:
        of, (ours, theirs) = made.difference, made.per_query
        lines += [
            f"reward, distilled - encoder: {of.text(signed=True, more='paired')}, n = {of.n}",
            f"calls per query: {number(ours, 1)} instead of {number(theirs, 1)}",
        ]
    if made.non_inferior:
        verdict = (
            f"Not inferior: the interval lies above -{number(made.margin)}. The distilled policy "
            "can be the default."
        )
    else:
        verdict = (
            f"Not shown to be as good: the interval does not lie above -{number(made.margin)}. "
            "Keep the encoder as the default, or judge it on more examples."
        )
    return "\n".join([*lines, "", wrap_text(verdict, ""), "", f"wrote {target}"])


def _agreement(name: str, of: Agreement | None) -> list[str]:
    if of is None:
        return []
    exact, overlap = (each.text(between=BETWEEN) for each in (of.exact, of.overlap))
    return [f"  {name}, n = {of.exact.n}: {exact}, {overlap}"]
