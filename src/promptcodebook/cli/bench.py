"""`pco bench`: every benchmark trained, evaluated and reported; finished cells are skipped."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, note, range_text
from promptcodebook.cli.settings import (
    Budget,
    DataDir,
    Json,
    Model,
    Plain,
    Seed,
    Sets,
    command_group,
    environment_layer,
    flag_layer,
    set_layer,
)
from promptcodebook.paths import BENCH, runs_dir
from promptcodebook.units import count_text, number

if TYPE_CHECKING:
    from promptcodebook.errors import Stop
    from promptcodebook.lm.connections import LocalModels
    from promptcodebook.run.suite import Cell, CellResult, Suite

app = command_group()


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="quick or paper.")],
    only: Annotated[
        list[str] | None, typer.Option("--task", help="Only this benchmark (may be repeated).")
    ] = None,
    data: DataDir = None,
    lm: Model = None,
    budget: Budget = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the suite's runs; default: RUNS/bench/SUITE.")
    ] = None,
    sets: Sets = None,
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Train, evaluate and report on each benchmark; a table at the end.

    Without --lm (or PCO_LM) the simulated model takes its place, which proves that everything
    runs, not that anything is good. A finished cell is skipped and a stopped one resumed: run the
    same command again. --budget is for each cell.
    """
    from promptcodebook.lm.connections import local_models
    from promptcodebook.run.suite import require_all, suite_named
    from promptcodebook.sync import run_sync

    chosen = suite_named(suite)
    folder = out or runs_dir() / BENCH / suite
    flags = flag_layer(None, data, lm, None, seed, budget)
    typed = (environment_layer(), flags, set_layer(sets or ()))
    layers = ({"lm": "simulated"}, chosen.settings, *typed)
    local = local_models()
    cells = _cells(chosen, only or (), layers, folder, local)
    require_all(cells)
    try:
        outcome = _run_all(cells, plain=plain)
    finally:
        if local is not None:
            run_sync(local.close())
    if as_json:
        cells = [_result_json(result) for result in outcome.done]
        emit({"suite": suite, "cells": cells, "failed": outcome.failed})
    else:
        print(_outcome_text(suite, outcome))
    if outcome.stop is not None:
        note(f"pco: stopped: {outcome.stop}\n  next: the same command again goes on from here")
        return outcome.stop.exit_code
    return 1 if outcome.failed else 0


@dataclass
class _Outcome:
    """What became of a suite: results in order, errors by task, and what ended it early."""

    done: list[CellResult] = field(default_factory=list["CellResult"])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    stop: Stop | None = None


def _cells(
    suite: Suite,
    only: Sequence[str],
    layers: Sequence[Mapping[str, Any]],
    folder: Path,
    local: LocalModels | None,
) -> list[Cell]:
    """One cell per benchmark."""
    from promptcodebook.config import TYPED, load_config
    from promptcodebook.run.suite import Cell

    return [
        Cell(load_config(*layers, {"task": task}, where=TYPED), Path(), folder, local)
        for task in suite.tasks(only)
    ]


def _run_all(cells: Sequence[Cell], *, plain: bool) -> _Outcome:
    """Every cell in turn; one that fails is noted and the others go on, a Stop ends all."""
    from promptcodebook.errors import PcoError, Stop

    outcome = _Outcome()
    for cell in cells:
        task = cell.config.task
        note(f"{task}:")
        try:
            outcome.done.append(_run_one(cell, plain=plain))
        except Stop as stop:
            outcome.stop = stop
            break
        except PcoError as error:
            hint = f" (next: {error.hint})" if error.hint else ""
            outcome.failed[task] = f"{error}{hint}"
            note(f"{task}: failed: {outcome.failed[task]}")
    return outcome


def _run_one(cell: Cell, *, plain: bool) -> CellResult:
    """The cell's run with its report, which a finished run has already."""
    from promptcodebook.cli.runs import write_run_report
    from promptcodebook.cli.views import make_view
    from promptcodebook.run.suite import run_cell

    with make_view(sys.stderr, plain=plain) as view:
        result = run_cell(cell, shlex.join(["pco", *sys.argv[1:]]), view)
    report = result.path / "report.html"
    if result.state == "skipped":
        note(f"{result.task}: finished before, skipped")
    if result.state != "skipped" or not report.is_file():
        write_run_report(result.path, report, result.inputs)
    return result


def _outcome_text(suite: str, outcome: _Outcome) -> str:
    done, failed = outcome.done, outcome.failed
    lines = [f"suite {suite}: {len(done)} finished, {len(failed)} failed"]
    if done:
        lines += ["", columns([_score_cells(result) for result in done])]
        lines += ["", columns([_run_cells(result) for result in done])]
        lines += ["", *(f"report: {result.path / 'report.html'}" for result in done)]
    lines += [f"failed  {task}: {message}" for task, message in failed.items()]
    if any(result.simulated for result in done):
        lines += ["", "Rows marked simulated show that everything runs, not that it is any good."]
    return "\n".join(lines)


def _score_cells(result: CellResult) -> dict[str, str]:
    """Rewards with 95 % intervals on the test split."""
    base, last = result.base or {}, result.result or {}
    return {
        "task": result.task,
        "n": str(last["score"]["n"]) if last else "-",
        "failed": str(last["failed"]) if last else "-",
        "base (95 %)": _interval(base.get("score")),
        "trained (95 %)": _interval(last.get("score")),
    }


def _run_cells(result: CellResult) -> dict[str, str]:
    return {
        "task": result.task,
        "model": "simulated" if result.simulated else "real",
        "gain (95 %)": _interval((result.result or {}).get("gain"), signed=True),
        "updates": str(result.updates),
        "calls": count_text(result.calls),
        "cell": result.state,
    }


def _interval(score: Mapping[str, float] | None, *, signed: bool = False) -> str:
    """0.500 (0.400..0.600)."""
    if not score:
        return "-"
    ends = range_text(score["low"], score["high"], signed=signed)
    return f"{number(score['mean'], signed=signed)} ({ends})"


def _result_json(result: CellResult) -> dict[str, Any]:
    return {
        "task": result.task,
        "run": result.run,
        "path": str(result.path),
        "report": str(result.path / "report.html"),
        "state": result.state,
        "simulated": result.simulated,
        "updates": result.updates,
        "calls": result.calls,
        "verdict": result.sentence,
        "rows": [dict(row) for row in result.rows],
    }
