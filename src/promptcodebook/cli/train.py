"""`pco train`: learn a codebook, see it happen, end with a verdict. `pco bench`: the same for every
benchmark with a few settings; `pco reproduce main` is the paper's table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.cli import command
from promptcodebook.cli.command import Json, Plain, columns, note, options, show, wrap_text
from promptcodebook.cli.runs import write_run_report
from promptcodebook.config import TYPED, Config, load_config, load_typed, merge
from promptcodebook.errors import ConfigError, MissingExtra, PcoError, Stop, did_you_mean
from promptcodebook.lm.spec import require_keys
from promptcodebook.lm.stack import local_models, specs_of
from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.paths import BENCH, run_reference, runs_dir
from promptcodebook.policy.file import CONCAT, MEASURED, PRESENT
from promptcodebook.policy.references import POLICY, require_trust
from promptcodebook.progress import watch_run
from promptcodebook.run.opening import Where, file_digest, open_run
from promptcodebook.run.optimize import BENCHMARKS, CellState, Run, finish, load_run, run_once
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, find_run, list_runs
from promptcodebook.sync import run_sync
from promptcodebook.units import count_text, lost_text

app = command.command_group()


@app.command()
@options
def train(
    wanted: command.Wanted,
    resume: str | None = typer.Option(None, help="Resume this run (or 'last')."),
    name: str = typer.Option("", help="What to call the run; works wherever a run is."),
    trust: command.Trust = False,
    edited: bool = typer.Option(
        False, "--edited", help="Resume although the reward or agent was edited."
    ),
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Learn a codebook; ends with a verdict on the test split.

    Ctrl-C (or SIGTERM) stops in order and keeps everything; --resume continues from there."""
    path, file = find_run(runs_dir(), resume) if resume else None, None
    if path is None or wanted.config is not None:
        settings, base = wanted.gather()
        file = command.toml_path(wanted.config)
    else:
        settings, base = _stored_settings(path, resume or "", wanted, trust)
    where = Where(runs_dir(), path, _as_typed(), name, edited, file)
    try:
        with watch_run(plain=plain) as view:
            opened = open_run(settings, Sources(base), where, view)
            run = run_sync(finish(opened), opened.interrupt)
    except PcoError as error:
        if error.run is not None and not as_json:  # the error's own document has the run in it
            print(_verdict_text(error.run))
        raise
    show(lambda: verdict_json(run), lambda: _verdict_text(run), as_json=as_json)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    return 0


def _as_typed() -> str:
    return shlex.join(["pco", *sys.argv[1:]])


def _stored_settings(
    path: Path, ref: str, wanted: command.Wanted, trust: bool
) -> tuple[Config, Path]:
    """The stored configuration, with what was typed now over it; names a pco.toml that changed."""
    with closing(RunStore.open(path)) as store:
        header, base = store.header, Path(store.header.base or ".")
    budget = {key: value for key, value in command.environment_layer().items() if key == "budget"}
    typed = merge(budget, wanted.flags, command.set_layer(wanted.sets or []))
    require_trust(header, typed, trusted=store.ours or trust, ref=run_reference(path))
    config = load_typed(header.settings, typed=typed, where=f"the run {path.name}")
    for file, mark in ((base / name, mark) for name, mark in header.files.items()):
        if file.suffix == ".toml" and file_digest(file) not in ("", mark):
            note(
                f"{file} changed since the run started: the change is ignored, and the run keeps "
                f"its own settings\n  to use the file's: pco train {file} --resume {ref}"
            )
    return config, base


def _verdict_text(run: Run) -> str:
    lines: list[str] = []
    if run.conclusion is not None:
        lines += [command.headline_text(run.conclusion.headline(run_reference(run.path))), ""]
    if run.verdict:
        lines += [wrap_text(run.verdict, ""), ""]
    if run.conclusion is not None and (rows := run.conclusion.rows):
        tables = command.verdict_text(run.conclusion.table)
        lines += [f"test split, n = {rows[0].score.n}:", "", tables, ""]
    # All that was paid or lost, beside the limits of the budget: '372 of 400 calls'.
    lines.append(f"run {run.id}: {run.bill}")
    if run.lost.calls:
        lines.append(f"  of it {lost_text(run.lost)}")
    return "\n".join([*lines, *_next(run)])


def _next(run: Run) -> Iterator[str]:
    typed, policy = run_reference(run.path), run.path / POLICY
    report = f"pco report {typed}"
    rows = run.conclusion.rows if run.conclusion is not None else ()
    if policy.is_file():
        yield f"policy: {policy}"
        asking = f'pco explain {typed} "an input"'
        if run.deploy in (PRESENT, CONCAT, *MEASURED):
            asking = f"pco prompt {typed} --row {run.deploy}"
        elif run.deploy == UNTRAINED:
            asking = f'pco prompt {typed} --row {UNTRAINED} "an input"'
        # After a failure it would ask models of which one has just failed.
        yield f"next: {report}" if run.ended == "failed" else f"next: {asking}\n      {report}"
    elif rows:
        yield f"next: pco prompt {typed} --row {run.deploy or rows[-1].name}\n      {report}"


def verdict_json(run: Run) -> dict[str, Any]:
    """The same for machines, with all figures."""
    policy = run.path / POLICY
    return {
        "run": run.id,
        "name": run.name,
        "path": str(run.path),
        "ended": run.ended,
        "headline": asdict(run.conclusion.headline(run.id)) if run.conclusion else None,
        "worth": run.worth,
        "verdict": run.verdict,
        "deploy": run.deploy,
        "best": asdict(run.best),
        "rows": list(run.conclusion.table.as_json()) if run.conclusion else [],
        "usage": {role: asdict(u) for role, u in run.usage.items()},
        "cost": run.cost,
        "lost": asdict(run.lost),
        "budget": run.budget.model_dump(),
        "settings": dict(run.settings),
        "tallies": dict(run.tallies),
        "policy": str(policy) if policy.is_file() else None,
    }


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
    only: list[str] | None = typer.Option(
        None, "--task", help="Only this benchmark (may be repeated)."
    ),
    data: command.DataDir = None,
    lm: command.Model = None,
    budget: command.Budget = None,
    seed: command.Seed = None,
    out: Path | None = typer.Option(
        None, help="Folder of the suite's runs; default: RUNS/bench/SUITE."
    ),
    sets: command.Sets = None,
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Train, evaluate and report on each benchmark; a table at the end.

    Without --lm (or PCO_LM) the simulated model takes its place, which proves that everything
    runs, not that anything is good. A finished cell is skipped and a stopped one resumed: run the
    same command again. --budget is for each cell."""
    known = [("suite", suite, tuple(_SUITES)), *(("task", name, BENCHMARKS) for name in only or ())]
    for what, name, names in known:
        if name not in names:
            message = f"pco bench has no {what} {name!r}{did_you_mean(name, names)}"
            raise ConfigError(message, hint=f"choose from {', '.join(names)}")
    flags = command.flag_layer(None, data, lm=lm, seed=seed, budget=budget or None)
    typed = command.environment_layer(), flags, command.set_layer(sets or ())
    layers = {"lm": "simulated"}, _SUITES[suite], *typed
    tasks = [task for task in BENCHMARKS if not only or task in only]
    configs = [load_config(*layers, {"task": task}, where=TYPED) for task in tasks]
    done, failed, stop = list[Cell](), dict[str, str](), None
    local = local_models()
    try:
        for config in configs:
            # What the user has to mend before any run begins: a key that is not set, a package that
            # a benchmark needs. What is wrong with one task alone waits for it.
            require_keys(specs_of(config))
            try:
                plan_run(config, Sources()).require_training()
            except PcoError as error:
                if isinstance(error, MissingExtra):
                    raise
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


def _run(config: Config, sources: Sources, folder: Path, *, plain: bool) -> Cell:
    with watch_run(plain=plain) as view:
        path, state = run_once(config, sources, Where(folder, command=_as_typed()), view)
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
    rows, run = list(cell.run.rows.values()), cell.run
    first, last = (rows[0], rows[-1]) if rows else (None, None)
    gain = last.gain if last else None
    scores = {
        "task": cell.summary.task,
        "n": str(last.score.n) if last else "-",
        "failed": str(last.failed) if last else "-",
        "base (95 %)": first.score.text(level="", between=command.BETWEEN) if first else "-",
        "trained (95 %)": last.score.text(level="", between=command.BETWEEN) if last else "-",
    }
    return scores, {
        "task": cell.summary.task,
        "model": "simulated" if run.simulated else "real",
        "gain (95 %)": gain.text(signed=True, level="", between=command.BETWEEN) if gain else "-",
        "updates": str(cell.summary.step + 1),
        "calls": count_text(cell.summary.usage.calls),
        "cell": cell.state,
    }
