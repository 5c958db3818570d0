"""What `pco runs show` says about one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from promptcodebook.cli.console import columns, duration, money, number, printable
from promptcodebook.store.events import Broke, Event, Judged, Stepped, Validated

if TYPE_CHECKING:
    from promptcodebook.store.run import RunStore
    from promptcodebook.types import Failure

__all__ = ["run_json", "run_text"]

_SHOWN = 5
"""Failures quoted in full; the rest is counted."""


def run_json(store: RunStore) -> dict[str, Any]:
    """The run for machines."""
    state, header = store.outline(), store.header
    return {
        "run": header.id,
        "path": str(store.path),
        "created": header.created,
        "version": header.version,
        "task": header.task,
        "command": header.command,
        "config": dict(header.config),
        "fingerprints": dict(header.fingerprints),
        "updates": state.step + 1,
        "ended": state.ended,
        "detail": state.detail,
        "resumes": state.resumes,
        "validations": [asdict(mark) for mark in state.validations],
        "judged": [asdict(mark) for mark in state.judged],
        "verdict": state.conclusion.text if state.conclusion else None,
        "worth": state.conclusion.worth if state.conclusion else None,
        "usage": {role: asdict(usage) for role, usage in store.usage().items()},
        "tallies": store.tallies(),
        "seconds": store.elapsed_s,
        "failures": [
            {"where": each.where, "example": each.example, **asdict(each.failure)}
            for each in _failures(store)
        ],
    }


def run_text(store: RunStore) -> str:
    """The run for people."""
    state, header = store.outline(), store.header
    ended = state.ended or "not ended"
    lines = [
        f"run      {header.id}",
        f"started  {header.created}, version {header.version}",
        f"command  {header.command}",
        f"task     {header.task}",
        f"state    {ended}{f': {state.detail}' if state.detail else ''}",
        f"updates  {state.step + 1}, resumed {state.resumes} times",
        f"time     {duration(store.elapsed_s)}",
    ]
    if state.best is not None:
        best = state.best
        lines.append(f"best     {number(best.score)} after update {best.step + 1} (n = {best.n})")
    if state.conclusion is not None:
        lines += ["", state.conclusion.text]
    usage = store.usage()
    if usage:
        lines += ["", columns([{"role": r, **_spent(u)} for r, u in usage.items()])]
    tallies = store.tallies()
    if tallies:
        counts = [{"incident": name, "count": str(n)} for name, n in tallies.items()]
        lines += ["", columns(counts)]
    return "\n".join([*lines, *_failure_lines(store)])


def _spent(usage: Any) -> dict[str, str]:
    return {
        "calls": str(usage.calls),
        "prompt tokens": str(usage.prompt_tokens),
        "of them cached": str(usage.cached_prompt_tokens),
        "completion tokens": str(usage.completion_tokens),
        "USD": money(usage.cost),
    }


def _failure_lines(store: RunStore) -> list[str]:
    found = _failures(store)
    if not found:
        return []
    lines = ["", f"{len(found)} failures:"]
    for each in found[:_SHOWN]:
        failure = each.failure
        lines.append(f"  {each.where}, {each.example}, {failure.stage}: {failure.kind}:")
        said = f"{failure.message}\n{failure.traceback}".rstrip()
        lines += [f"    {line}" for line in printable(said).splitlines()]
        if failure.hint and failure.hint not in said:
            lines.append(f"    next: {printable(failure.hint)}")
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more (--json shows all)")
    return lines


@dataclass(frozen=True, slots=True)
class _Failed:
    """One failure, and where in the run it was."""

    where: str
    example: str
    failure: Failure


def _failures(store: RunStore) -> list[_Failed]:
    """Every broken rollout, critique or attribution, of training and of evaluations."""
    return list(chain.from_iterable(_in(event) for event in store.events(full=True)))


def _in(event: Event) -> Iterator[_Failed]:
    if isinstance(event, Stepped | Broke):
        broke = isinstance(event, Broke)
        where = f"update {(event.step if broke else event.step.index) + 1}"
        for trace in event.traces if broke else event.step.traces:
            for failure in (trace.rollout.failure, trace.failure):
                if failure is not None:
                    yield _Failed(where, trace.rollout.example_id, failure)
    elif isinstance(event, Validated | Judged):
        judged = isinstance(event, Judged)
        where = f"{'judging' if judged else 'validating'} {event.evaluation.name}"
        for rollout in event.evaluation.rollouts:
            if rollout.failure is not None:
                yield _Failed(where, rollout.example_id, rollout.failure)
