"""`pco demo`: on a small real model (`paper/experiments/demo.py`), or a tour on the simulated."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.cli.command import Plain, emit, note, verdict_text, wrap_text
from promptcodebook.config import load_config
from promptcodebook.errors import MissingExtra, import_part
from promptcodebook.paper.simulated.orders import read_table
from promptcodebook.progress import watch_run
from promptcodebook.report.page import write_report
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.run.verdict import VerdictTable
from promptcodebook.store.run import RunStore


def demo(
    simulated: bool = typer.Option(False, "--simulated", help="Use the simulated model."),
    plain: Plain = False,
    as_json: bool = typer.Option(False, "--json", help="Print the table as JSON."),
) -> int | None:
    """Learn which instruction suits which message, on a small real model, in minutes.

    SmolLM2-135M runs offline, in-process. Seven ways to prompt the model are judged on held-out
    messages. An interrupted demo resumes where it left off. If the model is not installed, or with
    --simulated, the demo uses the simulated model, which tests the machinery, not the method."""
    if not simulated:
        from promptcodebook.cli.app import COMMAND_GROUP  # which looks for this file

        try:
            demonstrate = import_part(COMMAND_GROUP, "demo.real", "the demo", "bench")
            return demonstrate(plain=plain, as_json=as_json)
        except MissingExtra as missing:
            note(f"no real model here: {missing}\n  next: {missing.hint}")
            note("running the simulated tour instead:")
    page = read_table("demo")
    config = load_config(page["settings"], where="the demo")
    with watch_run(plain=plain) as view:
        opened = open_run(config, Sources(), Where(runs_dir(), command="pco demo"), view)
        run = run_sync(finish(opened), opened.interrupt)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    report, rows = run.path / "report.html", list(run.rows.values())
    examples = {e.id: e for _, split in opened.assembled.dataset.items() for e in split}
    with closing(RunStore.open(run.path)) as store:
        write_report(store, report, examples)
    if as_json:
        emit({"simulated": True, "run": run.id, "rows": [asdict(row) for row in rows]})
        return None
    table = VerdictTable(rows, titles=page["titles"], head="simulated")
    figures = verdict_text(table.only("reward", "gain", "calls", "tokens", "longest prompt"))
    verdict = wrap_text(run.verdict, "")
    n = rows[0].score.n
    print(page["text"].format(n=n, figures=figures, verdict=verdict, report=report))
    return None
