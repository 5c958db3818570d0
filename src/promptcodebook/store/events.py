"""The events of a run, one per thing that happened; the run's state is a fold over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from promptcodebook.calls import Usage
from promptcodebook.method.policy import OffPolicy
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.types import Evaluation, Parameters, Step, Trace

EndReason = Literal["finished", "early_stop", "target", "budget", "interrupted", "failed"]
Scope = Literal["subset", "full"]


@dataclass(frozen=True, slots=True)
class Started:
    """Θ before the first step, where it came from ('expert', 'from_prompt', ...), and what was
    known of its instincts then (None = nothing)."""

    parameters: Parameters
    origin: str
    statistics: RoutingStatistics | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """One update of Algorithm 1."""

    step: Step


@dataclass(frozen=True, slots=True)
class Broke:
    """A batch that mostly failed and stopped the run; `step` was not made, but is on record."""

    step: int
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class Validated:
    """The policy as it stood after `step` (-1 = untrained) over validation examples, and the
    seconds that took (None = a run of version 0.1)."""

    step: int
    scope: Scope
    evaluation: Evaluation
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """Training and choosing are over, and the verdict's first row has its turn: what was paid by
    then. Attempts that were lost are no part of it."""

    paid: Usage


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of the verdict, on the test split; `evaluation.name` is the row."""

    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt that an optimizer of others tried, in `rollouts` rollouts, and whether it was kept.

    `score` is its mean reward on the `n` examples that it had of those that validate (None = of
    none).
    """

    prompt: str
    score: float | None
    n: int
    rollouts: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Concluded:
    """The verdict in a plain sentence, whether it is worth deploying, its table, the row to deploy
    ('' = unclear, or a run of version 0.1), what training's own outcomes say of the learned
    routes (None = they were not learned so), and the `settings` of an optimizer of others with the
    `candidates` it tried, in order (() = our own, or a run of an earlier version)."""

    text: str
    worth: bool | None
    rows: tuple[Mapping[str, Any], ...] = ()
    deploy: str = ""
    off_policy: OffPolicy | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: dict[str, Any]())
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the run stopped here; anything but 'finished', 'early_stop', 'target' can be resumed.

    `missing` says in a sentence why there is no verdict, `hint` what to type next.
    """

    reason: EndReason
    detail: str = ""
    missing: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Training resumes after `step`; `at` is the time, ISO 8601."""

    step: int
    at: str


@dataclass(frozen=True, slots=True)
class Amended:
    """The run resumes otherwise than it began: each change in words, the time in ISO 8601.

    `extended` = its end was put off: what was judged before was another policy.
    """

    changes: tuple[str, ...]
    at: str
    extended: bool = False


Event = (
    Started
    | Stepped
    | Broke
    | Validated
    | Trained
    | Compared
    | Concluded
    | Ended
    | Resumed
    | Amended
)


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
    """How far a run is. `step` and `epoch` are -1 before the first update; K-tuples as in Step.

    `tests` are the verdict's rows in order; `ended` is None while the run is going, and `detail`,
    `missing` and `hint` are those of its end. `changes` lists in words what changed on resuming.
    `extended_at` is the step at which the run was last made longer (-2 = never). `harmful` are
    texts that verdicts called so. What was chosen and judged counts until the next step: a run that
    is trained longer is chosen and judged again. `looks` counts the verdicts that no longer count:
    each was a look at the same test split.
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
    tests: tuple[Mark, ...] = ()
    conclusion: Concluded | None = None
    ended: EndReason | None = None
    detail: str = ""
    missing: str = ""
    hint: str = ""
    resumes: int = 0
    changes: tuple[str, ...] = ()
    extended_at: int = -2
    harmful: tuple[str, ...] = ()
    looks: int = 0

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
                _unjudged(state),
                step=step.index,
                epoch=step.epoch,
                epsilon=step.epsilon,
                parameters=step.parameters,
                ema=step.ema,
                success=step.success,
                selected=step.selected,
                validations=tuple(m for m in state.validations if m.scope != "full"),
                harmful=step.harmful,
            )
        case Broke() | Trained():
            return state
        case Validated(step, scope, evaluation):
            mark = _mark(evaluation, step, scope)
            return replace(state, validations=(*state.validations, mark))
        case Compared(evaluation):
            if state.conclusion is not None:  # the steps before it were left out by the reader
                state = _unjudged(state)
            mark = _mark(evaluation, state.step, "full")
            return replace(state, tests=(*state.tests, mark))
        case Concluded():
            return replace(state, conclusion=event)
        case Ended() | Resumed() | Amended():
            return _stop_or_go_on(state, event)


def _stop_or_go_on(state: RunState, event: Ended | Resumed | Amended) -> RunState:
    match event:
        case Ended(reason, detail, missing, hint):
            return replace(state, ended=reason, detail=detail, missing=missing, hint=hint)
        case Resumed():
            return replace(_going(state), resumes=state.resumes + 1)
        case Amended(changes, _, extended):
            state = replace(state, changes=(*state.changes, *changes))
            if not extended:
                return state
            return replace(_unjudged(_going(state)), extended_at=state.step)


def _unjudged(state: RunState) -> RunState:
    """A verdict there was counts no more, but as a look."""
    looks = state.looks + (state.conclusion is not None)
    return replace(state, tests=(), conclusion=None, looks=looks)


def _going(state: RunState) -> RunState:
    return replace(state, ended=None, detail="", missing="", hint="")


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
