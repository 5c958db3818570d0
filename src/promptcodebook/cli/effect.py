"""`pco codebook effect`: what an instinct adds, measured with it and without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit, note, wrap_text
from promptcodebook.cli.reference import (
    Typed,
    keeps_own_settings,
    require_objects,
    settings_for,
)
from promptcodebook.cli.settings import (
    Budget,
    ConfigOption,
    Count,
    DataDir,
    Json,
    Model,
    Ref,
    Sets,
    SplitName,
    TaskName,
    Trust,
)
from promptcodebook.paths import runs_dir
from promptcodebook.text import printable
from promptcodebook.units import cost_text, number, plural

if TYPE_CHECKING:
    from promptcodebook.run.effect import Measurement
    from promptcodebook.store.effects import Effect


def effect(
    ref: Ref,
    index: Annotated[int, typer.Argument(metavar="K", help="The instinct, 0..K-1.")],
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    split: SplitName = "val",
    lm: Model = None,
    count: Count = None,
    budget: Budget = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """What an instinct adds to the reward, by leaving it out.

    The inputs of a split that are routed to it are answered twice, with all else equal: on their
    route, and on their route without it. The difference is paired by input, with its 95 % interval;
    a failed rollout is counted and its pair left out. How many calls that takes at most is told
    before. Of a run, replies and the result are kept with it: nothing is paid for twice, also what
    the run itself has asked, and pco view shows the result.
    """
    from promptcodebook.assemble import Sources, assemble
    from promptcodebook.lm.stack import Supplies
    from promptcodebook.policy.references import resolve
    from promptcodebook.run.effect import Question, measuring
    from promptcodebook.store.runs import find_run

    typed = Typed(config, task, data, lm, budget, sets or (), trust)
    reference = resolve(runs_dir(), ref, trust=trust)
    if keeps_own_settings(reference, typed):
        require_objects(reference, typed)
    settings, base = settings_for(reference, typed)
    assembled = assemble(settings, Sources(base), Supplies.of_one_budget())
    run = None if reference.header is None else find_run(runs_dir(), ref)
    with measuring(reference, assembled, Question(index, split, count), run) as measurement:
        made = _measure(measurement)
        paid = measurement.calls_paid
    if as_json:
        emit({"ref": reference.name, "calls_paid": paid, **made.as_json()})
    else:
        print(_text(made, reference.name, paid))


def _measure(measurement: Measurement) -> Effect:
    """Progress on stderr; Ctrl-C ends it in order."""
    from promptcodebook.progress import ProgressLine
    from promptcodebook.sync import run_sync

    def interrupt() -> None:
        note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        measurement.interrupt()

    def routed(held: int) -> None:
        line.close()
        inputs = f"routed to it: {held} of {plural(len(measurement.examples), 'input')}"
        note(f"{inputs}, at most {plural(measurement.calls_for(held), 'more call')}")

    note(
        f"{measurement.name} on {plural(len(measurement.examples), 'input')}: at most "
        f"{plural(measurement.most_calls, 'call')}, {measurement.routing_calls} of them for the "
        "routes; what was asked before is not asked again"
    )
    line = ProgressLine(sys.stderr, simulated=measurement.simulated)
    try:
        return run_sync(measurement.measure(line, routed), interrupt)
    finally:
        line.close()


def _text(made: Effect, name: str, paid: int) -> str:
    model = "simulated model, " if made.simulated else ""
    lines = [f"{model}{made.split} split of {name}", ""]
    lines += [wrap_text(made.text, f"instinct {made.instinct}  "), ""]
    if made.means is not None:
        with_it, without = made.means
        lines += [f"reward with it {number(with_it)}, without it {number(without)}"]
    lines += [wrap_text(made.sentence, "")]
    if any(made.failed):
        with_it, without = made.failed
        lines += [f"failed: {with_it} with it, {without} without it; their pairs are left out"]
    if made.unrouted:
        lines += [f"could not be routed: {plural(made.unrouted, 'input')}"]
    calls = f"{plural(made.usage.calls, 'call')}, {cost_text(made.usage.cost)}"
    lines += ["", f"its answers take {calls}; asked for now, routes too: {paid}"]
    return printable("\n".join(lines))
