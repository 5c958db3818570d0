"""`pco train`: learn a codebook, see it happen, end with a verdict."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import run_reference, runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shell
from promptcodebook.base.units import lost_text, plural
from promptcodebook.cli import command
from promptcodebook.cli.command import Json, Plain, note, options, show, wrap_text
from promptcodebook.config import Config, load_typed, merge
from promptcodebook.config.loading import start_from_prompt
from promptcodebook.errors import PcoError
from promptcodebook.policy.references import POLICY, require_trust
from promptcodebook.progress import watch_run
from promptcodebook.run.opening import Where, file_digest, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.run.slices import as_trees
from promptcodebook.run.verdict import Headline
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run, list_runs

app = command.command_group()


@app.command()
@options
def train(
    wanted: command.TrainOptions,
    resume: str | None = typer.Option(None, help="Resume this run (or 'last')."),
    name: str = typer.Option("", help="A name to use instead of the run's id."),
    trust: command.Trust = False,
    edited: bool = typer.Option(
        False, "--edited", help="Resume even if the reward or agent was edited."
    ),
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Learn a codebook and judge it on the test split.

    Ctrl-C (or SIGTERM) stops cleanly and keeps everything; --resume continues from there."""
    path, file = find_run(runs_dir(), resume) if resume else None, None
    if path is None or wanted.config is not None:
        settings, base = wanted.gather()
        file = command.toml_path(wanted.config)
    else:
        settings, base = _stored_settings(path, resume or "", wanted, trust)
    where = Where(runs_dir(), path, shell("pco", *sys.argv[1:]), name, edited, file)
    try:
        with watch_run(plain=plain) as view:
            opened = open_run(settings, Sources(base), where, view)
            run = run_sync(finish(opened), opened.interrupt)
    except PcoError as error:
        if error.run is not None and not as_json:  # the error's own document includes the run
            print(_verdict_text(error.run))
        raise
    show(lambda: verdict_json(run), lambda: _verdict_text(run), as_json=as_json)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    return 0


def _stored_settings(
    path: Path, ref: str, wanted: command.TrainOptions, trust: bool
) -> tuple[Config, Path]:
    """The stored configuration, overlaid with what was typed; names a pco.toml that changed."""
    with closing(RunStore.open(path)) as store:
        header, base = store.header, Path(store.header.base or ".")
    budget = {key: value for key, value in command.environment_layer().items() if key == "budget"}
    flags = start_from_prompt(header.settings, wanted.flags)
    typed = merge(budget, flags, command.set_layer(wanted.sets or []))
    require_trust(header, typed, trusted=store.ours or trust, ref=run_reference(path))
    config = load_typed(header.settings, typed=typed, where=f"the run {path.name}")
    for file, mark in ((base / name, mark) for name, mark in header.files.items()):
        if file.suffix == ".toml" and file_digest(file) not in ("", mark):
            note(
                f"{file} changed since the run started; the run ignores this and keeps "
                "its own settings\n  to use the file's: "
                f"pco train {shell(file)} --resume {shell(ref)}"
            )
    return config, base


def _verdict_text(run: Run) -> str:
    """The figures, then one block: the decision, its levels and price, what was spent, and the one
    thing to type next."""
    made, typed, policy = run.conclusion, run_reference(run.path), run.path / POLICY
    known = list_runs(runs_dir()) if run.name else []
    if [each.path for each in known if each.name == run.name][-1:] == [run.path]:
        typed = shell(run.name)
    lines: list[str] = []
    if made is not None and made.rows:
        lines += [f"test split, n = {made.rows[0].score.n}:", ""]
        lines += [command.verdict_text(made.table), command.slices_text(made.slices)]
    lines += [wrap_text(run.verdict, ""), ""] if made is not None else []
    decision, _, why = run.verdict.partition(": ")
    head = made.headline(typed) if made is not None else Headline(decision, why, {})
    facts = dict(head.lines)
    typed = facts.pop("type", f"pco report {typed}")
    # All that was paid or lost, next to the budget's limits: '372 of 400 calls'.
    lost = f", of which {lost_text(run.lost)}" if run.lost.calls else ""
    hits = run.tallies.get("cache_hits", 0)
    cached = f"; {plural(hits, 'reply', 'replies')} from the cache" if hits else ""
    facts["run"] = f"{run.id}: {run.bill}{lost}{cached}"
    if policy.is_file():
        facts["file"] = str(policy)
    if run.stop is None and run.ended != "failed":  # else its error says what to type
        facts["type"] = typed
    return "\n".join([*lines, command.headline_text(replace(head, lines=facts))])


def verdict_json(run: Run) -> dict[str, Any]:
    """The same for machines, with all figures."""
    policy = run.path / POLICY
    return {
        "run": run.id,
        "name": run.name,
        "path": str(run.path),
        "ended": run.ended,
        "headline": asdict(run.conclusion.headline(shell(run.id))) if run.conclusion else None,
        "worth": run.worth,
        "verdict": run.verdict,
        "deploy": run.deploy,
        "best": asdict(run.best),
        "rows": list(run.conclusion.table.as_json()) if run.conclusion else [],
        "slices": as_trees(run.conclusion.slices) if run.conclusion else [],
        "usage": {role: asdict(u) for role, u in run.usage.items()},
        "cost": run.cost,
        "lost": asdict(run.lost),
        "budget": run.budget.model_dump(),
        "settings": dict(run.settings),
        "tallies": dict(run.tallies),
        "policy": str(policy) if policy.is_file() else None,
    }
