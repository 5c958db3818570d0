"""The events of a run, one per thing that happened: as rows, and folded into the run's state. An
event has a light part, which every reader sees, and a bulky one (a step's traces, an evaluation's
full rollouts), which is fetched when asked for: reading a long run takes memory for one step at a
time. The names of the kinds on disk never change, so that old runs open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from promptcodebook.base.sqlite import pack, unpack
from promptcodebook.calls import Usage
from promptcodebook.errors import StoreError
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.types import Evaluation, Failure, Parameters, Rollout, Step, Trace

EndReason = Literal["finished", "early_stop", "target", "budget", "interrupted", "failed"]
Scope = Literal["subset", "full"]


@dataclass(frozen=True, slots=True)
class Started:
    """Θ before the first step, its origin ('expert', 'from_prompt', ...), and what was known."""

    parameters: Parameters
    origin: str
    statistics: RoutingStatistics | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """One update of Algorithm 1."""

    step: Step


@dataclass(frozen=True, slots=True)
class Broke:
    """A batch that mostly failed and stopped the run: `step` was not made."""

    step: int
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class Validated:
    """The policy after `step` (-1 = untrained) on validation; its seconds (None = version 0.1)."""

    step: int
    scope: Scope
    evaluation: Evaluation
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """What was paid for training and choosing, or, before anything was `chosen`, for training; lost
    attempts are left out."""

    paid: Usage
    chosen: bool = True


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of the verdict, on the test split; `evaluation.name` is the row."""

    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class PromptCandidate:
    """A prompt that an optimizer of others tried. `score` is its mean reward on the `n` examples
    that it had of those that validate (None = of none)."""

    prompt: str
    score: float | None
    n: int
    rollouts: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Concluded:
    """The verdict in a sentence, whether it is worth deploying, its table and the row to deploy (''
    = unclear, or version 0.1). `settings` and `candidates`, in order, are of an optimizer of
    others. `missing` are titles of rows that the budget did not reach. `earlier` verdicts of other
    runs were made on the same test rows. `slices` are gains by slice."""

    text: str
    worth: bool | None
    rows: tuple[Mapping[str, Any], ...] = ()
    deploy: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: dict[str, Any]())
    candidates: tuple[PromptCandidate, ...] = ()
    missing: tuple[str, ...] = ()
    earlier: int = 0
    slices: tuple[Mapping[str, Any], ...] = ()

    @property
    def decision(self) -> str:
        return "Deploy" if self.worth else "Do not deploy" if self.deploy else "Undecided"


@dataclass(frozen=True, slots=True)
class Ended:
    """`missing` says in a sentence why there is no verdict, `hint` what to type next."""

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
    """The run resumes otherwise: changes in words, ISO time. `extended` = its end was put off."""

    changes: tuple[str, ...]
    at: str
    extended: bool = False


_Ends = Trained | Compared | Concluded | Ended | Resumed | Amended
Event = Started | Stepped | Broke | Validated | _Ends
_KINDS: Mapping[str, type[Event]] = {
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


@cache  # building one takes milliseconds
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


_TRACES, _ROLLOUTS = tuple[Trace, ...], tuple[Rollout, ...]


def pack_event(event: Event) -> tuple[str, int | None, bytes, bytes | None]:
    """An event as its row: kind, step (None = of none), light part, bulky part (None = none)."""
    kind = next(name for name, shape in _KINDS.items() if isinstance(event, shape))
    step: int | None = getattr(event, "step", None)
    bulk: bytes | None = None
    light: Event = event
    match event:
        case Stepped(made):
            step, light = made.index, Stepped(replace(made, traces=()))
            bulk = pack(_adapter(_TRACES).dump_python(made.traces))
        case Broke(traces=traces):
            light = replace(event, traces=())
            bulk = pack(_adapter(_TRACES).dump_python(traces))
        case Validated(evaluation=evaluation) | Compared(evaluation):
            slim = tuple(map(_slim_rollout, evaluation.rollouts))
            light = replace(event, evaluation=replace(evaluation, rollouts=slim))
            bulk = pack(_adapter(_ROLLOUTS).dump_python(evaluation.rollouts))
        case _:
            pass
    return kind, step, pack(_adapter(_KINDS[kind]).dump_python(light)), bulk


def _slim_rollout(rollout: Rollout) -> Rollout:
    return Rollout(
        rollout.example_id,
        rollout.route and replace(rollout.route, constraints=(), analysis=""),
        reward=rollout.reward,
        truncated=rollout.truncated,
        failure=rollout.failure and Failure(rollout.failure.stage, rollout.failure.kind, ""),
        usage=rollout.usage,
        prompt_length=rollout.prompt_length,
        metered=rollout.metered,
    )


def unpack_event(
    kind: str, light: bytes, bulk: bytes | None = None, *, texts: bool = True
) -> Event:
    """The event of a row: without traces and with slim rollouts where `bulk` was not fetched.
    Without `texts` traces keep their figures alone. Raises StoreError for one that is damaged or of
    an unknown kind."""
    if kind not in _KINDS:
        hint = "pip install -U promptcodebook (a newer version may have written it)"
        raise StoreError(f"the run contains an unknown kind of event: {kind!r}", hint=hint)

    def build(tree: Any) -> Event:
        if kind == "stepped":
            # Version 0.1 named c_k 'c<k>', and a rewrite that was taken back was not `kept`.
            step = tree["step"]
            for rewrite in step["rewrites"]:
                name = rewrite["variable"]
                if isinstance(name, str) and name[1:].isdecimal():
                    rewrite["variable"] = int(name[1:])
            if isinstance(step.get("reverted"), bool):
                step["reverted"] = []
        return _adapter(_KINDS[kind]).validate_python(tree)

    event: Event = _read(light, build)
    if bulk is None:
        return event
    if isinstance(event, Stepped):
        return Stepped(replace(event.step, traces=_read(bulk, partial(_traces, texts=texts))))
    if isinstance(event, Broke):
        return replace(event, traces=_read(bulk, partial(_traces, texts=texts)))
    if isinstance(event, Validated | Compared) and texts:
        rollouts = _read(bulk, _adapter(_ROLLOUTS).validate_python)
        return replace(event, evaluation=replace(event.evaluation, rollouts=rollouts))
    return event


def _traces(tree: Any, *, texts: bool) -> tuple[Trace, ...]:
    """Of stored traces; without `texts`, what people and models wrote is left out."""
    for trace in () if texts else tree:
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
    return _adapter(_TRACES).validate_python(tree)


def _read(blob: bytes, build: Callable[[Any], Any]) -> Any:
    tree = unpack(blob)
    try:
        return build(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"at {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # before it is validated
        what = f"({type(error).__name__})"
    message = f"a stored event is damaged {what}"
    raise StoreError(message, hint="restore the run's folder from a backup, or start a new run")


@dataclass(frozen=True, slots=True)
class Mark:
    """What one evaluation came to; step -1 = untrained. `binary` = all rewards are 0 or 1."""

    name: str
    step: int
    scope: Scope
    score: float | None
    answered: float | None
    n: int
    failed: int
    binary: bool = False

    @classmethod
    def of(cls, made: Evaluation, step: int, scope: Scope) -> Mark:
        return cls(
            made.name,
            step,
            scope,
            made.score,
            made.answered,
            n=len(made.rollouts),
            failed=made.failed,
            binary=set(made.rewards) <= {0.0, 1.0},
        )


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is. `step` and `epoch` are -1 before the first update; K-tuples as in Step.
    `tests` are the verdict's rows in order; `ended` is None while the run is going. `changes` lists
    in words what changed on resuming. `extended_at` is the step at which the run was last made
    longer (-2 = never). `harmful` are texts that verdicts called so. What was chosen counts until
    the next step, and what was judged until the next step or validation. `looks` counts earlier
    verdicts, looks at the same test split."""

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
        """The best validation, on the whole split if any was. A tie goes to the earlier step."""
        scored = [m for m in self.validations if m.score is not None]
        whole = [m for m in scored if m.scope == "full"]
        return min(whole or scored, key=lambda m: (-(m.score or 0.0), m.step), default=None)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after these events, from `state` or from nothing."""
    return reduce(fold_event, events, state or RunState())


def fold_event(state: RunState, event: Event) -> RunState:
    going = {"ended": None, "detail": "", "missing": "", "hint": ""}
    # A verdict there was counts no more, but as a look.
    looks = state.looks + (state.conclusion is not None)
    unjudged = {"tests": (), "conclusion": None, "looks": looks}
    match event:
        case Started(parameters, origin):
            return replace(state, parameters=parameters, origin=origin)
        case Stepped(step):
            return replace(
                state,
                **unjudged,
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
        case Validated(step, scope, evaluation):
            mark = Mark.of(evaluation, step, scope)
            state = replace(state, **unjudged) if state.tests else state
            return replace(state, validations=(*state.validations, mark))
        case Compared(evaluation):
            if state.conclusion is not None:  # the steps before it were left out by the reader
                state = replace(state, **unjudged)
            mark = Mark.of(evaluation, state.step, "full")
            return replace(state, tests=(*state.tests, mark))
        case Concluded():
            return replace(state, conclusion=event)
        case Ended(reason, detail, missing, hint):
            return replace(state, ended=reason, detail=detail, missing=missing, hint=hint)
        case Resumed():
            return replace(state, **going, resumes=state.resumes + 1)
        case Amended(changes, _, extended):
            state = replace(state, changes=(*state.changes, *changes))
            again = {**unjudged, **going, "extended_at": state.step}
            return replace(state, **again) if extended else state
        case Broke() | Trained():
            return state
