"""`pco.rewards`: ready-made rewards as values, the same as their tables in pco.toml."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError, RewardError
from promptcodebook.tasks.rewards import describe_reward, library, make_reward, reward_kinds
from promptcodebook.types import Example, Output, Score


def polite(example: Example, output: str) -> float:
    return float("please" in output)


EXAMPLE = Example("e1", "What is it?", "seven")
PARTS = (("exact", 3.0), ("contains", 1.0))
READY: list[tuple[library.ReadyMade, dict[str, Any], str, str]] = [
    (pco.rewards.exact(), {"kind": "exact"}, "seven", "seven!"),
    (pco.rewards.normalised(), {"kind": "normalised"}, "The seven.", "eight"),
    (pco.rewards.contains(), {"kind": "contains", "ignore_case": True}, "It is SEVEN", "six"),
    (pco.rewards.f1(), {"kind": "f1"}, "seven", "six"),
    (pco.rewards.regex("^s"), {"kind": "regex", "pattern": "^s"}, "seven", "eight"),
    (pco.rewards.json("a", fenced=True), {"kind": "json", "keys": ["a"]}, '{"a": 1}', "{}"),
    (pco.rewards.schema({"type": "array"}), {"kind": "schema"}, "[]", "{}"),
    (
        pco.rewards.weighted((pco.rewards.exact(), 3.0), "contains"),
        {"kind": "sum", "parts": [{"kind": k, "weight": w} for k, w in PARTS]},
        "seven",
        "six",
    ),
]  # fmt: skip


async def scored(reward: Any, output: str) -> float:
    score = reward(EXAMPLE, output)
    return (await score if inspect.isawaitable(score) else score).value


@pytest.mark.parametrize(("ready", "table", "good", "bad"), READY)
async def test_each_is_its_table_and_scores_what_it_is_called_with(
    ready: library.ReadyMade, table: dict[str, Any], good: str, bad: str
) -> None:
    assert table.items() <= ready.items()
    assert json.loads(json.dumps(ready)) == dict(ready), "it is stored with the run"
    assert (await scored(ready, good), await scored(ready, bad)) == (1.0, 0.0)
    plain = make_reward(dict(ready), Path())
    given: Any = Output(good) if ready["kind"] == "sum" else good
    said: Any = plain(EXAMPLE, given)
    assert isinstance(await said if inspect.isawaitable(said) else said, Score)


def test_a_number_is_compared_within_its_tolerance() -> None:
    about = pco.rewards.numeric(tolerance=0.01)
    assert about(Example("e", "pi?", "3.14"), "about 3.145").value == 1.0  # type: ignore[union-attr]
    assert repr(about) == "pco.rewards.numeric(tolerance=0.01, relative=0.0)"


def test_every_kind_has_its_function_and_says_what_it_does() -> None:
    kinds = {"sum" if name == "weighted" else name for name in library.__all__} - {"ReadyMade"}
    assert kinds == set(reward_kinds())
    assert all(getattr(library, name).__doc__ for name in library.__all__)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pco.rewards.regex("[a"), "is not valid"),
        (lambda: pco.rewards.judge(" "), "needs a rubric"),
        (lambda: pco.rewards.weighted(), "needs parts"),
        (lambda: pco.rewards.weighted((pco.rewards.exact(), -1.0)), "must be positive"),
        (lambda: pco.rewards.weighted("exakt"), "did you mean 'exact'"),
        (lambda: pco.rewards.weighted((polite, 0.7)), "function polite .* is neither"),  # type: ignore[arg-type]
        (lambda: pco.rewards.weighted(("exact",)), "neither"),  # type: ignore[arg-type]
        (lambda: pco.rewards.schema({"type": 5}), "not valid"),
        (
            lambda: pco.rewards.numeric(tolerance=float("nan")),
            "tolerance must be 0 or more, not nan",
        ),
        (lambda: pco.rewards.numeric(tolerance=-1), "tolerance must be 0 or more, not -1"),
        (lambda: pco.rewards.numeric(relative=float("inf")), "relative must be 0 or more, not inf"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("exact", pco.rewards.exact(), "exact"),
        ("contains", pco.rewards.contains(), "contains"),
        ({"kind": "contains", "text": "x"}, pco.rewards.contains("x"), 'contains {"text": "x"}'),
        ("rewards/reward.py:polite", polite, "polite()"),
        ("reward.py", "other.py:reward", "reward()"),
        (
            {"kind": "sum", "parts": ["exact", {"function": "reward.py:f", "weight": 0.5}]},
            {"kind": "sum", "parts": [{"kind": "exact"}, {"function": "f.py:f", "weight": 0.5}]},
            'sum {"parts": ["exact, weight 1", "f(), weight 0.5"]}',
        ),
    ],
)
def test_a_reward_is_described_alike_however_it_is_named(one: Any, other: Any, text: str) -> None:
    assert describe_reward(one) == describe_reward(other) == text


def test_a_judge_asks_the_model_of_a_run() -> None:
    judge = pco.rewards.judge("Names the number.")
    assert judge == {"kind": "judge", "rubric": "Names the number."}
    with pytest.raises(ConfigError, match="none is at hand"):
        judge(EXAMPLE, "seven")


@pytest.mark.parametrize(
    "made", [pco.rewards.contains(), pco.rewards.exact(), pco.rewards.f1(), pco.rewards.json()]
)
def test_where_an_answer_is_missing_it_is_said_of_which_example(made: Any) -> None:
    example = Example("e7", "How many?", "3")
    for missing in (None, Output(None)):  # type: ignore[arg-type]
        with pytest.raises(RewardError, match=r"no answer \(None\) for example e7") as caught:
            made(example, missing)
        assert repr(made) in str(caught.value) and "score it 0.0" in caught.value.hint
    with pytest.raises(RewardError, match="str in place of an example"):
        made("How many?", "3")
