"""`pco train`: learn a codebook, see it happen, end with a verdict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import emit, note, verdict_text, wrap_text
from promptcodebook.cli.settings import (
    Budget,
    ConfigPath,
    DataDir,
    Json,
    Model,
    Plain,
    Preset,
    Seed,
    Sets,
    TaskName,
    Trust,
    command_group,
    environment_layer,
    flag_layer,
    gather_settings,
    set_layer,
    toml_path,
)
from promptcodebook.errors import PcoError
from promptcodebook.paths import run_reference, runs_dir
from promptcodebook.units import lost_text, spent_parts

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.run.opening import Where
    from promptcodebook.run.optimize import Run

app = command_group()


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
    name: Annotated[str, typer.Option(help="What to call the run; works wherever a run is.")] = "",
    sets: Sets = None,
    trust: Trust = False,
    edited: Annotated[
        bool, typer.Option("--edited", help="Resume although the reward or agent was edited.")
    ] = False,
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Learn a codebook; ends with a verdict on the test split.

    Ctrl-C (or SIGTERM) stops in order and keeps everything; --resume continues from there.
    """
    from promptcodebook.run.opening import Where
    from promptcodebook.store.runs import find_run

    flags = flag_layer(task, data, lm, preset, seed, budget)
    path = find_run(runs_dir(), resume) if resume else None
    if path is None or config is not None:
        settings, base = gather_settings(config, flags, sets)
    else:
        settings, base = _stored_settings(path, flags, sets or [], trust)
        _tell_of_edited_settings(path, resume or "")
    file = toml_path(config) if path is None or config is not None else None
    typed = shlex.join(["pco", *sys.argv[1:]])
    where = Where(runs_dir(), path, typed, name, edited, file)
    try:
        run = _train(settings, base, where, plain=plain)
    except PcoError as error:
        if error.run is not None and not as_json:  # the error's own document has the run in it
            _show(error.run, as_json=False)
        raise
    _show(run, as_json=as_json)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    return 0


def _show(run: Run, *, as_json: bool) -> None:
    """What a run came to, however it ended."""
    if as_json:
        emit(verdict_json(run))
    else:
        print(_verdict_text(run))


def _stored_settings(
    path: Path, flags: Mapping[str, Any], sets: list[str], trust: bool
) -> tuple[Config, Path]:
    """The stored configuration, with what was typed now laid over it."""
    from promptcodebook.config import load_typed, merge
    from promptcodebook.policy.references import require_trust
    from promptcodebook.store.run import RunStore

    store = RunStore.open(path)
    header = store.header
    store.close()
    budget = {key: value for key, value in environment_layer().items() if key == "budget"}
    typed = merge(budget, flags, set_layer(sets))
    require_trust(header, typed, trusted=store.ours or trust, ref=run_reference(path))
    config = load_typed(header.settings, typed=typed, where=f"the run {path.name}")
    return config, Path(header.base or ".")


def _tell_of_edited_settings(path: Path, ref: str) -> None:
    """Says where the pco.toml of a resumed run has changed: the run keeps its own settings."""
    from promptcodebook.run.opening import file_digest
    from promptcodebook.store.run import RunStore

    store = RunStore.open(path)
    store.close()
    base = Path(store.header.base or ".")
    for name, mark in store.header.files.items():
        if name.endswith(".toml") and file_digest(base / name) not in ("", mark):
            note(
                f"{base / name} changed since the run started: the change is ignored, and the "
                f"run keeps its own settings\n  to use the file's: pco train {base / name} "
                f"--resume {ref}"
            )


def _train(settings: Config, base: Path, where: Where, *, plain: bool) -> Run:
    """A run from its opening to its verdict, shown on stderr."""
    from promptcodebook.assemble import Sources
    from promptcodebook.cli.live import watch_run
    from promptcodebook.run.opening import open_run
    from promptcodebook.run.optimize import finish
    from promptcodebook.sync import run_sync

    with watch_run(plain=plain) as view:
        opened = open_run(settings, Sources(base), where, view)
        return run_sync(finish(opened), opened.session.interrupt)


def _verdict_text(run: Run) -> str:
    """Two tables, the sentence, what it cost and where the policy is."""
    from promptcodebook.policy.references import POLICY

    lines: list[str] = []
    rows = run.conclusion.rows if run.conclusion is not None else ()
    if run.conclusion is not None and rows:
        lines += [f"test split, n = {rows[0].score.n}:", ""]
        lines += [verdict_text(run.conclusion.table), ""]
    if run.verdict:
        lines += [wrap_text(run.verdict, ""), ""]
    lines.append(f"run {run.id}: {_spent_text(run)}")
    if run.lost.calls:
        lines.append(f"  of it {lost_text(run.lost)}")
    if (run.path / POLICY).is_file():
        lines.append(f"policy: {run.path / POLICY}")
        typed = run_reference(run.path)
        # After a failure it would ask models of which one has just failed.
        asking = "" if run.ended == "failed" else f"{_next(run, typed)}\n      "
        lines.append(f"next: {asking}pco report {typed}")
    elif rows:
        typed = run_reference(run.path)
        row = run.deploy or rows[-1].name
        lines.append(f"next: pco prompt {typed} --row {row}\n      pco report {typed}")
    return "\n".join(lines)


def _spent_text(run: Run) -> str:
    """All that was paid or lost, beside the limits of the budget: '372 of 400 calls'."""
    return ", ".join(spent_parts(run.spent, run.budget.limits))


def _next(run: Run, typed: str) -> str:
    """What to type for the prompt that the verdict recommends; `typed` names the run."""
    from promptcodebook.optimizers.fixed import UNTRAINED
    from promptcodebook.policy.file import CONCAT, MEASURED, PRESENT

    if run.deploy in (PRESENT, CONCAT, *MEASURED):
        return f"pco prompt {typed} --row {run.deploy}"
    if run.deploy == UNTRAINED:
        return f'pco prompt {typed} --row {UNTRAINED} "an input"'
    return f'pco explain {typed} "an input"'


def verdict_json(run: Run) -> dict[str, Any]:
    """The same for machines, with all figures."""
    from dataclasses import asdict

    from promptcodebook.policy.references import POLICY

    conclusion = run.conclusion
    return {
        "run": run.id,
        "name": run.name,
        "path": str(run.path),
        "ended": run.ended,
        "worth": run.worth,
        "verdict": run.verdict,
        "deploy": run.deploy,
        "best": asdict(run.best),
        "rows": list(conclusion.table.as_json()) if conclusion else [],
        "usage": {role: asdict(u) for role, u in run.usage.items()},
        "cost": run.cost,
        "lost": asdict(run.lost),
        "budget": run.budget.model_dump(),
        "settings": dict(run.settings),
        "tallies": dict(run.tallies),
        "policy": str(run.path / POLICY) if (run.path / POLICY).is_file() else None,
    }
