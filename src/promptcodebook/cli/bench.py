"""`pco bench`: every benchmark trained, evaluated and reported; finished cells are skipped."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, note
from promptcodebook.cli.options import Budget, DataDir, Json, Model, Seed, Sets

if TYPE_CHECKING:
    from promptcodebook.errors import PcoError, Stop
    from promptcodebook.session.suite import Cell, CellResult

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


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
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    as_json: Json = False,
) -> int:
    """Train, evaluate and report on each benchmark; a table at the end.

    Without --lm (or PCO_LM) the simulated model stands in, which proves that all runs, not that
    anything is good. A finished cell is skipped and a stopped one goes on: type the same again.
    --budget is for each cell.
    """
    from promptcodebook.config import parse_budget
    from promptcodebook.session.suite import suite_named

    chosen = suite_named(suite)
    flags: dict[str, Any] = {
        "data_dir": str(Path(data).resolve()) if data else None,
        "lm": lm,
        "seed": seed,
        "budget": parse_budget(budget).model_dump() if budget else None,
    }
    cells = _cells(chosen, only or (), flags, sets or (), out)
    done, failed, stop = _run_all(cells, plain=plain)
    if as_json:
        emit({"suite": suite, "cells": [_plain(r) for r in done], "failed": failed})
    else:
        print(_text(suite, done, failed))
    if stop is not None:
        note(f"pco: stopped: {stop}\n  next: the same command again goes on from here")
        return stop.exit_code
    return 1 if failed else 0


def _cells(suite: Any, only: Any, flags: dict[str, Any], sets: Any, out: Path | None) -> list[Cell]:
    """One cell a benchmark: the suite's settings under PCO_*, under what was typed."""
    from promptcodebook.cli.settings import environment_layer, runs_dir, set_layer
    from promptcodebook.config import load_config
    from promptcodebook.session.suite import Cell

    given = {key: value for key, value in flags.items() if value is not None}
    folder = out or runs_dir() / "bench" / suite.name
    layers = ({"lm": "simulated"}, suite.settings, environment_layer(), given, set_layer(sets))
    return [
        Cell(load_config(*layers, {"task": task}, where="pco bench"), Path(), folder)
        for task in suite.tasks(only)
    ]


def _run_all(
    cells: list[Cell], *, plain: bool
) -> tuple[list[CellResult], dict[str, str], Stop | None]:
    """Every cell in turn; one that fails is noted and the others go on, a Stop ends all."""
    from promptcodebook.cli.view import make_view
    from promptcodebook.errors import PcoError, Stop
    from promptcodebook.session.suite import run_cell

    command = shlex.join(["pco", *sys.argv[1:]])
    done, failed = list["CellResult"](), dict[str, str]()
    for cell in cells:
        task = cell.config.task
        note(f"{task}:")
        try:
            with make_view(sys.stderr, plain=plain) as view:
                result = run_cell(cell, command, view)
            if result.state == "skipped":
                note(f"{task}: finished before, skipped")
            _report(result)
        except Stop as stop:
            return done, failed, stop
        except PcoError as error:
            failed[task] = _said(error)
            note(f"{task}: failed: {failed[task]}")
        else:
            done.append(result)
    return done, failed, None


def _said(error: PcoError) -> str:
    return f"{error} (next: {error.hint})" if error.hint else str(error)


def _report(result: CellResult) -> None:
    """RUN/report.html, unless the run has one already."""
    from promptcodebook.report import write_report
    from promptcodebook.store.run import RunStore

    target = result.path / "report.html"
    if result.state == "skipped" and target.is_file():
        return
    store = RunStore.open(result.path)
    try:
        write_report(store, target, dict(result.inputs))
    finally:
        store.close()


def _text(suite: str, done: list[CellResult], failed: dict[str, str]) -> str:
    lines = [f"suite {suite}: {len(done)} finished, {len(failed)} failed"]
    if done:
        lines += ["", columns([_line(result) for result in done])]
        lines += ["", *(f"report: {result.path / 'report.html'}" for result in done)]
    lines += [f"failed  {task}: {said}" for task, said in failed.items()]
    if any(result.simulated for result in done):
        lines += ["", "Rows marked simulated show that everything runs, not that it is any good."]
    return "\n".join(lines)


def _line(result: CellResult) -> dict[str, str]:
    base, learned = result.row("present"), result.row("learned")
    return {
        "task": result.task,
        "model": "simulated" if result.simulated else "real",
        "n": str(learned["score"]["n"]) if learned else "-",
        "zero-shot": _interval(base and base["score"]),
        "trained": _interval(learned and learned["score"]),
        "gain": _interval(learned and learned["gain"], "+"),
        "failed": str(learned["failed"]) if learned else "-",
        "updates": str(result.updates),
        "calls": str(result.calls),
        "cell": result.state,
    }


def _interval(score: Any, sign: str = "") -> str:
    """mean (95 % low..high)."""
    if not score:
        return "-"
    mean, low, high = (format(score[key], f"{sign}.3f") for key in ("mean", "low", "high"))
    return f"{mean} ({low}..{high})"


def _plain(result: CellResult) -> dict[str, Any]:
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
