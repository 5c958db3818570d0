"""`pco.rewards`: the ready-made rewards, as values to hand over, to try and to read.

    pco.optimize(data, pco.rewards.contains(), lm=...)
    pco.rewards.numeric(tolerance=0.01)(example, "about 3.14")     # Score(value=..., feedback=...)

Each is the table that `reward = {kind = "...", ...}` holds in pco.toml, so it is stored with the
run: `pco eval` can use it later. All give a reward in [0, 1] with feedback for the critic."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from promptcodebook.calls import is_model
from promptcodebook.errors import ConfigError, RewardError
from promptcodebook.tasks.rewards import make_reward, reward_factory
from promptcodebook.types import Example, Output, Scored

__all__ = [
    "ReadyMade",
    "contains",
    "exact",
    "f1",
    "fields",
    "json",
    "judge",
    "label",
    "normalised",
    "numeric",
    "regex",
    "schema",
    "weighted",
]


class ReadyMade(dict[str, Any]):
    """A ready-made reward: its kind and options, checked when made; a call scores an answer."""

    def __init__(self, kind: str, **options: object) -> None:
        given = {key: value for key, value in options.items() if value is not None}
        super().__init__(kind=kind, **given)
        reward_factory(self, Path())

    def __call__(self, example: Example, output: str | Output) -> Scored | Awaitable[Scored]:
        if not isinstance(example, Example):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RewardError(
                f"{self!r} was given {type(example).__name__} instead of an example",
                hint="pco.Example('1', 'the input', 'the target'), or one of data.train",
            )
        whole = output if isinstance(output, Output) else Output(output)
        text = cast("object", whole.text)
        if not isinstance(text, str):
            what = "no answer (None)" if text is None else f"{type(text).__name__}, not a string,"
            raise RewardError(
                f"{self!r} was given {what} for example {example.id}",
                hint="score the answer's text; if there is none, return 0.0 yourself",
            )
        given: Any = whole if self["kind"] == "sum" else text
        return make_reward(self, Path())(example, given)

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.items() if key != "kind")
        kind = "weighted" if self["kind"] == "sum" else self["kind"]
        return f"pco.rewards.{kind}({options})"

    __hash__ = None  # type: ignore[assignment] - a dict has none


def exact() -> ReadyMade:
    """1 where the answer equals the target, white space at both ends aside; else 0."""
    return ReadyMade("exact")


def normalised() -> ReadyMade:
    """1 where both are equal without case, punctuation and articles (as SQuAD compares)."""
    return ReadyMade("normalised")


def contains(text: str | None = None, *, ignore_case: bool = True) -> ReadyMade:
    """1 where the answer has the target, or a `text` that is the same for all, as whole words."""
    return ReadyMade("contains", text=text, ignore_case=ignore_case)


def label(*labels: str) -> ReadyMade:
    """1 where the answer names the target and no other of the `labels`, or of the input's options,
    by its text or by the letter or number beside it; else 0."""
    return ReadyMade("label", labels=builtins.list(labels) or None)


def f1() -> ReadyMade:
    """The F1 of the words that answer and target share, normalised: from 0 to 1."""
    return ReadyMade("f1")


def numeric(*, tolerance: float = 1e-6, relative: float = 0.0) -> ReadyMade:
    """1 where the last number is the target's, within `tolerance` or `relative` times it."""
    return ReadyMade("numeric", tolerance=tolerance, relative=relative)


def regex(
    pattern: str, *, full: bool = False, ignore_case: bool = False, seconds: float = 2.0
) -> ReadyMade:
    """1 where the pattern is found in the answer, or is all of it (`full`), within `seconds`."""
    return ReadyMade("regex", pattern=pattern, full=full, ignore_case=ignore_case, seconds=seconds)


def json(*keys: str, fenced: bool = False) -> ReadyMade:
    """1 where the answer is JSON with these keys; `fenced` allows one Markdown fence around it."""
    return ReadyMade("json", keys=builtins.list(keys) or None, fenced=fenced)


def fields(*, fenced: bool = False) -> ReadyMade:
    """The share of JSON fields that are as in the target, from 0 to 1; feedback names the wrong."""
    return ReadyMade("fields", fenced=fenced)


def schema(
    schema: Mapping[str, object] | type[BaseModel] | str, *, fenced: bool = False
) -> ReadyMade:
    """1 where the answer is JSON of this schema, its file, or a pydantic model; needs
    'promptcodebook[schema]'."""
    whole = schema.model_json_schema() if is_model(schema) else schema
    return ReadyMade("schema", schema=whole, fenced=fenced)


def judge(rubric: str, *, shots: bool = False) -> ReadyMade:
    """A model's score against your rubric, from 0 to 1, with its reasons; its role is `judge`.
    `shots` shows a small model worked examples first."""
    return ReadyMade("judge", rubric=rubric, **({"shots": True} if shots else {}))


def weighted(*parts: ReadyMade | str | tuple[ReadyMade | str, float]) -> ReadyMade:
    """The weighted mean of others: `weighted((exact(), 0.7), (judge("..."), 0.3))`. A part may be
    your own as 'reward.py:reward'; one without a weight weighs 1."""
    return ReadyMade("sum", parts=[_part(part) for part in parts])


def _part(part: ReadyMade | str | tuple[ReadyMade | str, float]) -> dict[str, Any]:
    given: tuple[Any, ...] = part if isinstance(part, tuple) else (part, 1.0)
    if len(given) != 2 or not isinstance(given[0], str | Mapping):
        raise ConfigError(
            f"weighted(): {part!r} is neither a ready-made reward nor a (reward, weight) pair",
            hint="(pco.rewards.exact(), 0.7); or name your own by its file: 'reward.py:reward'",
        )
    reward, weight = given
    if isinstance(reward, str):
        own = ":" in reward or reward.endswith(".py")
        reward = {"function" if own else "kind": reward}
    return {**reward, "weight": weight}
