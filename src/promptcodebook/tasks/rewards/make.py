"""`reward = ...` of the configuration -> a Reward."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.rewards.contains import Contains
from promptcodebook.tasks.rewards.exact import Exact
from promptcodebook.tasks.rewards.f1 import TokenF1
from promptcodebook.tasks.rewards.judge import Judge
from promptcodebook.tasks.rewards.normalised import Normalised
from promptcodebook.tasks.rewards.numeric import Numeric
from promptcodebook.tasks.rewards.regex import Regex
from promptcodebook.tasks.rewards.schema import JsonSchema
from promptcodebook.tasks.rewards.valid_json import ValidJson
from promptcodebook.tasks.rewards.weighted import Part, WeightedSum
from promptcodebook.tasks.user_code import load_function
from promptcodebook.types import Reward

__all__ = ["make_reward", "reward_kinds"]

_PLAIN: dict[str, type[Any]] = {
    "exact": Exact,
    "normalised": Normalised,
    "contains": Contains,
    "regex": Regex,
    "numeric": Numeric,
    "f1": TokenF1,
    "json": ValidJson,
}


def reward_kinds() -> tuple[str, ...]:
    """The kinds of ready-made rewards."""
    return (*_PLAIN, *_SPECIAL)


def make_reward(spec: str | Mapping[str, object], base: Path, ask: Ask | None = None) -> Reward:
    """A reward from 'reward.py:reward', a kind such as 'exact', or {kind = ..., options...}.

    Relative paths start at `base`. `ask` calls the judge's model. ConfigError says what is wrong.
    """
    if isinstance(spec, str):
        if ":" in spec or spec.endswith(".py"):
            return cast("Reward", load_function(spec, base, "reward", ("example", "output")))
        spec = {"kind": spec}
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in reward_kinds():
        said = "lacks its kind" if kind is None else f"has the unknown kind {kind!r}"
        raise ConfigError(
            f"the reward {said}{did_you_mean(str(kind), reward_kinds())}",
            hint=f'kinds: {", ".join(reward_kinds())}; or your own: reward = "reward.py:reward"',
        )
    options = {key: value for key, value in spec.items() if key != "kind"}
    if kind in _SPECIAL:
        return _SPECIAL[kind](options, base, ask)
    return _built(kind, _PLAIN[kind], options)


def _built(kind: str, shape: type[Any], options: Mapping[str, object]) -> Reward:
    """A reward dataclass from its options, types checked."""
    _known(kind, options, [f.name for f in dataclasses.fields(shape) if f.init])
    try:
        return TypeAdapter(shape).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            step = f'reward = {{kind = "{kind}", {key} = ...}}'
            raise ConfigError(f"the reward {kind!r} needs a {key}", hint=step) from None
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"the reward {kind!r}: {key + ': ' if key else ''}{said}", hint="correct that key"
        ) from None


def _known(kind: str, options: Mapping[str, object], known: list[str]) -> None:
    for key in options:
        if key not in known:
            raise ConfigError(
                f"the reward {kind!r} has no option {key!r}{did_you_mean(key, known)}",
                hint=f"its options: {', '.join(known) or 'none'}",
            )


def _schema(options: Mapping[str, object], base: Path, _ask: Ask | None) -> Reward:
    """{kind = 'schema', schema = {...} or 'schema.json', fenced = false}"""
    _known("schema", options, ["schema", "fenced"])
    schema = options.get("schema")
    if isinstance(schema, str):
        path = base / schema
        try:
            schema = cast("object", json.loads(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read the JSON schema {path}: {error}", hint="check the path and the file"
            ) from None
    if not isinstance(schema, Mapping):
        raise ConfigError("the reward 'schema' needs a schema", hint='schema = "schema.json"')
    return JsonSchema(cast("Mapping[str, object]", schema), bool(options.get("fenced", False)))


def _judge(options: Mapping[str, object], _base: Path, ask: Ask | None) -> Reward:
    """{kind = 'judge', rubric = '...'}"""
    _known("judge", options, ["rubric"])
    rubric = options.get("rubric")
    if not isinstance(rubric, str) or not rubric.strip():
        raise ConfigError(
            "the reward 'judge' needs a rubric", hint='rubric = "What a good answer does ..."'
        )
    if ask is None:
        raise ConfigError(
            "the reward 'judge' asks a model, and none is at hand here",
            hint="set lm, or roles.judge.model",
        )
    return Judge(ask, rubric)


def _sum(options: Mapping[str, object], base: Path, ask: Ask | None) -> Reward:
    """{kind = 'sum', parts = [{kind = 'exact', weight = 0.7}, {function = 'reward.py:f'}]}"""
    _known("sum", options, ["parts"])
    parts = options.get("parts")
    if not isinstance(parts, list | tuple):
        raise ConfigError("the reward 'sum' needs parts", hint='parts = [{kind = "exact"}]')
    return WeightedSum(tuple(_part(p, base, ask) for p in cast("list[object]", parts)))


def _part(spec: object, base: Path, ask: Ask | None) -> Part:
    if isinstance(spec, str):
        return Part(spec, make_reward(spec, base, ask))
    if not isinstance(spec, Mapping):
        raise ConfigError(f"a part of a sum is no table: {spec!r}", hint='{kind = "exact"}')
    options = dict(cast("Mapping[str, object]", spec))
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ConfigError(f"the weight {weight!r} is no number", hint="weight = 0.5")
    function = options.pop("function", None)
    reward = make_reward(options if function is None else str(function), base, ask)
    return Part(str(function or options.get("kind")), reward, float(weight))


_SPECIAL: dict[str, Callable[[Mapping[str, object], Path, Ask | None], Reward]] = {
    "schema": _schema,
    "judge": _judge,
    "sum": _sum,
}
