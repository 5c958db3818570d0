"""Whole runs for the proofs: a configuration in, what is on disk afterwards out."""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.store.events import (
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    Stepped,
    Trained,
    Validated,
)
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Rollout

SMALL: dict[str, Any] = {
    "preset": "full",
    "task": "constraints",
    "update": {"epochs": 4, "batch_size": 8},
    "validation": {"every": 2, "subset": 8, "finalists": 2},
    "verdict_examples": 16,
    "cache": False,
}


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind."""

    path: Path

    @property
    def policy(self) -> bytes:
        return (self.path / "policy.json").read_bytes()

    def events(self) -> list[Event]:
        """All events in full, without what depends on the clock or on whether a price is known."""
        with closing(RunStore.open(self.path)) as store:
            return [_timeless(e) for e in store.events(full=True) if not _of_one_session(e)]

    def test_evaluations(self) -> list[Evaluation]:
        """The verdict's rows, as they are stored."""
        with closing(RunStore.open(self.path)) as store:
            return list(store.test_evaluations())

    def rewards(self) -> dict[str, tuple[float, ...]]:
        """Test rewards by row of the verdict."""
        return {evaluation.name: evaluation.rewards for evaluation in self.test_evaluations()}

    def tallies(self) -> dict[str, int]:
        with closing(RunStore.open(self.path)) as store:
            return store.tallies()


def run(folder: Path, lm: str, settings: Mapping[str, Any] = SMALL, **more: Any) -> Run:
    """A whole run in this process."""
    config = load_config(settings, {"lm": lm, **more}, where="the proof")
    return asyncio.run(finish(open_run(config, Sources(), Where(folder))))


def finished(folder: Path, lm: str, settings: Mapping[str, Any] = SMALL, **more: Any) -> Finished:
    """A whole run in this process, and what it left."""
    return Finished(run(folder, lm, settings, **more).path)


def _of_one_session(event: Event) -> bool:
    """What a run that was stopped and resumed has more than one that was not."""
    stopped = isinstance(event, Ended) and event.reason in ("interrupted", "budget", "failed")
    return stopped or isinstance(event, Resumed)


def _timeless(event: Event) -> Event:
    match event:
        case Stepped(step):
            traces = tuple(replace(t, rollout=_clockless(t.rollout)) for t in step.traces)
            return Stepped(replace(step, traces=traces))
        case Validated():
            return replace(event, evaluation=_without_clock(event.evaluation), seconds=None)
        case Compared():
            return replace(event, evaluation=_without_clock(event.evaluation))
        case Trained(paid):
            return replace(event, paid=replace(paid, latency_s=0.0, cost=None))
        case Concluded(rows=rows):
            free = {"latency_s": 0.0, "cost": None}
            known = ({**row, "per_query": {**row["per_query"], **free}} for row in rows)
            return replace(event, rows=tuple(known))
        case _:
            return event


def _without_clock(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, rollouts=tuple(map(_clockless, evaluation.rollouts)))


def _clockless(rollout: Rollout) -> Rollout:
    return replace(rollout, usage=replace(rollout.usage, latency_s=0.0, cost=None))
