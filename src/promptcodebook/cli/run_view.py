"""What a watcher of a run knows of it: a fold over the run's events, for every view."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.method.state import selected_since
from promptcodebook.progress import (
    Began,
    Note,
    Phase,
    ProgressEvent,
    Spent,
    StepDone,
    ValidationDone,
)
from promptcodebook.step import Step
from promptcodebook.text import printable

WINDOW = 10
"""Steps that moving figures look back over."""
_KEPT = 1000
_BREAKS = re.compile(r"[\n\t]")


def _nothing_spent() -> Mapping[Role, Usage]:
    return {}


def _no_tallies() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class RunView:
    """What a watcher knows of a run. Replaced as a whole by each event, so that another thread may
    read it at any time.

    Times are seconds of the view's own clock; `rewards` are batch means of the latest steps,
    `counts` the selection counts before and after the latest steps (the last one is the present).
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
    lost: Usage = Usage()
    limits: Limits = Limits()

    @property
    def models(self) -> str:
        """The models of the run's roles, each once."""
        specs = self.run.models.values() if self.run is not None else ()
        return ", ".join(sorted({spec or "your own model" for spec in specs}))

    @property
    def recent(self) -> tuple[int, ...]:
        """Selections of the last steps."""
        return selected_since(self.counts[0], self.counts[-1]) if self.counts else ()

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been: what was lost to failures included."""
        return sum(self.usage.values(), self.lost)

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


def advance(view: RunView, event: ProgressEvent, now: float) -> RunView:
    """What is known after one more event."""
    match event:
        case Began():
            return replace(view, run=event, began=now)
        case Phase(name, done, total):
            new = view.phase is None or view.phase.name != name
            began = now if new else view.phase_began
            return replace(view, phase=event if done < total else None, phase_began=began)
        case StepDone():
            return _advance_step(view, event)
        case ValidationDone(step, evaluation, best, finalist):
            score = evaluation.score
            if score is None:
                return view
            marks = (*view.validations, *([] if finalist else [(step, score)]))[-_KEPT:]
            return replace(
                view, validations=marks, best=(step, score) if best else view.best, phase=None
            )
        case Spent(usage, tallies, lost, limits):
            return replace(view, usage=usage, tallies=tallies, lost=lost, limits=limits)
        case Note():
            return view


def _advance_step(view: RunView, event: StepDone) -> RunView:
    step = event.step
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    failed = sum(t.rollout.failure is not None or t.failure is not None for t in step.traces)
    return replace(
        view,
        step=step.index,
        epsilon=step.epsilon,
        reward=mean,
        rewards=(*view.rewards, mean)[-_KEPT:] if mean is not None else view.rewards,
        counts=(*(view.counts or (_counts_before(step),)), step.selected)[-WINDOW - 1 :],
        success=step.success,
        texts=step.parameters.codebook.texts,
        seconds=(*view.seconds, event.seconds)[-2 * WINDOW :],
        failed=view.failed + failed,
        phase=None,
    )


def _counts_before(step: Step) -> tuple[int, ...]:
    """The selection counts that the step began with: a run that is resumed, or that goes on from a
    policy, does not begin at 0."""
    known = [t.rollout for t in step.traces if t.rollout.reward is not None]
    picked = Counter(k for r in known if r.route is not None for k in r.route.indices)
    return tuple(max(0, n - picked[k]) for k, n in enumerate(step.selected))


def one_line(text: str) -> str:
    """Printable, its line breaks and tabs as spaces."""
    return _BREAKS.sub(" ", printable(text))
