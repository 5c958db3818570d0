"""`reward = ...` of the configuration as a Reward, and what a reward returned as a Score."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, TypeAdapter, ValidationError

from promptcodebook.base.incidents import no_tally
from promptcodebook.base.paths import read_text
from promptcodebook.base.text import parse_json, shipped_table
from promptcodebook.calls import Message, Request
from promptcodebook.errors import (
    ConfigError,
    PcoError,
    RewardError,
    did_you_mean,
    loop_hint,
    message_of,
)
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask, LenientNumber, LenientText, ReplyShape
from promptcodebook.tasks.rewards.ready import COMPARING, READY
from promptcodebook.tasks.task import RewardFactory
from promptcodebook.tasks.user_code import (
    Escape,
    Overdue,
    UserCalls,
    annotated_as,
    load_function,
    place_of,
)
from promptcodebook.types import Example, Output, Reward, Score

_SLACK = 1e-9  # sums of floats may miss the end of the range by a rounding error
_FORMS = (
    "return a float, a bool, (0.5, 'feedback'), {'score': 0.5, 'feedback': '...'} or "
    "pco.Score(0.5, 'feedback')"
)


async def apply_reward(
    reward: Reward,
    example: Example,
    output: Output,
    reward_range: tuple[float, float],
    calls: UserCalls | None = None,
) -> Score:
    """r(y, y*) as a Score inside `reward_range`, run by `calls`. A reward that annotates its output
    as `Output` gets the whole, any other y's text. Raises RewardError when it raises (with its file
    and line; the cause is chained), hangs, or returns no finite number in the range. Our own
    errors, a reached budget among them, pass."""
    try:
        given = output if annotated_as(reward, 1, Output) else output.text
        returned: Any = await (calls or UserCalls()).call(cast("Any", reward), example, given)
    except PcoError:
        raise
    except Overdue as error:
        raise RewardError(
            f"the reward did not return within {error.seconds:g} s (example {example.id})",
            hint="find out where it hangs; user_code.seconds limits it",
        ) from None
    except Exception as error:
        raised = error.error if isinstance(error, Escape) else error
        raise RewardError(
            f"the reward raised {type(raised).__name__}: {message_of(raised)} "
            f"({place_of(raised)}, example {example.id})",
            hint=loop_hint(raised)
            or "correct the reward; a run records such rollouts as failed and continues",
        ) from raised
    where = f"for example {example.id}"
    if code := getattr(reward, "__code__", None):
        where += f" ({code.co_name} in {code.co_filename}:{code.co_firstlineno})"
    score, (low, high) = _score_of(returned, where), reward_range
    if not math.isfinite(score.value):
        raise RewardError(
            f"the reward returned {score.value} {where}",
            hint="return a finite number, e.g. 0.0 for an answer that cannot be scored",
        )
    if not low - _SLACK <= score.value <= high + _SLACK:
        wider = f"[{min(low, score.value):g}, {max(high, score.value):g}]"
        raise RewardError(
            f"the reward returned {score.value:g} {where}, outside its range {low:g}..{high:g}",
            hint=f"set reward_range = {wider} or wider",
        )
    return Score(min(max(score.value, low), high), score.feedback)


def _score_of(returned: object, where: str) -> Score:
    """A number, a Score, a pair of number and feedback, or a mapping that names them."""
    value, feedback, fault = returned, cast("object", ""), ""
    if isinstance(returned, Score):
        value, feedback = returned.value, returned.feedback
    elif isinstance(returned, tuple):
        pair = cast("tuple[object, ...]", returned)
        if len(pair) == 2 and isinstance(pair[1], str | None):
            value, feedback = pair
        else:
            kinds = ", ".join(type(each).__name__ for each in pair) or "nothing"
            fault = f"a tuple of {kinds}"
    elif isinstance(returned, Mapping):
        tree = cast("Mapping[object, object]", returned)
        names = [key for key in tree if key != "feedback"]
        if names in (["score"], ["value"]):
            value, feedback = tree[names[0]], tree.get("feedback")
        else:
            fault = f"a mapping with the keys {', '.join(map(repr, tree)) or 'none'}"
    if fault:
        message = f"the reward returned {fault} {where}, which is not a score"
        raise RewardError(message, hint=_FORMS)
    unpack = getattr(value, "item", None)  # NumPy and torch scalars
    if callable(unpack) and getattr(value, "size", 1) == 1:
        value = unpack()
    if not isinstance(value, Real | Decimal):
        given = repr(None if value is None else type(value).__name__)
        raise RewardError(f"the reward returned {given} {where}, not a number", hint=_FORMS)
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond any float
        number = math.inf
    except ValueError:  # a Decimal that must not be used
        number = math.nan
    return Score(number, "" if feedback is None else str(feedback))


STAND_IN = "stand-in"  # as `reward` of a ready-made task: its stand-in decides, without a judge
_OPTIONS: dict[str, list[str]] = {
    kind: [f.name for f in dataclasses.fields(shape) if f.init] for kind, shape in READY.items()
} | {"judge": ["rubric", "shots"], "sum": ["parts"]}


def reward_kinds() -> tuple[str, ...]:
    """The kinds of ready-made rewards."""
    return tuple(_OPTIONS)


def reward_factory(
    spec: str | Mapping[str, object], base: Path, calls: UserCalls | None = None
) -> RewardFactory:
    """What makes the reward once models are connected. Raises ConfigError for what is wrong
    already."""

    made = make_reward(spec, base, Ask(ScriptedLM(), no_tally), calls)  # it asks nothing yet
    return lambda ask: make_reward(spec, base, ask, calls) if asks_judge(made) else made


def asks_judge(reward: Reward) -> bool:
    """Whether a model judges: such a reward has an `ask`, and a sum has such a part."""
    parts = reward.parts if isinstance(reward, WeightedSum) else ()
    return hasattr(reward, "ask") or any(asks_judge(part.reward) for part in parts)


def needs_reference(spec: str | Mapping[str, object]) -> bool:
    """Whether a ready-made reward compares answers with references, or a part of a sum does."""
    tree = {"kind": spec} if isinstance(spec, str) else spec
    parts = cast("Sequence[str | Mapping[str, object]]", tree.get("parts") or ())
    compares = tree.get("kind") in COMPARING and tree.get("text") is None
    return compares or any(map(needs_reference, parts))


def make_reward(
    spec: str | Mapping[str, object],
    base: Path,
    ask: Ask | None = None,
    calls: UserCalls | None = None,
) -> Reward:
    """A reward from 'reward.py:reward', a kind such as 'exact', or {kind = ..., options...}.
    Relative paths start at `base`. `ask` calls the judge's model, `calls` the user's functions
    within a sum. Raises ConfigError when the spec is wrong."""
    if isinstance(spec, str):
        if ":" in spec or spec.endswith(".py"):
            return cast("Reward", load_function(spec, base, "reward", ("example", "output")))
        spec = {"kind": spec}
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in _OPTIONS:
        fault = "lacks its kind" if kind is None else f"has the unknown kind {kind!r}"
        raise ConfigError(
            f"the reward {fault}{did_you_mean(str(kind), _OPTIONS)}",
            hint=f'kinds: {", ".join(_OPTIONS)}; or your own: reward = "reward.py:reward"',
        )
    options = {key: value for key, value in spec.items() if key != "kind"}
    for key in options:
        if key not in _OPTIONS[kind]:
            message = (
                f"the reward {kind!r} has no option {key!r}{did_you_mean(key, _OPTIONS[kind])}"
            )
            raise ConfigError(message, hint=f"its options: {', '.join(_OPTIONS[kind]) or 'none'}")
    if kind == "judge":
        rubric = options.get("rubric")
        if not isinstance(rubric, str) or not rubric.strip():
            step = 'rubric = "What a good answer does ..."'
            raise ConfigError("the reward 'judge' needs a rubric", hint=step)
        shots = options.get("shots", False)
        if not isinstance(shots, bool):
            raise ConfigError(f"shots is not true or false: {shots!r}", hint="shots = true")
        if ask is None:
            message = "the reward 'judge' asks a model, and none is available here"
            raise ConfigError(message, hint="set lm, or roles.judge.model")
        return RubricJudge(ask, rubric, shots)
    if kind == "sum":
        return _sum(options.get("parts"), base, ask, calls or UserCalls())
    return _ready(kind, options, base)


def _ready(kind: str, options: dict[str, object], base: Path) -> Reward:
    if kind == "schema" and isinstance(options.get("schema"), str):
        path = base / str(options["schema"])
        try:
            options["schema"] = parse_json(read_text(path))
        except (OSError, ValueError) as error:
            message = f"cannot read the JSON schema {path}: {error}"
            raise ConfigError(message, hint="check the path and the JSON") from None
    try:
        return TypeAdapter(READY[kind]).validate_python(options)
    except ValidationError as error:
        first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    step = f'reward = {{kind = "{kind}", {key or "OPTION"} = ...}}'
    if first["type"] == "missing":
        raise ConfigError(f"the reward {kind!r} needs a {key}", hint=step)
    reason = first["msg"].removeprefix("Value error, ")
    at = f"{key}: " if key else ""
    raise ConfigError(f"the reward {kind!r}: {at}{reason}", hint=step)


def _sum(specs: object, base: Path, ask: Ask | None, calls: UserCalls) -> WeightedSum:
    if not isinstance(specs, list | tuple):
        raise ConfigError("the reward 'sum' needs parts", hint='parts = [{kind = "exact"}]')
    parts = list[WeightedReward]()
    for spec in cast("Sequence[object]", specs):
        if not isinstance(spec, str | Mapping):
            raise ConfigError(f"a part of a sum is not a table: {spec!r}", hint='{kind = "exact"}')
        own = {"function": spec} if isinstance(spec, str) else cast("Mapping[str, Any]", spec)
        options = dict[str, Any](own)
        weight, function = options.pop("weight", 1.0), options.pop("function", None)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"the weight {weight!r} is not a number", hint="weight = 0.5")
        reward = make_reward(options if function is None else str(function), base, ask, calls)
        parts.append(WeightedReward(str(function or options.get("kind")), reward, float(weight)))
    return WeightedSum(tuple(parts), calls)


def describe_reward(
    reward: str | Mapping[str, object] | Callable[..., object], task: str = ""
) -> str:
    """One text for a reward or a ready-made `task`, however named: `numeric {"tolerance": 0.1}`."""
    if task:
        return f"{task}, {STAND_IN}" if reward == STAND_IN else task
    if isinstance(reward, str):
        path, _, function = reward.rpartition(":")
        if path or reward.endswith(".py"):
            return f"{function if path else 'reward'}()"
        return reward
    if not isinstance(reward, Mapping):
        return f"{getattr(reward, '__name__', type(reward).__name__)}()"
    table = cast("Mapping[str, object]", reward)
    kind = str(table.get("kind"))
    # Name only the options that differ from their defaults.
    usual = {f.name: f.default for f in dataclasses.fields(READY[kind])} if kind in READY else {}
    own = {key: value for key, value in table.items() if key != "kind"}
    options = {k: v for k, v in own.items() if k not in usual or usual[k] != v}
    if kind == "sum":
        parts = list[str]()
        for part in cast("Sequence[str | Mapping[str, Any]]", options["parts"]):
            named = {"function": part} if isinstance(part, str) else dict(part)
            weight = named.pop("weight", 1.0)
            parts.append(f"{describe_reward(named.get('function', named))}, weight {weight:g}")
        options["parts"] = parts
    return f"{kind} {json.dumps(options, sort_keys=True, default=str)}" if options else kind


class Judgement(ReplyShape):
    """The judge's reply."""

    feedback: LenientText = Field(
        json_schema_extra={"maxLength": 900}, description="what the answer meets and misses"
    )
    score: LenientNumber = Field(
        ge=0.0, le=1.0, description="0 = meets nothing, 1 = meets the rubric"
    )


@dataclass(frozen=True, slots=True)
class RubricJudge:
    """A model scores the answer against your rubric. Raises LMError if there is no score."""

    ask: Ask
    rubric: str
    shots: bool = False

    async def __call__(self, example: Example, output: str) -> Score:
        # JSON keeps question and answer apart from each other and from the instructions.
        material = {"input": example.input, "answer": output}
        if example.target is not None:
            material["reference"] = example.target
        turns = self._after_examples(material) if self.shots else self._after_rubric(material)
        request = Request(role="judge", messages=turns, greedy=True)
        answer = await self.ask.typed(request, Judgement)
        return Score(answer.value.score, answer.value.feedback)

    def _after_rubric(self, material: Mapping[str, str]) -> tuple[Message, ...]:
        # One pass: a rubric with braces is text like any other.
        template = Path(__file__).with_name("judge.txt").read_text("utf-8")
        system = Message("system", template.replace("{rubric}", self.rubric))
        return system, _spoken("user", material)

    def _after_examples(self, material: Mapping[str, str]) -> tuple[Message, ...]:
        listed = shipped_table(__file__, "judge_shots.toml")
        turns = [Message("system", listed["system"])]
        for each in listed["examples"]:
            turns += [_spoken("user", each["material"]), _spoken("assistant", each["reply"])]
        return *turns, _spoken("user", {"rubric": self.rubric, **material})


def _spoken(role: Literal["user", "assistant"], tree: Mapping[str, object]) -> Message:
    return Message(role, json.dumps(tree, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One reward of a sum: its name in the feedback, and its positive weight."""

    name: str
    reward: Reward
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """The weighted mean, sum(w_i r_i) / sum(w_i). Parts in [0, 1] give a reward in [0, 1]."""

    parts: tuple[WeightedReward, ...]
    calls: UserCalls = field(default_factory=UserCalls, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("a sum of rewards needs parts", hint='parts = [{kind = "exact"}]')
        for part in self.parts:
            if not (math.isfinite(part.weight) and part.weight > 0):
                message = f"the weight of {part.name!r} must be positive, not {part.weight:g}"
                raise ConfigError(message, hint="leave out a part that should not count")

    async def __call__(self, example: Example, output: Output) -> Score:
        value, feedback = 0.0, list[str]()
        whole = sum(part.weight for part in self.parts)
        for part in self.parts:
            anything = (-math.inf, math.inf)
            score = await apply_reward(part.reward, example, output, anything, self.calls)
            share = part.weight / whole
            value += share * score.value
            feedback.append(f"{part.name} ({score.value:g}, weight {share:.0%}): {score.feedback}")
        return Score(value, "\n".join(feedback))
