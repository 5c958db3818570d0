"""A run as a data frame: every rollout on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from promptcodebook.store.events import Broke, Stepped, Validated
from promptcodebook.store.run import RunStore
from promptcodebook.types import Step, Trace

# Columns of the rollouts. `row` is the verdict's row on the test split, '' elsewhere; `update` is
# the one that a rollout of training was made for, or after which the policy was validated.
ROLLOUTS = (
    "split", "update", "row", "example", "reward", "route", "explored", "prompt", "output",
    "feedback", "critic", "critique", "penalty", "failure", "truncated", "calls", "tokens", "cost",
)  # fmt: skip
_TEXTS = ("prompt", "output", "feedback", "critique", "failure")  # what may quote private data


def rollout_rows(store: RunStore) -> Iterator[dict[str, Any]]:
    """A row for each rollout; where the data are private, without what may quote them."""
    hidden = dict.fromkeys(_TEXTS if store.header.private else ())
    return ({**row, **hidden} for row in _rollouts(store))


def _rollouts(store: RunStore) -> Iterator[dict[str, Any]]:
    for event in store.events(full=True):
        match event:
            case Stepped(Step(index=step, traces=traces)) | Broke(step, traces):
                yield from (_rollout(trace, "train", step) for trace in traces)
            case Validated(step=step, evaluation=evaluation):
                yield from (_rollout(Trace(each), "val", step) for each in evaluation.rollouts)
            case _:
                pass
    last = store.outline().step
    for evaluation in store.test_evaluations():
        for rollout in evaluation.rollouts:
            yield _rollout(Trace(rollout), "test", last, evaluation.name)


def _rollout(trace: Trace, split: str, step: int, row: str = "") -> dict[str, Any]:
    rollout, verdict = trace.rollout, trace.verdict
    route, failure = rollout.route, rollout.failure
    same = ("reward", "prompt", "output", "feedback", "truncated")
    used = rollout.usage if rollout.metered else None
    return {
        **{name: getattr(rollout, name) for name in same},
        **{name: getattr(used, name, None) for name in ("calls", "tokens", "cost")},
        "split": split,
        "update": step + 1,
        "row": row,
        "example": rollout.example_id,
        "route": None if route is None else route.indices,
        "explored": None if route is None else route.explored,
        "failure": None if failure is None else f"{failure.stage}: {failure.message}",
        "critic": None if verdict is None else verdict.score,
        "critique": None if verdict is None else verdict.feedback,
        "penalty": None if verdict is None else trace.penalty,
    }
