"""The progress of a session, told event by event to whoever watches: a live view, or a log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from promptcodebook.calls import Role, Usage
from promptcodebook.types import Evaluation, Step

__all__ = [
    "Began",
    "Listener",
    "Note",
    "Phase",
    "ProgressEvent",
    "ProgressLog",
    "Spent",
    "StepDone",
    "ValidationDone",
    "silent",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Began:
    """The run is set up: its id, folder, models by role, and how many steps are planned."""

    run_id: str
    path: str
    steps: int
    first: int
    size: int
    models: Mapping[Role, str]
    simulated: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run that takes a while: done of total units."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One update is done and stored."""

    step: Step
    seconds: float


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """One validation is done; `best` is whether it beats all before it.

    `finalist`: at the end of the run, on the whole split, to choose what is kept.
    """

    step: int
    evaluation: Evaluation
    best: bool
    finalist: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage by role and incidents by name so far."""

    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should read."""

    text: str


ProgressEvent = Began | Phase | StepDone | ValidationDone | Spent | Note


class Listener(Protocol):
    """Hears every event, in order, on the session's own loop: it must not block."""

    def __call__(self, event: ProgressEvent) -> None: ...


def silent(event: ProgressEvent) -> None:
    """Hears nothing."""


class ProgressLog:
    """A Listener: one line at the start, after each update and after each validation."""

    def __init__(self) -> None:
        self._label = ""
        self._steps = 0

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case Began():
                self._label = "[simulated] " if event.simulated else ""
                self._steps = event.steps
                self._say(f"run {event.run_id} in {event.path}: {event.steps} steps")
            case StepDone(step):
                self._say(f"step {step.index + 1} of {self._steps}: {_figures(step)}")
            case ValidationDone(step, evaluation):
                score = "none" if evaluation.score is None else f"{evaluation.score:.3f}"
                after = "untrained" if step < 0 else f"after step {step + 1}"
                self._say(f"validation {after}: {score} (n = {len(evaluation.rollouts)})")
            case Note(text):
                _log.warning("%s%s", self._label, text)
            case _:
                pass

    def _say(self, text: str) -> None:
        _log.info("%s%s", self._label, text)


def _figures(step: Step) -> str:
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    failed = sum(t.rollout.failure is not None or t.failure is not None for t in step.traces)
    mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "none"
    kept = sum(rewrite.kept for rewrite in step.rewrites)
    broken = f", {failed} failed" if failed else ""
    return f"reward {mean}, epsilon {step.epsilon:.2f}, {_texts(kept)} rewritten{broken}"


def _texts(count: int) -> str:
    return f"{count} text" if count == 1 else f"{count} texts"
