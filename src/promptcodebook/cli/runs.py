"""`pco runs` and `pco report`: list runs, show one here or as an HTML file, remove them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, confirm, emit, note, wrap_text
from promptcodebook.cli.settings import Json, RunRef, Trust, Yes, command_group
from promptcodebook.paths import runs_dir
from promptcodebook.text import printable
from promptcodebook.units import count_text, duration, lost_text, money, number, plural

if TYPE_CHECKING:
    from promptcodebook.calls import Usage
    from promptcodebook.store.events import Event, RunState
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import RunSummary
    from promptcodebook.types import Failure

app = command_group()
runs = command_group("Runs on disk, below $PCO_RUNS or ./runs.")
app.add_typer(runs, name="runs")

_QUOTED = 5
"""Failures quoted in full; the rest is counted."""


@runs.command("list")
def list_runs(as_json: Json = False) -> None:
    """One line per run, oldest first."""
    from promptcodebook.store.runs import read_runs

    summaries, unreadable = read_runs(runs_dir())
    lines = [printable(f"{path.name}: unreadable: {error}") for path, error in unreadable.items()]
    if as_json:
        emit([_summary_json(summary) for summary in summaries])
        for line in lines:
            note(line)
        return
    if summaries:
        named = any(summary.name for summary in summaries)
        print(columns([_summary_cells(summary, named) for summary in summaries]))
        if any(summary.simulated for summary in summaries):
            print("* of the simulated model: no figure of a real one")
    elif not lines:
        print(f"no run in {runs_dir()} yet\nnext: pco train")
    for line in lines:
        print(line.replace("\n", " "))


def _summary_cells(summary: RunSummary, named: bool) -> dict[str, str]:
    """`named`: some run has a name, so that there is a column for it."""
    return {
        "run": summary.id,
        **({"name": summary.name or "-"} if named else {}),
        "state": "running" if summary.running else summary.ended or "stopped",
        "updates": str(summary.step + 1),
        "best": f"{number(summary.best)}{'*' if summary.simulated else ''}",
        "calls": count_text(summary.usage.calls),
        "cost": money(summary.usage.cost),
        "time": duration(summary.elapsed_s),
    }


def _summary_json(summary: RunSummary) -> dict[str, Any]:
    return {
        **asdict(summary),
        "path": str(summary.path),
        "running": summary.running,
        "resumable": summary.resumable,
    }


@runs.command()
def show(run: RunRef, as_json: Json = False) -> None:
    """What a run was started with, how far it came, what it cost, and what failed."""
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    store = RunStore.open(find_run(runs_dir(), run))
    try:
        if as_json:
            emit(_run_json(store))
        else:
            print(_run_text(store))
    finally:
        store.close()


@runs.command()
def rm(
    runs: Annotated[list[str], typer.Argument(help="Runs: ids, starts of ids, or 'last'.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove runs with all they hold: codebooks, journals, reports. A busy run is left alone."""
    from promptcodebook.store.runs import find_run, remove_run

    paths = list(dict.fromkeys(find_run(runs_dir(), ref) for ref in runs))
    for path in paths:
        _refuse_busy(path)
    names = ", ".join(path.name for path in paths)
    confirm(f"Remove {names} for good?", f"not removed: {names}", yes=yes)
    for path in paths:
        remove_run(path)
    if as_json:
        emit({"removed": [str(path) for path in paths]})
    else:
        print("\n".join(f"removed {path}" for path in paths))


def _refuse_busy(path: Path) -> None:
    from promptcodebook.errors import RunBusy
    from promptcodebook.store.lock import holder

    pid = holder(path)
    if pid is not None:
        raise RunBusy(
            f"the run {path.name} is being written by process {pid or 'unknown'}; "
            "nothing was removed",
            hint="wait until it ends" + (f", or stop it: kill -INT {pid}" if pid else ""),
        )


@app.command()
def report(
    ref: Annotated[
        str,
        typer.Argument(
            help="A run: its id or name, a path, or 'last'; or a policy file or NAME@REF, for the "
            "run that it came from."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where; else RUN/report.html.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Curves, codebook, routing, history and examples, in one file that needs no network."""
    from promptcodebook.policy.references import run_behind

    path = run_behind(runs_dir(), ref)
    target = output or path / "report.html"
    run_id = write_run_report(path, target, trust=trust)
    if as_json:
        emit({"run": run_id, "report": str(target)})
    else:
        print(target)


def write_run_report(
    path: Path, target: Path, inputs: Mapping[str, str] | None = None, *, trust: bool = False
) -> str:
    """The run at `path` as one HTML file; returns its id. `inputs` are the texts of its examples by
    id; None reads them from its data, if this user made it or trusts it: the files that it names
    may be anybody's, and a report is handed on."""
    from promptcodebook.policy.references import stored_inputs
    from promptcodebook.report import write_report
    from promptcodebook.store.run import RunStore

    store = RunStore.open(path)
    try:
        if inputs is None and not (store.ours or trust):
            note("the inputs are left out: the run does not bear your mark (--trust reads them)")
            inputs = {}
        write_report(store, target, stored_inputs(store.header) if inputs is None else dict(inputs))
        return store.header.id
    finally:
        store.close()


def _run_json(store: RunStore) -> dict[str, Any]:
    """The run for machines."""
    state, header = _state(store), store.header
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
        "verdict": state.conclusion.text if state.conclusion else None,
        "worth": state.conclusion.worth if state.conclusion else None,
        "deploy": state.conclusion.deploy if state.conclusion else "",
        "usage": {role: asdict(usage) for role, usage in store.usage().items()},
        "lost": {role: asdict(usage) for role, usage in store.lost().items()},
        "tallies": store.tallies(),
        "seconds": store.elapsed_s,
        "failures": [
            {"where": each.where, "example": each.example, **asdict(each.failure)}
            for each in _failures(store)
        ],
    }


def _state(store: RunStore) -> RunState:
    from promptcodebook.report.private import withhold_ending

    state = store.outline()
    return withhold_ending(state, store.header.id) if store.header.private else state


def _run_text(store: RunStore) -> str:
    """The run for people."""
    from promptcodebook.store.lock import holder

    state, header = _state(store), store.header
    writer = holder(store.path)
    ended = state.ended or "stopped"
    if writer is not None:
        ended = f"running (process {writer})" if writer else "running"
    resumed = f", resumed {plural(state.resumes, 'time')}" if state.resumes else ""
    lines = [
        f"run      {header.id}",
        *([f"name     {header.name}"] if header.name else []),
        f"started  {header.created}, version {header.version}",
        f"command  {header.command}",
        f"task     {header.task}",
        wrap_text(f"{ended}{f': {state.detail}' if state.detail else ''}", "state    "),
        f"updates  {state.step + 1}{resumed}",
        f"time     {duration(store.elapsed_s)}",
        *(wrap_text(change, "changed  ") for change in state.changes),
    ]
    if state.best is not None:
        best = state.best
        after = f"after update {best.step + 1}" if best.step >= 0 else "untrained"
        lines.append(f"best     {number(best.score)} {after} (n = {best.n})")
    sentence = state.missing if state.conclusion is None else state.conclusion.text
    if sentence:
        lines += ["", wrap_text(sentence, "")]
    if state.hint and writer is None:
        lines += ["", wrap_text(state.hint, "next: ")]
    usage, tallies = store.usage(), store.tallies()
    if usage:
        lines += ["", columns([{"role": r, **_usage_cells(u)} for r, u in usage.items()])]
    if lost := store.lost().values():
        first, *others = lost
        lines += ["", lost_text(sum(others, first))]
    if tallies:
        lines += ["", columns([{"incident": n, "count": str(c)} for n, c in tallies.items()])]
    return "\n".join([*lines, *_failure_lines(store)])


def _usage_cells(usage: Usage) -> dict[str, str]:
    return {
        "calls": str(usage.calls),
        "prompt tokens": str(usage.prompt_tokens),
        "of them cached": str(usage.cached_prompt_tokens),
        "completion tokens": str(usage.completion_tokens),
        "cost": money(usage.cost),
    }


def _failure_lines(store: RunStore) -> list[str]:
    failures = list(_failures(store))
    if not failures:
        return []
    lines = ["", f"{plural(len(failures), 'failure')}:"]
    for each in failures[:_QUOTED]:
        failure = each.failure
        lines.append(f"  {each.where}, {each.example}, {failure.stage}: {failure.kind}:")
        text = f"{failure.message}\n{failure.traceback}".rstrip()
        lines += [f"    {line}" for line in printable(text).splitlines()]
        if failure.hint and failure.hint not in text:
            lines.append(f"    next: {printable(failure.hint)}")
    if len(failures) > _QUOTED:
        lines.append(f"  and {len(failures) - _QUOTED} more (--json shows all)")
    return lines


@dataclass(frozen=True, slots=True)
class _Located:
    """One failure, and where in the run it was."""

    where: str
    example: str
    failure: Failure


def _failures(store: RunStore) -> Iterator[_Located]:
    """Every broken rollout, critique or attribution, of training and of evaluations."""
    from promptcodebook.report.private import withhold

    private = store.header.private
    for event in store.events(full=True):
        yield from _event_failures(withhold(event) if private else event)


def _event_failures(event: Event) -> Iterator[_Located]:
    from promptcodebook.store.events import Broke, Compared, Stepped, Validated

    if isinstance(event, Stepped | Broke):
        broke = isinstance(event, Broke)
        where = f"update {(event.step if broke else event.step.index) + 1}"
        for trace in event.traces if broke else event.step.traces:
            for failure in (trace.rollout.failure, trace.failure):
                if failure is not None:
                    yield _Located(where, trace.rollout.example_id, failure)
    elif isinstance(event, Validated | Compared):
        verb = "judging" if isinstance(event, Compared) else "validating"
        where = f"{verb} {event.evaluation.name}"
        for rollout in event.evaluation.rollouts:
            if rollout.failure is not None:
                yield _Located(where, rollout.example_id, rollout.failure)
