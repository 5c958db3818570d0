"""A run as data frames: its history, an update a row, and all its rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.method.state import entropy, utilisation
from promptcodebook.policy.references import kept_state
from promptcodebook.step import Step
from promptcodebook.store.events import Broke, Stepped, Validated
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Rollout, Trace

HISTORY = (
    "update", "epoch", "epsilon", "reward", "penalty", "failed", "rewritten", "refused", "entropy",
    "utilisation", "validation", "scope", "kept",
)  # fmt: skip
"""Columns of the history. `update` 0 is the untrained policy; `reward` and `penalty` are means over
the update's examples, `entropy` (bits) and `utilisation` those of all selections so far;
`validation` is the score of the policy as the update left it, `kept` whether it is deployed."""
ROLLOUTS = (
    "split", "update", "row", "example", "reward", "route", "explored", "prompt", "output",
    "feedback", "critic", "critique", "penalty", "failure", "truncated", "calls", "tokens", "cost",
)  # fmt: skip
"""Columns of the rollouts. `row` is the verdict's row on the test split, '' elsewhere; `update` is
the one that a rollout of training was made for, or after which the policy was validated."""
_TEXTS = ("prompt", "output", "feedback", "critique", "failure")
"""What may quote private data."""


def history(path: Path) -> Any:
    """The history of the run in that folder. Raises MissingExtra without pandas, StoreError."""
    pandas = import_extra("pandas", "run.history", "pandas")
    store = RunStore.open(path)
    try:
        rows = list(_updates(store))
    finally:
        store.close()
    return pandas.DataFrame(rows, columns=HISTORY)


def rollouts(path: Path) -> Any:
    """The rollouts of the run in that folder. Raises MissingExtra without pandas, StoreError."""
    pandas = import_extra("pandas", "run.rollouts", "pandas")
    store = RunStore.open(path)
    try:
        rows = list(_rollouts(store))
        private = store.header.private
    finally:
        store.close()
    if private:
        rows = [{**row, **dict.fromkeys(_TEXTS)} for row in rows]
    return pandas.DataFrame(rows, columns=ROLLOUTS)


def _updates(store: RunStore) -> Iterator[dict[str, Any]]:
    state = store.outline()
    kept = kept_state(store)[1].step if state.parameters is not None else None
    marks = {mark.step: mark for mark in state.validations}  # the last of a step counts

    def validated(step: int) -> dict[str, Any]:
        mark = marks.get(step)
        known = {} if mark is None else {"validation": mark.score, "scope": mark.scope}
        return {**known, "kept": step == kept}

    if state.parameters is not None:
        yield {"update": 0, **validated(-1)}
    for step in store.steps(traces=True):
        yield {**_figures(step), **validated(step.index)}


def _figures(step: Step) -> dict[str, Any]:
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    penalties = [t.penalty for t in step.traces if t.verdict is not None]
    fates = Counter(r.kept and r.variable not in step.reverted for r in step.rewrites)
    return {
        "update": step.index + 1,
        "epoch": step.epoch + 1,
        "epsilon": step.epsilon,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "penalty": sum(penalties) / len(penalties) if penalties else None,
        "failed": sum(t.rollout.failure is not None for t in step.traces),
        "rewritten": fates[True],
        "refused": fates[False],
        "entropy": entropy(step.selected),
        "utilisation": utilisation(step.selected),
    }


def _rollouts(store: RunStore) -> Iterator[dict[str, Any]]:
    for event in store.events(full=True):
        if isinstance(event, Stepped):
            yield from (_traced(event.step.index, trace) for trace in event.step.traces)
        elif isinstance(event, Broke):
            yield from (_traced(event.step, trace) for trace in event.traces)
        elif isinstance(event, Validated):
            yield from _evaluated(event.evaluation, "val", event.step)
    last = store.outline().step
    for evaluation in store.test_evaluations():
        yield from _evaluated(evaluation, "test", last)


def _traced(step: int, trace: Trace) -> dict[str, Any]:
    verdict = trace.verdict
    return {
        **_rollout(trace.rollout),
        "split": "train",
        "update": step + 1,
        "row": "",
        "critic": None if verdict is None else verdict.score,
        "critique": None if verdict is None else verdict.feedback,
        "penalty": None if verdict is None else trace.penalty,
    }


def _evaluated(evaluation: Evaluation, split: str, step: int) -> Iterator[dict[str, Any]]:
    row = evaluation.name if split == "test" else ""
    for rollout in evaluation.rollouts:
        yield {**_rollout(rollout), "split": split, "update": step + 1, "row": row}


def _rollout(rollout: Rollout) -> dict[str, Any]:
    route, failure, usage = rollout.route, rollout.failure, rollout.usage
    return {
        "example": rollout.example_id,
        "reward": rollout.reward,
        "route": None if route is None else route.indices,
        "explored": None if route is None else route.explored,
        "prompt": rollout.prompt,
        "output": rollout.output,
        "feedback": rollout.feedback,
        "failure": None if failure is None else f"{failure.stage}: {failure.message}",
        "truncated": rollout.truncated,
        "calls": usage.calls,
        "tokens": usage.tokens,
        "cost": usage.cost,
    }
