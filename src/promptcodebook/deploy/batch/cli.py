"""`pco batch`: a policy over a file of rows."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.sync import run_sync
from promptcodebook.base.units import cost_text, count_text, duration, lost_text, plural
from promptcodebook.cli import command
from promptcodebook.deploy.batch.on_ray import answer_on_ray
from promptcodebook.deploy.batch.session import BatchJob, BatchSession, Summary
from promptcodebook.lm.stack import uses_simulated
from promptcodebook.policy.policy import deploy
from promptcodebook.progress import counting


@dataclass(frozen=True)
class _Typed(command.Typed):
    """`Typed` for rows, of which no run recorded an answer."""

    again: bool = False
    agent: command.AgentCommand = None
    prompt: command.PromptOption = None
    question: command.Question = ""

    @property
    def flags(self) -> dict[str, Any]:
        return super().flags | command.prompt_settings(self.agent, self.prompt, self.question)


@command.options
def batch(
    ref: command.Ref,
    source: Path = typer.Argument(..., metavar="IN", help="A .jsonl, .csv, .tsv or .parquet file."),
    target: Path = typer.Argument(..., metavar="OUT", help="The file to write."),
    input_column: str = typer.Option(
        "", "--input", help="The column of IN to answer, or a template; default: as in training."
    ),
    prefix: str = typer.Option("", help="Prefix for the columns answer, route and error."),
    restart: bool = typer.Option(False, "--restart", help="Discard previous results."),
    ray: str = typer.Option("", help="Answer the rows on a Ray cluster: its address, or local."),
    *,
    typed: _Typed,
    as_json: command.Json = False,
) -> None:
    """Answer every row of IN with a policy, and write OUT in the same order.

    OUT has the rows of IN with three more columns: answer, route (the instincts in the prompt) and
    error. If a row fails, the other rows continue and the exit code is 1. --restart retries that
    row; the other answers come from the reply cache. OUT.part holds the results until OUT is
    complete. If the command is interrupted or killed, or runs out of disk space or budget, rerun it
    to resume. No finished reply is paid for twice. A budget covers all sessions together."""
    reference = command.resolved(ref, trust=typed.trust, use=True)
    typed.given("pco batch").require_objects(reference)
    if input_column:
        file = reference.file.model_copy(update={"input": input_column})
        reference = replace(reference, file=file)
    settings, base = command.settings_for(reference, typed)
    deploy(reference.file, settings, Sources(base)).require_program()  # before OUT.part is there
    again = command.typed_again("--budget", flags=("--restart", "--json"))
    order = BatchJob(source, target, again, prefix, restart, bool(ray))
    with closing(BatchSession(order, reference.file, settings)) as opened:
        total, before = opened.source.count, opened.resumed
        if before:
            command.note(f"{before} of {total} rows are done; continuing")
        simulated = uses_simulated(settings)
        with counting(target.name, total, sys.stderr, before=before, simulated=simulated) as count:
            done = partial(count, None)
            if ray:
                summary = answer_on_ray(ray, opened, reference.file, settings, base, done)
            else:
                working = opened.run(reference.file, settings, Sources(base), done)
                summary = run_sync(working, command.announced(opened.interrupt))
    if as_json:
        named = {"ref": reference.name, "caution": reference.caution}
        command.emit({**named, "in": str(source), "out": str(target), **summary.as_json()})
    else:
        print(_summary_text(target, summary))
    if summary.failed:
        raise typer.Exit(1)


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
        lines.append(command.wrap_text(f"{rows}; the first: {summary.first_error}", ""))
        asked = "it" if summary.failed == 1 else "them"
        lines.append(f"--restart answers {asked} again; cached replies cost nothing")
    return "\n".join(lines)
