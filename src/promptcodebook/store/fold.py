"""The state of a run, folded from its events: pure, one event at a time, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from promptcodebook.store.events import (
    Broke,
    Concluded,
    Ended,
    EndReason,
    Event,
    Judged,
    Resumed,
    Scope,
    Started,
    Stepped,
    Validated,
)
from promptcodebook.types import Evaluation, Parameters

__all__ = ["Mark", "RunState", "fold", "fold_event"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What one evaluation came to. `step` is -1 for the untrained policy; n counts examples."""

    name: str
    step: int
    scope: Scope
    score: float | None
    answered: float | None
    n: int
    failed: int


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands. `step` and `epoch` are -1 before the first update; K-tuples as in Step.

    `judged` are the verdict's rows in order; `ended` is None while the run goes on.
    """

    step: int = -1
    epoch: int = -1
    epsilon: float | None = None
    parameters: Parameters | None = None
    origin: str = ""
    ema: tuple[float, ...] = ()
    success: tuple[float, ...] = ()
    selected: tuple[int, ...] = ()
    validations: tuple[Mark, ...] = ()
    judged: tuple[Mark, ...] = ()
    conclusion: Concluded | None = None
    ended: EndReason | None = None
    detail: str = ""
    resumes: int = 0

    @property
    def best(self) -> Mark | None:
        """The best validation: on the whole split where any was, else on the subset.

        A tie goes to the earlier step.
        """
        scored = [m for m in self.validations if m.score is not None]
        scope = "full" if any(m.scope == "full" for m in scored) else "subset"
        inside = [m for m in scored if m.scope == scope]
        return min(inside, key=lambda m: (-(m.score or 0.0), m.step), default=None)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after these events, from `state` or from nothing."""
    current = state or RunState()
    for event in events:
        current = fold_event(current, event)
    return current


def fold_event(state: RunState, event: Event) -> RunState:
    """The state after one more event."""
    match event:
        case Started(parameters, origin):
            return replace(state, parameters=parameters, origin=origin)
        case Stepped(step):
            return replace(
                state,
                step=step.index,
                epoch=step.epoch,
                epsilon=step.epsilon,
                parameters=step.parameters,
                ema=step.ema,
                success=step.success,
                selected=step.selected,
            )
        case Broke():
            return state
        case Validated(step, scope, evaluation):
            mark = _mark(evaluation, step, scope)
            return replace(state, validations=(*state.validations, mark))
        case Judged(evaluation):
            mark = _mark(evaluation, state.step, "full")
            return replace(state, judged=(*state.judged, mark))
        case Concluded():
            return replace(state, conclusion=event)
        case Ended(reason, detail):
            return replace(state, ended=reason, detail=detail)
        case Resumed():
            return replace(state, ended=None, detail="", resumes=state.resumes + 1)


def _mark(evaluation: Evaluation, step: int, scope: Scope) -> Mark:
    return Mark(
        evaluation.name,
        step,
        scope,
        evaluation.score,
        evaluation.answered,
        len(evaluation.rollouts),
        evaluation.failed,
    )
