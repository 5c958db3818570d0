"""The events of a run, one per thing that happened; the run's state is a fold over them.

An event is kept in two parts: a light one, which the fold needs and which every reader sees, and
a bulky one (a step's traces, an evaluation's full rollouts), which is fetched when asked for, so
that reading a long run back takes memory for one step at a time. The names of the kinds on disk
never change, whatever the classes are called, so that old runs open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import StoreError
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.sqlite import pack, unpack
from promptcodebook.types import Evaluation, Failure, Parameters, Rollout, Step, Trace

__all__ = [
    "Amended",
    "Broke",
    "Compared",
    "Concluded",
    "EndReason",
    "Ended",
    "Event",
    "Mark",
    "PackedEvent",
    "Resumed",
    "RunState",
    "Scope",
    "Started",
    "Stepped",
    "Validated",
    "fold",
    "fold_event",
    "pack_event",
    "unpack_event",
    "unpack_traces",
]

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
class Compared:
    """One row of the verdict, on the test split; `evaluation.name` is the row."""

    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Concluded:
    """The verdict in a plain sentence, whether it is worth deploying, its table, and the row to
    deploy ('' = unclear, or a run of version 0.1)."""

    text: str
    worth: bool | None
    rows: tuple[Mapping[str, Any], ...] = ()
    deploy: str = ""


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
    """Training goes on after `step`; `at` is the time, ISO 8601."""

    step: int
    at: str


@dataclass(frozen=True, slots=True)
class Amended:
    """The run goes on in another way than it began: each change in words, the time in ISO 8601.

    `extended` = its end was put off: what was judged before was another policy.
    """

    changes: tuple[str, ...]
    at: str
    extended: bool = False


Event = Started | Stepped | Broke | Validated | Compared | Concluded | Ended | Resumed | Amended
_KINDS: Mapping[str, type] = {
    "started": Started,
    "stepped": Stepped,
    "broke": Broke,
    "validated": Validated,
    "judged": Compared,
    "concluded": Concluded,
    "ended": Ended,
    "resumed": Resumed,
    "amended": Amended,
}


_TRIED = re.compile(r"fell from -?\d|run again|fell back with|be tried with")
"""In the reasons of rewrites that passed every check and were taken back."""


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

    `tests` are the verdict's rows in order; `ended` is None while the run goes on, and `detail`,
    `missing` and `hint` are those of its end; `changes` are what became different on the way, in
    words; `extended_at` is the step at which the run was last
    made longer (-2 = never). What was chosen and judged counts until the next step: a run that goes
    on is chosen and judged anew.
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
                validations=tuple(m for m in state.validations if m.scope != "full"),
                tests=(),
                conclusion=None,
            )
        case Broke():
            return state
        case Validated(step, scope, evaluation):
            mark = _mark(evaluation, step, scope)
            return replace(state, validations=(*state.validations, mark))
        case Compared(evaluation):
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
            longer = replace(_going(state), tests=(), conclusion=None)
            return replace(longer, extended_at=state.step)


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


@dataclass(frozen=True, slots=True)
class PackedEvent:
    """An event as its row: `step` is None where the event belongs to none, `bulk` where empty."""

    kind: str
    step: int | None
    light: bytes
    bulk: bytes | None = None


def pack_event(event: Event) -> PackedEvent:
    """The row of an event."""
    kind = next(k for k, c in _KINDS.items() if isinstance(event, c))
    step: int | None = None
    bulk: bytes | None = None
    light: Event = event
    if isinstance(event, Stepped):
        step = event.step.index
        light = Stepped(replace(event.step, traces=()))
        bulk = pack(_traces_adapter().dump_python(event.step.traces))
    elif isinstance(event, Broke):
        step = event.step
        light = replace(event, traces=())
        bulk = pack(_traces_adapter().dump_python(event.traces))
    elif isinstance(event, Validated | Compared):
        step = event.step if isinstance(event, Validated) else None
        light = replace(event, evaluation=_slim(event.evaluation))
        bulk = pack(_rollouts_adapter().dump_python(event.evaluation.rollouts))
    elif isinstance(event, Resumed):
        step = event.step
    return PackedEvent(kind, step, pack(_adapter(kind).dump_python(light)), bulk)


def unpack_event(row: PackedEvent) -> Event:
    """The event of a row: without traces and with slim rollouts where `bulk` was not fetched.

    A slim rollout keeps what figures are made of (example, route, reward, failure, usage) and
    leaves out the texts. Raises StoreError for a damaged row or an unknown kind.
    """
    if row.kind not in _KINDS:
        raise StoreError(
            f"the run holds an event of unknown kind {row.kind!r}",
            hint="pip install -U promptcodebook (a newer version may have written it)",
        )
    event: Event = _read(
        lambda: _adapter(row.kind).validate_python(_update(row.kind, unpack(row.light)))
    )
    if row.bulk is None:
        return event
    if isinstance(event, Stepped):
        return Stepped(replace(event.step, traces=unpack_traces(row.bulk)))
    if isinstance(event, Broke):
        return replace(event, traces=unpack_traces(row.bulk))
    if isinstance(event, Validated | Compared):
        bulk = row.bulk
        rollouts = _read(lambda: _rollouts_adapter().validate_python(unpack(bulk)))
        return replace(event, evaluation=replace(event.evaluation, rollouts=rollouts))
    return event


def unpack_traces(bulk: bytes) -> tuple[Trace, ...]:
    """The traces of a step's bulky part."""
    return _read(lambda: _traces_adapter().validate_python(unpack(bulk)))


def _update(kind: str, tree: Any) -> Any:
    """A light event of version 0.1 as it would be written today: there c_k was named 'c<k>', and a
    step said only whether anything was reverted, which the reasons of its rewrites tell."""
    if kind == "stepped":
        step = tree["step"]
        for rewrite in step["rewrites"]:
            name = rewrite["variable"]
            if isinstance(name, str) and name[1:].isdecimal():
                rewrite["variable"] = int(name[1:])
        if isinstance(step.get("reverted"), bool):
            taken = [r["variable"] for r in step["rewrites"] if _taken_back(r)]
            step["reverted"] = taken if step["reverted"] else []
    return tree


def _taken_back(rewrite: Mapping[str, Any]) -> bool:
    """Whether a rewrite of version 0.1 was refused by what was tried, not by a check."""
    return not rewrite["kept"] and _TRIED.search(rewrite["reason"]) is not None


def _read(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"a stored event is damaged at {where}: {first['msg']}",
            hint="put a copy of the run's folder in its place, or start a new run",
        ) from None


def _slim(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, rollouts=tuple(_slim_rollout(r) for r in evaluation.rollouts))


def _slim_rollout(rollout: Rollout) -> Rollout:
    route = rollout.route and replace(rollout.route, constraints=(), analysis="")
    failure = rollout.failure and Failure(rollout.failure.stage, rollout.failure.kind, "")
    return Rollout(
        example_id=rollout.example_id,
        route=route,
        reward=rollout.reward,
        truncated=rollout.truncated,
        failure=failure,
        usage=rollout.usage,
        prompt_length=rollout.prompt_length,
    )


# Building an adapter takes milliseconds, so each is built once, when first needed.
@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


@cache
def _traces_adapter() -> TypeAdapter[tuple[Trace, ...]]:
    return TypeAdapter(tuple[Trace, ...])


@cache
def _rollouts_adapter() -> TypeAdapter[tuple[Rollout, ...]]:
    return TypeAdapter(tuple[Rollout, ...])
