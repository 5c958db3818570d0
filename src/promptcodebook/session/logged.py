"""A run in the log, for scripts and notebooks: INFO to the logger `promptcodebook.session`."""

from __future__ import annotations

import logging

from promptcodebook.session.events import Began, Event, Stepped, Validated
from promptcodebook.types import Step

__all__ = ["Logged"]

_log = logging.getLogger("promptcodebook.session")


class Logged:
    """A Listener: one line at the start, after each update and after each validation."""

    def __init__(self) -> None:
        self._label = ""
        self._steps = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Began():
                self._label = "[simulated] " if event.simulated else ""
                self._steps = event.steps
                self._say(f"run {event.run_id} in {event.path}: {event.steps} steps")
            case Stepped(step):
                self._say(f"step {step.index + 1}/{self._steps}: {_figures(step)}")
            case Validated(step, evaluation):
                score = "none" if evaluation.score is None else f"{evaluation.score:.3f}"
                after = "untrained" if step < 0 else f"after step {step + 1}"
                self._say(f"validation {after}: {score} (n = {len(evaluation.rollouts)})")
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
    return f"reward {mean}, epsilon {step.epsilon:.2f}, {kept} texts rewritten{broken}"
