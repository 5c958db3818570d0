"""`pco train`: learn a codebook, see it happen, end with a verdict."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.cli.console import emit, note
from promptcodebook.cli.options import (
    Budget,
    ConfigPath,
    DataDir,
    Json,
    Model,
    Preset,
    Seed,
    Sets,
    TaskName,
    task_flags,
)
from promptcodebook.cli.settings import gathered, runs_dir

__all__ = ["app", "run_and_show"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def train(
    config: ConfigPath = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    preset: Preset = None,
    budget: Budget = None,
    seed: Seed = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run (or 'last').")] = None,
    sets: Sets = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    as_json: Json = False,
) -> int:
    """Learn a codebook; ends with a verdict on the test split.

    Ctrl-C stops in order and keeps everything; --resume goes on from there.
    """
    from promptcodebook.config import parse_budget
    from promptcodebook.store.runs import find_run

    flags: dict[str, Any] = {
        **task_flags(task, data, lm),
        "preset": preset,
        "seed": seed,
        "budget": parse_budget(budget).model_dump() if budget else None,
    }
    path = find_run(runs_dir(), resume) if resume else None
    settings, base = (
        gathered(config, flags, sets or [])
        if path is None
        else _again(path, config, flags, sets or [])
    )
    return run_and_show(settings, base, path, plain=plain, as_json=as_json)


def _again(
    path: Path, config: Path | None, flags: dict[str, Any], sets: list[str]
) -> tuple[Any, Path]:
    """The stored configuration, with what was typed now laid over it."""
    from promptcodebook.cli.settings import environment_layer, set_layer
    from promptcodebook.config import load_config
    from promptcodebook.store.run import RunStore

    if config is not None:
        return gathered(config, flags, sets)
    store = RunStore.open(path)
    header = store.header
    store.close()
    given = {key: value for key, value in flags.items() if value is not None}
    money = {k: v for k, v in environment_layer().items() if k == "budget"}
    layers = (dict(header.config), money, given, set_layer(sets))
    return load_config(*layers, where=f"the run {path.name}"), Path(header.base or ".")


def run_and_show(
    settings: Any, base: Path, resume: Path | None, *, plain: bool, as_json: bool
) -> int:
    """Runs a session under a view; prints the verdict; returns the exit code."""
    from promptcodebook.cli.verdict import verdict_json, verdict_text
    from promptcodebook.cli.view import make_view
    from promptcodebook.session.opening import Where, open_run
    from promptcodebook.session.optimize import finish
    from promptcodebook.session.sources import Sources
    from promptcodebook.session.sync import run_sync

    command = shlex.join(["pco", *sys.argv[1:]])
    where = Where(runs_dir(), resume, command)
    with make_view(sys.stderr, plain=plain) as view:
        opened = open_run(settings, Sources(base), where, view)
        run = run_sync(finish(opened), opened.session.interrupt)
    if as_json:
        emit(verdict_json(run))
    else:
        print(verdict_text(run))
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    return 0
