"""What a watcher of a run has seen so far: a fold over the session's events, for both views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from promptcodebook.session.events import (
    Began,
    Event,
    Note,
    Phase,
    Spent,
    Stepped,
    Validated,
)
from promptcodebook.types import Role, Usage

__all__ = ["WINDOW", "Seen", "heard", "printable"]

WINDOW = 10
"""Steps that moving figures look back over."""
_KEPT = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def _nothing_spent() -> Mapping[Role, Usage]:
    return {}


def _no_tallies() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Seen:
    """Replaced as a whole by each event, so that another thread may read it at any time.

    Times are seconds of the view's own clock; `rewards` are batch means of the latest steps,
    `counts` the selection counts after the latest steps (the last one is the present).
    """

    run: Began | None = None
    began: float = 0.0
    step: int = -1
    epsilon: float | None = None
    rewards: tuple[float, ...] = ()
    reward: float | None = None
    counts: tuple[tuple[int, ...], ...] = ()
    success: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    validations: tuple[tuple[int, float], ...] = ()
    best: tuple[int, float] | None = None
    failed: int = 0
    phase: Phase | None = None
    phase_began: float = 0.0
    usage: Mapping[Role, Usage] = field(default_factory=_nothing_spent)
    tallies: Mapping[str, int] = field(default_factory=_no_tallies)

    @property
    def recent(self) -> tuple[int, ...]:
        """Selections of the last steps."""
        if not self.counts:
            return ()
        if len(self.counts) <= WINDOW:
            return self.counts[-1] if self._whole else self._between(0)
        return self._between(-WINDOW - 1)

    @property
    def _whole(self) -> bool:
        return self.run is None or self.run.first == 0

    def _between(self, start: int) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.counts[start], self.counts[-1], strict=True))

    @property
    def spent(self) -> Usage:
        return sum(self.usage.values(), Usage())

    def training_left(self) -> float | None:
        """Seconds that the remaining steps take at the recent pace, validations not counted."""
        if self.run is None or not self.seconds:
            return None
        pace = sum(self.seconds) / len(self.seconds)
        return pace * max(0, self.run.steps - self.step - 1)

    def phase_left(self, now: float) -> float | None:
        """Seconds that the present phase still takes, None before its first unit is done."""
        phase = self.phase
        if phase is None or phase.done == 0:
            return None
        return (now - self.phase_began) / phase.done * (phase.total - phase.done)


def printable(text: str) -> str:
    """The text without control characters: what a model wrote must not steer a terminal."""
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()


def heard(seen: Seen, event: Event, now: float) -> Seen:
    """What has been seen after one more event."""
    match event:
        case Began():
            return replace(seen, run=event, began=now)
        case Phase(name, done, total):
            new = seen.phase is None or seen.phase.name != name
            began = now if new else seen.phase_began
            return replace(seen, phase=event if done < total else None, phase_began=began)
        case Stepped():
            return _stepped(seen, event)
        case Validated(step, evaluation, best, finalist):
            score = evaluation.score
            if score is None:
                return seen
            marks = (*seen.validations, *([] if finalist else [(step, score)]))[-_KEPT:]
            return replace(
                seen, validations=marks, best=(step, score) if best else seen.best, phase=None
            )
        case Spent(usage, tallies):
            return replace(seen, usage=usage, tallies=tallies)
        case Note():
            return seen


def _stepped(seen: Seen, event: Stepped) -> Seen:
    step = event.step
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    broken = sum(t.rollout.failure is not None or t.failure is not None for t in step.traces)
    return replace(
        seen,
        step=step.index,
        epsilon=step.epsilon,
        reward=mean,
        rewards=(*seen.rewards, mean)[-_KEPT:] if mean is not None else seen.rewards,
        counts=(*seen.counts, step.selected)[-WINDOW - 1 :],
        success=step.success,
        texts=step.parameters.codebook.texts,
        seconds=(*seen.seconds, event.seconds)[-2 * WINDOW :],
        failed=seen.failed + broken,
        phase=None,
    )
