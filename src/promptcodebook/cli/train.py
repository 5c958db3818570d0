"""`pco train`: learn a codebook, see it happen, end with a verdict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import note, show, verdict_text, wrap_text
from promptcodebook.cli.settings import (
    Json,
    Plain,
    Trust,
    Wanted,
    command_group,
    environment_layer,
    options,
    set_layer,
    toml_path,
)
from promptcodebook.errors import PcoError
from promptcodebook.paths import run_reference, runs_dir
from promptcodebook.units import lost_text, spent_parts

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.run.optimize import Run

app = command_group()


@app.command()
@options
def train(
    wanted: Wanted,
    resume: Annotated[str | None, typer.Option(help="Resume this run (or 'last').")] = None,
    name: Annotated[str, typer.Option(help="What to call the run; works wherever a run is.")] = "",
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
    from promptcodebook.assemble import Sources
    from promptcodebook.cli.live import watch_run
    from promptcodebook.run.opening import Where, open_run
    from promptcodebook.run.optimize import finish
    from promptcodebook.store.runs import find_run
    from promptcodebook.sync import run_sync

    path, file = find_run(runs_dir(), resume) if resume else None, None
    if path is None or wanted.config is not None:
        settings, base = wanted.gather()
        file = toml_path(wanted.config)
    else:
        settings, base = _stored_settings(path, wanted.flags, wanted.sets or [], trust)
        _tell_of_edited_settings(path, resume or "")
    where = Where(runs_dir(), path, shlex.join(["pco", *sys.argv[1:]]), name, edited, file)
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


def _stored_settings(
    path: Path, flags: Mapping[str, Any], sets: Sequence[str], trust: bool
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


def _verdict_text(run: Run) -> str:
    """Two tables, the sentence, what it cost and where the policy is."""
    lines: list[str] = []
    if run.conclusion is not None and (rows := run.conclusion.rows):
        lines += [f"test split, n = {rows[0].score.n}:", "", verdict_text(run.conclusion.table), ""]
    if run.verdict:
        lines += [wrap_text(run.verdict, ""), ""]
    # All that was paid or lost, beside the limits of the budget: '372 of 400 calls'.
    lines.append(f"run {run.id}: {', '.join(spent_parts(run.spent, run.budget.limits))}")
    if run.lost.calls:
        lines.append(f"  of it {lost_text(run.lost)}")
    return "\n".join([*lines, *_next(run)])


def _next(run: Run) -> Iterator[str]:
    """Where the policy is, and what to type for the prompt that the verdict recommends."""
    from promptcodebook.optimizers.fixed import UNTRAINED
    from promptcodebook.policy.file import CONCAT, MEASURED, PRESENT
    from promptcodebook.policy.references import POLICY

    typed, report = run_reference(run.path), f"pco report {run_reference(run.path)}"
    rows = run.conclusion.rows if run.conclusion is not None else ()
    if (run.path / POLICY).is_file():
        yield f"policy: {run.path / POLICY}"
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
    from promptcodebook.policy.references import POLICY

    return {
        "run": run.id,
        "name": run.name,
        "path": str(run.path),
        "ended": run.ended,
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
        "policy": str(run.path / POLICY) if (run.path / POLICY).is_file() else None,
    }
