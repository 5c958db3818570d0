"""What a run's store holds, one event per thing that happened; state is a fold over them.

An event is kept in two parts: a light one, which the fold needs and which every reader sees, and
a bulky one (a step's traces, an evaluation's full rollouts), which is fetched when asked for, so
that reading a long run back takes memory for one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import StoreError
from promptcodebook.sqlite import pack, unpack
from promptcodebook.types import Evaluation, Failure, Parameters, Rollout, Step, Trace

__all__ = [
    "Broke",
    "Concluded",
    "EndReason",
    "Ended",
    "Event",
    "Judged",
    "PackedEvent",
    "Resumed",
    "Scope",
    "Started",
    "Stepped",
    "Validated",
    "pack_event",
    "unpack_event",
    "unpack_traces",
]

EndReason = Literal["finished", "early_stop", "target", "budget", "interrupted", "failed"]
Scope = Literal["subset", "full"]


@dataclass(frozen=True, slots=True)
class Started:
    """Θ before the first step, and where it came from ('expert', 'from_prompt', ...)."""

    parameters: Parameters
    origin: str


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
    """The policy as it stood after `step` (-1 = untrained) over validation examples."""

    step: int
    scope: Scope
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Judged:
    """One row of the verdict; `evaluation.name` is the row."""

    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Concluded:
    """The verdict in a plain sentence, whether it is worth deploying, and its table."""

    text: str
    worth: bool | None
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the run stopped here; anything but 'finished', 'early_stop', 'target' can be resumed."""

    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Training goes on after `step`; `at` is the time, ISO 8601."""

    step: int
    at: str


Event = Started | Stepped | Broke | Validated | Judged | Concluded | Ended | Resumed

_KINDS: Mapping[str, type] = {
    "started": Started,
    "stepped": Stepped,
    "broke": Broke,
    "validated": Validated,
    "judged": Judged,
    "concluded": Concluded,
    "ended": Ended,
    "resumed": Resumed,
}


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
        bulk = pack(_traces().dump_python(event.step.traces))
    elif isinstance(event, Broke):
        step = event.step
        light = replace(event, traces=())
        bulk = pack(_traces().dump_python(event.traces))
    elif isinstance(event, Validated | Judged):
        step = event.step if isinstance(event, Validated) else None
        light = replace(event, evaluation=_slim(event.evaluation))
        bulk = pack(_rollouts().dump_python(event.evaluation.rollouts))
    elif isinstance(event, Resumed):
        step = event.step
    return PackedEvent(kind, step, pack(_adapter(kind).dump_python(light)), bulk)


def unpack_event(row: PackedEvent) -> Event:
    """The event of a row: without traces and with slim rollouts where `bulk` was not fetched.

    A slim rollout keeps what figures are made of (example, route, reward, failure, usage) and
    leaves out the texts. Raises StoreError for a damaged row or an unknown kind.
    """
    if row.kind not in _KINDS:
        raise StoreError(f"the run holds an event of unknown kind {row.kind!r}")
    event: Event = _read(lambda: _adapter(row.kind).validate_python(unpack(row.light)))
    if row.bulk is None:
        return event
    if isinstance(event, Stepped):
        return Stepped(replace(event.step, traces=unpack_traces(row.bulk)))
    if isinstance(event, Broke):
        return replace(event, traces=unpack_traces(row.bulk))
    if isinstance(event, Validated | Judged):
        bulk = row.bulk
        rollouts = _read(lambda: _rollouts().validate_python(unpack(bulk)))
        return replace(event, evaluation=replace(event.evaluation, rollouts=rollouts))
    return event


def unpack_traces(bulk: bytes) -> tuple[Trace, ...]:
    """The traces of a step's bulky part."""
    return _read(lambda: _traces().validate_python(unpack(bulk)))


def _read(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"a stored event is damaged at {where}: {first['msg']}") from None


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
    )


# Building an adapter takes milliseconds, so each is built once, when first needed.


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


@cache
def _traces() -> TypeAdapter[tuple[Trace, ...]]:
    return TypeAdapter(tuple[Trace, ...])


@cache
def _rollouts() -> TypeAdapter[tuple[Rollout, ...]]:
    return TypeAdapter(tuple[Rollout, ...])
