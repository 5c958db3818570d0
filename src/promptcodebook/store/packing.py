"""An event as the row of a table, and back.

It is kept in two parts: a light one, which the fold needs and which every reader sees, and a bulky
one (a step's traces, an evaluation's full rollouts), which is fetched when asked for, so that
reading a long run back takes memory for one step at a time. The names of the kinds on disk never
change, whatever the classes are called, so that old runs open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import StoreError
from promptcodebook.sqlite import pack, unpack
from promptcodebook.store.events import (
    Amended,
    Broke,
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    Started,
    Stepped,
    Trained,
    Validated,
)
from promptcodebook.types import Evaluation, Failure, Rollout, Trace

_KINDS: Mapping[str, type] = {
    "started": Started,
    "stepped": Stepped,
    "broke": Broke,
    "validated": Validated,
    "trained": Trained,
    "judged": Compared,
    "concluded": Concluded,
    "ended": Ended,
    "resumed": Resumed,
    "amended": Amended,
}


_TRIED = re.compile(r"fell from -?\d|run again|fell back with|be tried with")
"""In the reasons of rewrites that passed every check and were taken back."""


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


def unpack_event(row: PackedEvent, *, texts: bool = True) -> Event:
    """The event of a row: without traces and with slim rollouts where `bulk` was not fetched.

    Without `texts` the traces of a step keep their figures, and what was written in them is not
    even looked at: most of a long run is that. A slim rollout keeps what figures are made of
    (example, route, reward, failure, usage) and leaves out the texts. Raises StoreError for a
    damaged row or an unknown kind.
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
        return Stepped(replace(event.step, traces=unpack_traces(row.bulk, texts=texts)))
    if isinstance(event, Broke):
        return replace(event, traces=unpack_traces(row.bulk, texts=texts))
    if isinstance(event, Validated | Compared) and texts:
        bulk = row.bulk
        rollouts = _read(lambda: _rollouts_adapter().validate_python(unpack(bulk)))
        return replace(event, evaluation=replace(event.evaluation, rollouts=rollouts))
    return event


def unpack_traces(bulk: bytes, *, texts: bool = True) -> tuple[Trace, ...]:
    """The traces of a step's bulky part, with their texts or only with their figures."""
    tree = unpack(bulk)

    def build() -> tuple[Trace, ...]:
        for trace in () if texts else tree:
            _drop_texts(trace)
        return _traces_adapter().validate_python(tree)

    return _read(build)


def _drop_texts(trace: dict[str, Any]) -> None:
    """Takes out of a stored trace what people and models wrote, but not why it failed."""
    rollout: dict[str, Any] = trace["rollout"]
    route: dict[str, Any] = rollout.get("route") or {}
    gradients: dict[str, Any] = trace.get("gradients") or {}
    for name in ("prompt", "output", "feedback", "fields", "stages"):
        rollout.pop(name, None)
    for name in ("constraints", "analysis"):
        route.pop(name, None)
    if trace.get("verdict"):
        trace["verdict"] = {"score": trace["verdict"]["score"], "feedback": ""}
    trace["gradients"] = {"severity": gradients.get("severity", {})}


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
        what = f"at {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # before it is validated
        what = f"in its shape ({type(error).__name__})"
    raise StoreError(
        f"a stored event is damaged {what}",
        hint="put a copy of the run's folder in its place, or start a new run",
    )


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
