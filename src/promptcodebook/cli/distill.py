"""`pco distill`: the encoder's routes learned by a linear ranking, and what is lost by it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import BETWEEN, emit, note, wrap_text
from promptcodebook.cli.settings import (
    Budget,
    ConfigOption,
    Count,
    DataDir,
    Json,
    Model,
    Ref,
    Sets,
    TaskName,
    Trust,
    Typed,
    command_group,
)
from promptcodebook.errors import ConfigError
from promptcodebook.units import number

if TYPE_CHECKING:
    from promptcodebook.routing.distil import Agreement
    from promptcodebook.run.distilling import Distillation

app = command_group()

FILE = "distilled.json"


@app.command()
def distill(
    ref: Ref,
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
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    budget: Budget = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Learn the encoder's routes, so that a query asks one model call less.

    A linear ranking is fitted to the routes that the encoder gave in training, and to fresh ones
    where asked. Then both policies answer the validation split, or --n examples of it: that costs
    calls, and their number is printed first. The policy file is written in any case; it is offered
    as the default only where the whole 95 % interval of the difference in reward lies above minus
    the margin.
    """
    from promptcodebook.run.distilling import Distiller, Needs
    from promptcodebook.run.subject import Subject
    from promptcodebook.sync import run_sync

    given = Typed(config, task, data, lm, budget, sets or (), trust).given("pco distill")
    needs = Needs(fresh, count, margin)
    with given.until_done(ref, needs) as kept:
        subject = Subject.resolve(ref, kept)
        if output is None and subject.run is None:
            raise ConfigError(
                f"{ref} is a policy file: it is not said where to write the distilled one",
                hint=f"pco distill {ref} -o {FILE}",
            )
        target = output or (subject.run or Path()) / FILE
        distiller = Distiller.of(subject, needs)
        note(distiller.plan)
        made = run_sync(distiller.distil(note), distiller.interrupt)
        made.file.save(target)
    if as_json:
        emit({"ref": subject.reference.name, "policy": str(target), **made.as_json()})
    else:
        print(_text(made, target))


def _text(made: Distillation, target: Path) -> str:
    lines = [f"learned from the encoder's routes of {made.inputs} training inputs", ""]
    lines += ["agreement with the encoder: the same set, and the share of instincts in common"]
    lines += _agreement("held out of training", made.cross)
    lines += _agreement("validation", made.validation)
    if made.difference is None:
        why = "There is no validation split, so that no difference in reward is known."
        lines += ["", wrap_text(why, "")]
    else:
        of, (ours, theirs) = made.difference, made.per_query
        lines += [
            "",
            f"reward, distilled - encoder: {of.text(signed=True, more='paired')}, n = {of.n}",
            f"calls per query: {number(ours, 1)} instead of {number(theirs, 1)}",
        ]
    return "\n".join([*lines, "", wrap_text(_verdict(made), ""), "", f"wrote {target}"])


def _agreement(name: str, of: Agreement | None) -> list[str]:
    if of is None:
        return []
    exact, overlap = (each.text(between=BETWEEN) for each in (of.exact, of.overlap))
    return [f"  {name}, n = {of.exact.n}: {exact}, {overlap}"]


def _verdict(made: Distillation) -> str:
    margin = number(made.margin)
    if made.non_inferior:
        return (
            f"Not inferior: the interval lies above -{margin}. The distilled policy can be the "
            "default."
        )
    return (
        f"Not shown to be as good: the interval does not lie above -{margin}. Keep the encoder as "
        "the default, or judge it on more examples."
    )
