"""`pco batch`: a policy over a file of rows."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.assemble import Sources
from promptcodebook.batch.on_ray import answer_on_ray
from promptcodebook.batch.session import Batch, Order, Summary
from promptcodebook.cli.command import (
    Budget,
    ConfigOption,
    DataDir,
    Json,
    Model,
    Ref,
    Sets,
    TaskName,
    Trust,
    Typed,
    announced,
    emit,
    note,
    settings_for,
    wrap_text,
)
from promptcodebook.config import Config
from promptcodebook.lm.stack import uses_simulated
from promptcodebook.paths import runs_dir
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import resolve
from promptcodebook.progress import counting
from promptcodebook.sync import run_sync
from promptcodebook.units import cost_text, count_text, duration, lost_text, plural


def batch(
    ref: Ref,
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="Rows: .jsonl, .csv, .tsv or .parquet.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The same rows with answer, route and error.")
    ],
    input_column: Annotated[
        str,
        typer.Option(
            "--input", help="IN's column to answer, or a template; default: as in training."
        ),
    ] = "",
    prefix: Annotated[str, typer.Option(help="Put before the names answer, route and error.")] = "",
    retry: Annotated[
        bool, typer.Option("--retry", help="Ask the failed rows of a finished OUT again.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard previous results.")] = False,
    anew: Annotated[bool, typer.Option("--anew", hidden=True)] = False,
    ray: Annotated[
        str, typer.Option(help="Answer the rows on a Ray cluster: its address, or local.")
    ] = "",
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    budget: Budget = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Answer every row of IN with a policy; OUT has the rows in their order.

    OUT has the rows of IN with three more columns: answer; route, the instincts of its prompt; and
    error. If a row fails, the others continue and the exit is 1; --retry asks those rows again. OUT
    appears when it is complete. Until then OUT.part holds the results: after Ctrl-C, a kill, a full
    disk or a reached budget the same command continues, and pays for no finished reply twice. A
    budget counts all sessions.
    """
    typed = Typed(config, task, data, lm, budget, sets, trust)
    reference = resolve(runs_dir(), ref, trust=trust)
    typed.given("pco batch").require_objects(reference)
    if input_column:
        file = reference.file.model_copy(update={"input": input_column})
        reference = replace(reference, file=file)
    settings, base = settings_for(reference, typed)
    order = Order(source, target, _again(), prefix, retry, restart or anew, bool(ray))
    opened = Batch.open(order, reference.file, settings)
    try:
        summary = _run(opened, reference.file, settings, Sources(base), ray)
    finally:
        opened.close()
    if as_json:
        emit({"ref": reference.name, "in": str(source), "out": str(target), **summary.as_json()})
    else:
        print(_summary_text(target, summary))
    if summary.failed:
        raise typer.Exit(1)


def _again() -> str:
    """The command as it was typed, without what holds for one session alone."""
    words, kept = iter(sys.argv[1:]), ["pco"]
    for word in words:
        if word == "--budget":
            next(words, None)
        elif word not in ("--restart", "--anew", "--json") and not word.startswith("--budget="):
            kept.append(shlex.quote(word))
    return " ".join(kept)


def _run(opened: Batch, file: PolicyFile, settings: Config, sources: Sources, ray: str) -> Summary:
    """Progress on stderr; Ctrl-C ends it in order."""
    total, before = opened.source.count, opened.resumed
    if before:
        note(f"{before} of {total} rows are done; continuing")

    name, simulated = opened.order.target.name, uses_simulated(settings)
    with counting(name, total, sys.stderr, before=before, simulated=simulated) as count:
        done = partial(count, None)
        if ray:
            return answer_on_ray(ray, opened, file, settings, sources.base, done)
        working = opened.run(file, settings, sources, done)
        return run_sync(working, announced(opened.interrupt))


def _summary_text(target: Path, summary: Summary) -> str:
    spent = summary.spent
    parts = [plural(summary.rows, "row"), plural(spent.calls, "call")]
    parts += [f"{count_text(spent.tokens)} tokens", cost_text(spent.cost)]
    parts += [duration(summary.seconds)]
    model = "simulated model, " if summary.simulated else ""
    lines = [f"{target}: {model}{', '.join(parts)}"]
    if summary.lost.calls:
        lines.append(lost_text(summary.lost))
    if summary.failed:
        rows = f"{summary.failed} of {plural(summary.rows, 'row')} failed"
        lines.append(wrap_text(f"{rows}; the first: {summary.first_error}", ""))
        lines.append(f"--retry asks {'it' if summary.failed == 1 else 'them'} again")
    return "\n".join(lines)
