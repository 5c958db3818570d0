"""`pco reproduce`: measure what a page of docs/results says, cell by cell, and write the page."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from promptcodebook.base.paths import BENCH, runs_dir
from promptcodebook.base.text import shell
from promptcodebook.calls import Usage
from promptcodebook.cli.command import Json, ModelOption, Plain, emit, note

if TYPE_CHECKING:
    from promptcodebook.paper.experiments.experiment import Results

_NAMED = 8  # cells without a result that a summary names


def reproduce(
    name: str = typer.Argument(
        ..., help="A table or figure (docs/experiments.md lists them), or all."
    ),
    seeds: int | None = typer.Option(None, min=1, help="Number of seeds; default: the page's."),
    preset: str = typer.Option(
        "default", help="quick (checks that everything runs), default, or paper (the paper's size)."
    ),
    lm: ModelOption = None,
    task: str = typer.Option("", help="Measure on this task instead of the page's."),
    data: str = typer.Option("", help="Folder of the task's data."),
    independent: str = typer.Option("", help="Model of the independent critic (critic)."),
    weak: str = typer.Option("", help="Model of the weak critic (critic)."),
    cells: int = typer.Option(
        4, min=1, help="Cells to run at once; 1 shows progress within each cell."
    ),
    concurrency: int = typer.Option(64, min=1, help="Maximum calls in flight, over all cells."),
    out: Path = typer.Option(Path("docs/results"), help="Folder for the page, NAME.md."),
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Rerun the experiments behind a page of docs/results, and write the page.

    The most important cells are measured first. After Ctrl-C, rerun the command to resume; nothing
    is measured or paid for twice. The page lists missing cells. Runs and replies are stored in
    RUNS/bench. Each page's default model is used unless you name one with --lm; PCO_LM is
    ignored."""
    from promptcodebook.paper.experiments.experiment import ExperimentRequest
    from promptcodebook.paper.experiments.lab import Lab, open_lab
    from promptcodebook.paper.experiments.reproduce import (
        experiment_named,
        experiment_names,
        measure,
        refusal,
    )
    from promptcodebook.progress import silent, watch_run

    orders: list[ExperimentRequest] = []
    for each in experiment_names() if name == "all" else (name,):
        experiment = experiment_named(each)
        if refused := refusal(experiment, preset, lm or ""):
            if name == "all":
                continue
            raise refused
        count = seeds or (1 if preset == "quick" else experiment.seeds)
        orders.append(ExperimentRequest(experiment, preset, count, task, data, independent, weak))
    # Steps of several runs at once would be shown as those of one.
    view = watch_run(plain=plain) if cells == 1 else nullcontext(silent)
    typed, labs, worst = shell("pco", *sys.argv[1:]), dict[Path, Lab](), 0
    with view as listener, ExitStack() as closing:
        for order in orders:
            # Experiments of one folder and model share their lab, and so the model.
            of = order.experiment
            spec = lm or (of.lm_quick if preset == "quick" else of.lm)
            beside = "" if spec == of.lm else f"-{re.sub('[^A-Za-z0-9.]+', '-', spec)}"
            folder = runs_dir() / BENCH / f"{of.folder}{beside}"
            if folder not in labs:
                labs[folder] = open_lab(folder, spec, typed, listener, concurrency=concurrency)
                closing.callback(labs[folder].close)
            lab = labs[folder]
            measured = measure(order, lab, note, cells)
            show(measured, out, as_json=as_json)
            if measured.stop is not None:
                note(f"pco: stopped: {measured.stop}\n  next: the same command resumes it")
                return measured.stop.exit_code
            worst = max(worst, 1 if measured.missing else 0)
    return worst


def show(measured: Results, out: Path, *, as_json: bool) -> None:
    """Writes the page however far it came, and says where it is."""
    from promptcodebook.paper.experiments.reproduce import write_page

    page, replies = write_page(out, measured), measured.lab.replies
    if not as_json:
        print(f"{len(measured.results)} cells finished")
        if absent := list(measured.missing):
            more = len(absent) - _NAMED
            beside = f" and {more} more, listed on the page" if more > 0 else ""
            print(f"not measured: {', '.join(absent[:_NAMED])}{beside}")
        print(f"page: {page}")
        return
    paid = replies.paid if replies else Usage()
    emit(
        {
            "experiment": measured.order.experiment.name,
            "page": str(page),
            "finished": list(measured.results),
            "missing": dict(measured.missing),
            "paid": {"calls": paid.calls, "tokens": paid.tokens},
            "known": replies.known if replies else 0,
            "results": dict(measured.results),
        }
    )
