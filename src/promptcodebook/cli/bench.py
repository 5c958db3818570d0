"""`pco bench`: every benchmark trained, evaluated and reported with a few settings; `pco reproduce
main` is the paper's table. Finished cells are skipped."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import BETWEEN, columns, note, show
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
from promptcodebook.errors import ConfigError, MissingExtra, PcoError, Stop, did_you_mean
from promptcodebook.paths import BENCH, runs_dir
from promptcodebook.units import count_text

if TYPE_CHECKING:
    from promptcodebook.assemble import Sources
    from promptcodebook.config import Config
    from promptcodebook.run.optimize import CellState, Run
    from promptcodebook.store.runs import RunSummary

app = command_group()

_SUITES: Mapping[str, Mapping[str, Any]] = {
    "quick": {
        "preset": "quick",
        "update": {"epochs": 3, "batch_size": 8},
        "validation": {"every": 3, "subset": 16, "finalists": 1},
    },
    "paper": {"preset": "paper"},
}
"""Settings that all benchmarks share: whether everything runs, and the paper's Table 6."""


@dataclass(frozen=True)
class Cell:
    """A finished run of one benchmark."""

    run: Run
    summary: RunSummary
    state: CellState

    def as_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "task": self.summary.task,
            "run": run.id,
            "path": str(run.path),
            "report": str(run.path / "report.html"),
            "state": self.state,
            "simulated": run.simulated,
            "updates": self.summary.step + 1,
            "calls": self.summary.usage.calls,
            "verdict": run.verdict,
            "rows": list(run.conclusion.table.as_json()) if run.conclusion else [],
        }


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
    from promptcodebook.assemble import Sources
    from promptcodebook.config import TYPED, load_config
    from promptcodebook.lm.stack import local_models
    from promptcodebook.run.optimize import BENCHMARKS
    from promptcodebook.sync import run_sync

    known = [("suite", suite, tuple(_SUITES)), *(("task", name, BENCHMARKS) for name in only or ())]
    for what, name, names in known:
        if name not in names:
            raise ConfigError(
                f"pco bench has no {what} {name!r}{did_you_mean(name, names)}",
                hint=f"choose from {', '.join(names)}",
            )
    flags = flag_layer(None, data, lm=lm, seed=seed, budget=budget or None)
    layers = {"lm": "simulated"}, _SUITES[suite], environment_layer(), flags, set_layer(sets or ())
    tasks = [task for task in BENCHMARKS if not only or task in only]
    configs = [load_config(*layers, {"task": task}, where=TYPED) for task in tasks]
    done, failed, stop = list[Cell](), dict[str, str](), None
    local = local_models()
    try:
        _require_all(configs, Sources())
        for config in configs:
            note(f"{config.task}:")
            try:
                folder = out or runs_dir() / BENCH / suite
                done.append(_run(config, Sources(local=local), folder, plain=plain))
            except Stop as stopped:
                stop = stopped
                break
            except PcoError as error:
                failed[config.task] = f"{error}{f' (next: {error.hint})' if error.hint else ''}"
                note(f"{config.task}: failed: {failed[config.task]}")
    finally:
        if local is not None:
            run_sync(local.close())
    tree = {"suite": suite, "cells": [cell.as_json() for cell in done], "failed": failed}
    show(lambda: tree, lambda: suite_text(suite, done, failed), as_json=as_json)
    if stop is not None:
        note(f"pco: stopped: {stop}\n  next: the same command resumes it")
        return stop.exit_code
    return 1 if failed else 0


def _require_all(configs: list[Config], sources: Sources) -> None:
    """Raises what the user has to mend before any run begins: a key that is not set, a package that
    a benchmark needs. What is wrong with one task alone waits for it."""
    from promptcodebook.assemble import plan_run
    from promptcodebook.lm.spec import require_keys
    from promptcodebook.lm.stack import specs_of

    for config in configs:
        require_keys(specs_of(config))
        try:
            plan_run(config, sources).require_training()
        except MissingExtra:
            raise
        except PcoError:
            pass


def _run(config: Config, sources: Sources, folder: Path, *, plain: bool) -> Cell:
    """The benchmark's run with its report, which a finished run has already."""
    from promptcodebook.cli.live import watch_run
    from promptcodebook.cli.runs import write_run_report
    from promptcodebook.run.opening import Where
    from promptcodebook.run.optimize import load_run, run_once
    from promptcodebook.store.runs import list_runs

    with watch_run(plain=plain) as view:
        typed = shlex.join(["pco", *sys.argv[1:]])
        path, state = run_once(config, sources, Where(folder, command=typed), view)
    report = path / "report.html"
    if state == "skipped":
        note(f"{config.task}: finished before, skipped")
    if state != "skipped" or not report.is_file():
        write_run_report(path, report)
    summary = next(each for each in list_runs(folder) if each.path.name == path.name)
    return Cell(load_run(path), summary, state)


def suite_text(suite: str, done: Sequence[Cell], failed: Mapping[str, str]) -> str:
    """What became of a suite: rewards with 95 % intervals on the test split, then the runs."""
    lines = [f"suite {suite}: {len(done)} finished, {len(failed)} failed"]
    if done:
        scores, runs = zip(*map(_cells, done), strict=True)
        lines += ["", columns(scores), "", columns(runs), ""]
        lines += [f"report: {cell.run.path / 'report.html'}" for cell in done]
    lines += [f"failed  {task}: {message}" for task, message in failed.items()]
    if any(cell.run.simulated for cell in done):
        lines += ["", "Rows marked simulated show that everything runs, not that it is any good."]
    return "\n".join(lines)


def _cells(cell: Cell) -> tuple[dict[str, str], dict[str, str]]:
    """The rewards of a run, and what it took."""
    rows, run = list(cell.run.rows.values()), cell.run
    first, last = (rows[0], rows[-1]) if rows else (None, None)
    gain = last.gain if last else None
    scores = {
        "task": cell.summary.task,
        "n": str(last.score.n) if last else "-",
        "failed": str(last.failed) if last else "-",
        "base (95 %)": first.score.text(level="", between=BETWEEN) if first else "-",
        "trained (95 %)": last.score.text(level="", between=BETWEEN) if last else "-",
    }
    return scores, {
        "task": cell.summary.task,
        "model": "simulated" if run.simulated else "real",
        "gain (95 %)": gain.text(signed=True, level="", between=BETWEEN) if gain else "-",
        "updates": str(cell.summary.step + 1),
        "calls": count_text(cell.summary.usage.calls),
        "cell": cell.state,
    }
