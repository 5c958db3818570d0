"""`pco reproduce`: measure what a page of docs/results says, cell by cell, and write the page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit, note
from promptcodebook.cli.settings import Json, Model, Plain, command_group, runs_dir
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.paths import BENCH

if TYPE_CHECKING:
    from promptcodebook.experiments.lab import Lab
    from promptcodebook.experiments.reproduce import Order

__all__ = ["app", "show"]

app = command_group()


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="What to measure: small-real-model.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds; the page's own number unless given.")
    ] = None,
    preset: Annotated[str, typer.Option(help="default, or quick: does everything run.")] = (
        "default"
    ),
    lm: Model = None,
    out: Annotated[Path, typer.Option(help="Folder of the page, NAME.md.")] = Path("docs/results"),
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Measure what a page of docs/results says, and write the page.

    Cell by cell, those that matter most first. What is finished is not measured again and no reply
    is paid for twice: stopped by Ctrl-C, the same command goes on. What is not measured yet stands
    on the page as missing. Runs and replies lie in RUNS/bench/NAME. The model is the page's own
    unless --lm names another; PCO_LM is not read.
    """
    from promptcodebook.cli.views import make_view
    from promptcodebook.experiments.lab import open_lab
    from promptcodebook.experiments.reproduce import PRESETS, Order, experiment_named

    experiment = experiment_named(name)
    if preset not in PRESETS:
        raise ConfigError(
            f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)}",
            hint=f"--preset {' or '.join(PRESETS)}",
        )
    order = Order(experiment, preset, seeds or experiment.seeds)
    typed = shlex.join(["pco", *sys.argv[1:]])
    with make_view(sys.stderr, plain=plain) as view:
        lab = open_lab(runs_dir() / BENCH / name, lm or experiment.lm, typed, view)
        try:
            return show(order, lab, out, as_json=as_json)
        finally:
            lab.close()


def show(order: Order, lab: Lab, out: Path, *, as_json: bool) -> int:
    """Measures, writes the page however far it came, and says where it is."""
    from promptcodebook.experiments.reproduce import measure, write_page

    measured = measure(order, lab, note)
    page = out / f"{order.experiment.name}.md"
    write_page(page, order.experiment.page(measured))
    if as_json:
        paid = lab.replies.paid
        emit(
            {
                "experiment": order.experiment.name,
                "page": str(page),
                "finished": list(measured.results),
                "missing": dict(measured.missing),
                "paid": {"calls": paid.calls, "tokens": paid.tokens},
                "known": lab.replies.known,
                "results": dict(measured.results),
            }
        )
    else:
        print(_summary(page, len(measured.results), measured.missing))
    if measured.stop is not None:
        note(f"pco: stopped: {measured.stop}\n  next: the same command again goes on from here")
        return measured.stop.exit_code
    return 1 if measured.missing else 0


def _summary(page: Path, finished: int, missing: Mapping[str, str]) -> str:
    lines = [f"{finished} cells finished"]
    if missing:
        lines.append(f"not measured: {', '.join(missing)}")
    return "\n".join([*lines, f"page: {page}"])
