"""What is kept on disk: `pco runs` and `pco report` about runs, `pco cache` about replies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.base import units
from promptcodebook.base.paths import reply_cache_path, run_reference, runs_dir, unfinished_folder
from promptcodebook.base.text import printable, shell
from promptcodebook.cli import command
from promptcodebook.cli.command import Json, Yes, columns, emit, note, show, wrap_text
from promptcodebook.errors import RunBusy
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.policy.references import run_behind, stored_examples
from promptcodebook.report.private import withhold, withhold_ending
from promptcodebook.run.verdict import Conclusion
from promptcodebook.store.events import Broke, Compared, RunState, Stepped, Validated
from promptcodebook.store.lock import holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import COLUMNS, RunSummary, find_run, read_runs, remove_run
from promptcodebook.types import Example, Failure

app = command.command_group()
runs = command.command_group("List, show or remove the runs in $PCO_RUNS or ./runs.")
app.add_typer(runs, name="runs")
cache = command.command_group(
    "Show or clear the reply cache that runs share ($PCO_CACHE). Runs can resume without it."
)
app.add_typer(cache, name="cache")

_QUOTED = 5  # failures quoted in full; the rest is counted


@runs.command("list")
def list_runs(as_json: Json = False) -> None:
    """List runs, oldest first, with verdict, gain (and its 95 % interval), test score and cost."""
    summaries, unreadable = read_runs(runs_dir())
    lines = [printable(f"{path.name}: unreadable: {error}") for path, error in unreadable.items()]
    if as_json:
        more = [{"running": each.running, "resumable": each.resumable} for each in summaries]
        pairs = zip(summaries, more, strict=True)
        emit([asdict(each) | {"path": str(each.path)} | state for each, state in pairs])
    elif summaries:
        named = any(summary.name for summary in summaries)
        print(columns([_summary_cells(summary, named) for summary in summaries]))
        if any(summary.simulated for summary in summaries):
            print("* on the simulated model, whose results say nothing about a real model")
    elif not lines:
        print(f"no runs in {runs_dir()} yet\nnext: pco train")
    for line in lines:
        (note if as_json else print)(line.replace("\n", " "))


def _summary_cells(summary: RunSummary, named: bool) -> dict[str, str]:
    """`named`: some run has a name, so there is a column for it."""
    cells: dict[str, str] = {}
    for column in COLUMNS:
        if column.brief and (named or column.brief != "name"):
            value = column.value(summary)
            missing = column.missing or "-"
            cells[column.brief] = missing if value is None else column.write(value)
    cells["verdict"] += "*" * summary.simulated
    return cells


@runs.command("show")
def show_run(run: command.RunRef, as_json: Json = False) -> None:
    """Show how a run was started, how far it got, what it cost, and what failed."""
    with closing(RunStore.open(find_run(runs_dir(), run))) as store:
        state = store.outline()
        if store.header.private:
            state = withhold_ending(state, store.header.id)
        show(lambda: _run_json(store, state), lambda: _run_text(store, state), as_json=as_json)


@runs.command()
def rm(
    runs: Annotated[list[str], typer.Argument(help="Run ids or id prefixes, or 'last'.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove runs and all their files: codebooks, journals, reports. A run in use is not
    removed."""
    paths = list(dict.fromkeys(find_run(runs_dir(), ref) for ref in runs))
    for path in paths:
        if (pid := holder(path)) is not None:
            message = f"process {pid or 'unknown'} is writing to the run {path.name}"
            hint = "wait until it ends" + (f", or stop it: kill -INT {pid}" if pid else "")
            raise RunBusy(f"{message}; nothing was removed", hint=hint)
    names = ", ".join(path.name for path in paths)
    command.confirm(f"Remove {names} for good?", f"not removed: {names}", yes=yes)
    for path in paths:
        remove_run(path)
    removed = [str(path) for path in paths]
    text = "\n".join(f"removed {path}" for path in removed)
    show(lambda: {"removed": removed}, lambda: text, as_json=as_json)


@app.command()
def report(
    ref: str = typer.Argument(
        help="A run: its id or name, a path, or 'last'; or a policy file or NAME@REF, for the "
        "run that made the policy."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="Default: RUN/report.html."),
    trust: command.Trust = False,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML file: the verdict, what was learned, where it helped or hurt, and
    curves."""
    from promptcodebook.report.page import write_report  # a list of runs needs no templates

    path = run_behind(runs_dir(), ref)
    target, known = output or path / "report.html", dict[str, Example]()
    with closing(RunStore.open(path)) as store:
        if store.ours or trust:  # a run may name anybody's data files
            known = stored_examples(store.header)
        else:
            note("the inputs are left out: the run is not marked as yours (--trust adds them)")
        write_report(store, target, known)
        run_id = store.header.id
    show(lambda: {"run": run_id, "report": str(target)}, lambda: str(target), as_json=as_json)


def _run_json(store: RunStore, state: RunState) -> dict[str, Any]:
    header, done = store.header, state.conclusion
    made = Conclusion.of(state, header)
    return {
        "run": header.id,
        "name": header.name,
        "path": str(store.path),
        "created": header.created,
        "version": header.version,
        "task": header.task,
        "command": header.command,
        "config": header.settings,
        "fingerprints": dict(header.fingerprints),
        "updates": state.step + 1,
        "ended": state.ended,
        "detail": state.detail,
        "missing": state.missing,
        "next": state.hint,
        "resumes": state.resumes,
        "changes": list(state.changes),
        "validations": [asdict(mark) for mark in state.validations],
        "judged": [asdict(mark) for mark in state.tests],
        "headline": asdict(made.headline(shell(header.id))) if made else None,
        "verdict": done.text if done else None,
        "worth": done.worth if done else None,
        "deploy": done.deploy if done else "",
        "slices": list(done.slices) if done else [],
        "usage": {role: asdict(usage) for role, usage in store.usage().items()},
        "lost": {role: asdict(usage) for role, usage in store.lost().items()},
        "tallies": store.tallies(),
        "seconds": store.elapsed_s,
        "failures": [
            {"where": where, "example": example, **asdict(failure)}
            for where, example, failure in _failures(store)
        ],
    }


def _run_text(store: RunStore, state: RunState) -> str:
    header, writer = store.header, holder(store.path)
    ended = state.ended or "stopped"
    if writer is not None:
        ended = f"running (process {writer})" if writer else "running"
    resumed = f", resumed {units.plural(state.resumes, 'time')}" if state.resumes else ""
    lines = [
        f"run      {header.id}",
        *([f"name     {header.name}"] if header.name else []),
        f"started  {header.created}, version {header.version}",
        f"command  {header.command}",
        f"task     {header.task}",
        wrap_text(f"{ended}{f': {state.detail}' if state.detail else ''}", "state    "),
        f"updates  {state.step + 1}{resumed}",
        f"time     {units.duration(store.elapsed_s)}",
        *(wrap_text(change, "changed  ") for change in state.changes),
    ]
    if (best := state.best) is not None:
        after = f"after update {best.step + 1}" if best.step >= 0 else "untrained"
        lines.append(f"best     {units.number(best.score)} {after} (n = {best.n})")
    made = Conclusion.of(state, header)
    lines += ["", command.headline_text(made.headline(run_reference(store.path)))] if made else []
    if sentence := made.sentence if made else state.missing:
        lines += ["", wrap_text(sentence, ""), command.slices_text(made.slices if made else ())]
    if state.hint and writer is None:
        lines += ["", wrap_text(state.hint, "next: ")]
    roles = [
        {
            "role": role,
            "calls": usage.calls,
            "prompt tokens": usage.prompt_tokens,
            "cached": usage.cached_prompt_tokens,
            "completion tokens": usage.completion_tokens,
            "cost": units.money(usage.cost),
        }
        for role, usage in store.usage().items()
    ]
    if roles:
        lines += ["", columns(roles)]
    if lost := store.lost().values():
        first, *others = lost
        lines += ["", units.lost_text(sum(others, first))]
    if tallies := store.tallies():
        lines += ["", columns([{"incident": n, "count": c} for n, c in tallies.items()])]
    failures = list(_failures(store))
    lines += ["", f"{units.plural(len(failures), 'failure')}:"] if failures else []
    for where, example, failure in failures[:_QUOTED]:
        lines.append(f"  {where}, {example}, {failure.stage}: {failure.kind}:")
        text = f"{failure.message}\n{failure.traceback}".rstrip()
        lines += [f"    {line}" for line in printable(text).splitlines()]
        if failure.hint and failure.hint not in text:
            lines.append(f"    next: {printable(failure.hint)}")
    if len(failures) > _QUOTED:
        lines.append(f"  and {len(failures) - _QUOTED} more (--json shows all)")
    return "\n".join(lines)


def _failures(store: RunStore) -> Iterator[tuple[str, str, Failure]]:
    for event in store.events(full=True):
        event = withhold(event) if store.header.private else event
        where = ""
        found: list[tuple[str, Failure | None]] = []
        if isinstance(event, Stepped | Broke):
            step = event.step if isinstance(event, Broke) else event.step.index
            where = f"update {step + 1}"
            for trace in event.traces if isinstance(event, Broke) else event.step.traces:
                name = trace.rollout.example_id
                found += [(name, trace.rollout.failure), (name, trace.failure)]
        elif isinstance(event, Validated | Compared):
            verb = "judging" if isinstance(event, Compared) else "validating"
            where = f"{verb} {event.evaluation.name}"
            found = [(r.example_id, r.failure) for r in event.evaluation.rollouts]
        yield from ((where, example, failure) for example, failure in found if failure is not None)


@cache.command()
def stats(as_json: Json = False) -> None:
    """Show the cache's location, number of replies and size."""
    path, replies, size = reply_cache_path(), 0, 0
    if path.exists():
        with closing(ReplyCache(path)) as store:
            replies, size = store.stats()
    text = f"{path}: {units.plural(replies, 'reply', 'replies')}, {units.bytes_text(size)}"
    tree = {"path": str(path), "replies": replies, "bytes": size}
    show(lambda: tree, lambda: text, as_json=as_json)


@cache.command()
def clear(yes: Yes = False, as_json: Json = False) -> None:
    """Delete all cached replies, even those of stopped evaluations."""
    path, unfinished, count = reply_cache_path(), unfinished_folder(), 0
    if path.exists() or unfinished.exists():
        command.confirm(f"Remove every reply from {path}?", "no reply was removed", yes=yes)
        shutil.rmtree(unfinished, ignore_errors=True)
    if path.exists():
        with closing(ReplyCache(path)) as store:
            count = store.clear()
    text = f"removed {units.plural(count, 'reply', 'replies')} from {path}"
    show(lambda: {"path": str(path), "removed": count}, lambda: text, as_json=as_json)
