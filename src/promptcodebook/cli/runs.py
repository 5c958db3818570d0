"""`pco runs`: list, show, remove."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.cli.console import columns, duration, emit, money, number
from promptcodebook.cli.options import Json, RunRef
from promptcodebook.cli.settings import runs_dir
from promptcodebook.errors import ConfigError, RunBusy

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Runs on disk, below $PCO_RUNS or ./runs.",
)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """One line a run, oldest first."""
    from promptcodebook.store.runs import list_runs

    found = list_runs(runs_dir())
    if as_json:
        emit([_plain(run) for run in found])
    elif found:
        print(columns([_cells(run) for run in found]))
    else:
        print(f"no run in {runs_dir()} yet\nnext: pco train")


def _standing(run: Any) -> str:
    if run.running:
        return f"running (process {run.writer})" if run.writer else "running"
    return run.ended or "stopped"


def _cells(run: Any) -> dict[str, str]:
    return {
        "run": run.id,
        "task": run.task,
        "state": _standing(run),
        "updates": str(run.step + 1),
        "best val": number(run.best),
        "calls": str(run.usage.calls),
        "tokens": str(run.usage.tokens),
        "USD": money(run.usage.cost),
        "time": duration(run.elapsed_s),
    }


def _plain(run: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(run),
        "path": str(run.path),
        "running": run.running,
        "resumable": run.resumable,
    }


@app.command()
def show(run: RunRef, as_json: Json = False) -> None:
    """What a run was started with, where it stands, what it cost, and what failed."""
    from promptcodebook.cli.run_page import run_json, run_text
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    store = RunStore.open(find_run(runs_dir(), run))
    try:
        if as_json:
            emit(run_json(store))
        else:
            print(run_text(store))
    finally:
        store.close()


@app.command()
def rm(
    runs: Annotated[list[str], typer.Argument(help="Runs: ids, starts of ids, or 'last'.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove runs with all they hold: codebooks, journals, reports. A busy run is left alone."""
    from promptcodebook.store.runs import find_run, remove_run

    paths = list(dict.fromkeys(find_run(runs_dir(), ref) for ref in runs))
    for path in paths:
        _refuse_busy(path)
    if not yes:
        _confirmed(paths)
    for path in paths:
        remove_run(path)
    if as_json:
        emit({"removed": [str(path) for path in paths]})
    else:
        print("\n".join(f"removed {path}" for path in paths))


def _refuse_busy(path: Path) -> None:
    from promptcodebook.store.lock import holder

    pid = holder(path)
    if pid is not None:
        raise RunBusy(
            f"the run {path.name} is being written by process {pid or 'unknown'}; "
            "nothing was removed",
            hint="wait until it ends" + (f", or stop it: kill -INT {pid}" if pid else ""),
        )


def _confirmed(paths: list[Path]) -> None:
    """Asks on a terminal; without one, --yes is needed."""
    names = ", ".join(path.name for path in paths)
    if not sys.stdin.isatty():
        raise ConfigError(f"not removed without being asked to: {names}", hint="add --yes")
    print(f"Remove {names} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed", hint="answer y, or add --yes")
