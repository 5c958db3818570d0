"""`pco demo`: on a small real model (`paper/experiments/demo.py`), or a tour on the simulated one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.cli.command import Plain, emit, note, verdict_text, wrap_text
from promptcodebook.cli.runs import write_run_report
from promptcodebook.config import load_config
from promptcodebook.errors import MissingExtra, import_part
from promptcodebook.progress import watch_run
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.run.verdict import VerdictTable

_SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "lm": "simulated",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}
_TITLES = {
    **{"present": "zero-shot", "untrained": "untrained codebook", "learned": "trained"},
    **{"concat": "all K instincts (concat)", "best_fixed": "best of its prompts for all"},
}
"""What a stranger understands by a row; one that is not here is called by its name."""


def demo(
    simulated: bool = typer.Option(
        False, "--simulated", help="The tour on the simulated model instead."
    ),
    plain: Plain = False,
    as_json: bool = typer.Option(False, "--json", help="The table as JSON."),
) -> int | None:
    """Learn which instruction helps which message, on a small real model, in minutes.

    SmolLM2-135M runs in this process, offline; seven ways of prompting it are judged on messages
    that nothing was learned from. A stopped demo resumes where it was. Where the model is not
    installed, and with --simulated, it is a tour on the simulated model, which shows that the
    machinery works, not that the method beats another."""
    if not simulated:
        from promptcodebook.cli.app import COMMAND_GROUP  # which looks for this file

        try:
            demonstrate = import_part(COMMAND_GROUP, "demo.real", "the demo", "bench")
            return demonstrate(plain=plain, as_json=as_json)
        except MissingExtra as missing:
            note(f"no real model here: {missing}\n  next: {missing.hint}")
            note("the simulated tour instead:")
    config = load_config(_SETTINGS, where="the demo")
    with watch_run(plain=plain) as view:
        opened = open_run(config, Sources(), Where(runs_dir(), command="pco demo"), view)
        run = run_sync(finish(opened), opened.interrupt)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: {run.stop.hint}")
        return run.stop.exit_code
    report, rows = run.path / "report.html", list(run.rows.values())
    splits = opened.assembled.dataset.items()
    write_run_report(run.path, report, {e.id: e for _, split in splits for e in split})
    if as_json:
        emit({"simulated": True, "run": run.id, "rows": [asdict(row) for row in rows]})
        return None
    table = VerdictTable(rows, titles=_TITLES, head="simulated")
    print(
        f"\nsimulated model: held-out test split, {rows[0].score.n} examples, 95 % intervals\n\n"
        f"{verdict_text(table.only('reward', 'gain', 'calls', 'tokens', 'longest prompt'))}\n\n"
        f"{wrap_text(run.verdict, '')}\nreport: {report}\n\n"
        "All figures above are simulated. Look closer:\n"
        f"  pco codebook show {run.id}\n"
        f'  pco explain {run.id} "Describe a rainy market in exactly 3 sentences."\n'
        "Your own data and model: pco init mytask"
    )
    return None
