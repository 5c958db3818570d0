"""The ready-made rewards: values, and feedback a critic can use."""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import promptcodebook as pco
from promptcodebook.errors import ConfigError, RewardError
from promptcodebook.tasks.rewards import (
    Contains,
    Exact,
    JsonSchema,
    Normalised,
    Numeric,
    Part,
    Regex,
    TokenF1,
    ValidJson,
    WeightedSum,
    describe_reward,
    library,
    make_reward,
    reward_kinds,
)
from promptcodebook.types import Example, Output, Score


def example(target: str | None = None) -> Example:
    return Example("e1", "question", target)


VERDICTS: list[tuple[Any, str, dict[tuple[str, str], float]]] = [
    (Exact(), "equals", {("Paris", " Paris\n"): 1.0}),
    (Exact(), "upper and lower case", {("Paris", "paris"): 0.0}),
    (Exact(), "nothing more", {("Paris", "It is Paris."): 0.0}),
    (Exact(), "'Rome'; exactly 'Paris' was expected", {("Paris", "Rome"): 0.0}),
    (
        Normalised(),
        "",
        {
            ("The Eiffel Tower", "eiffel tower!"): 1.0,
            ("Café", "cafe\u0301"): 1.0,
            ("twenty-one", "twenty one"): 0.0,
            ("Eiffel", "the Eiffel tower"): 0.0,
            ("The", "The"): 1.0,
            ("The", "A"): 0.0,
        },
    ),
    (Contains(), "", {("New  York", "in new york, I think"): 1.0}),
    (Contains(ignore_case=False), "", {("New York", "in new york"): 0.0}),
    (Contains(text="sorry"), "", {("", "I am Sorry"): 1.0}),
    (Contains(), "does not contain 'x'", {("x", "y"): 0.0}),
    (
        Numeric(),
        "",
        {
            ("12.5", "so 3 and then 12.5."): 1.0,
            ("1,234", "about 1234"): 1.0,
            ("1234", "$1,234.00 in all"): 1.0,
            ("-3", "x = -3"): 1.0,
            ("-3", "x = \u22123"): 1.0,
            ("0.001", "1e-3"): 1.0,
            ("0.5", ".5"): 1.0,
            **{("3", "3 or 4"): 0.0, ("3", "none"): 0.0, ("100", "101"): 0.0},
            **{("7", "v2.7"): 0.0, ("1", "1e999"): 0.0},
        },
    ),
    (Numeric(tolerance=1), "", {("100", "101"): 1.0}),
    (Numeric(relative=0.01), "", {("100", "101"): 1.0}),
    (Numeric(relative=0.001), "", {("100", "101"): 0.0}),
    (TokenF1(), "", {("the red house", "A red house."): 1.0, ("the", "a"): 1.0}),
    (TokenF1(), "", {("red", "blue"): 0.0}),
    (ValidJson(), "", {("", '{"a": 1}'): 1.0, ("", "[1, 2]"): 1.0, ("", "{'a': 1}"): 0.0}),
    (ValidJson(), "", {("", '{"a": NaN}'): 0.0, ("", "[" * 100_000): 0.0}),
    (ValidJson(), "", {("", '```json\n{"a": 1}\n```'): 0.0}),
    (ValidJson(fenced=True), "", {("", '```json\n{"a": 1}\n```'): 1.0, ("", '{"a": 1}'): 1.0}),
    (ValidJson(keys=("a", "b")), "", {("", '{"a": 1}'): 0.0}),
    (ValidJson(keys=("a",)), "", {("", '{"a": 1}'): 1.0, ("", '["a"]'): 0.0}),
]


@pytest.mark.parametrize(
    ("reward", "said", "target", "output", "value"),
    [(r, said, *pair, value) for r, said, cases in VERDICTS for pair, value in cases.items()],
)
def test_values_and_what_is_said(
    reward: Any, said: str, target: str, output: str, value: float
) -> None:
    score = reward(example(target or None), output)
    assert score.value == value and said in score.feedback


def test_a_target_without_a_number_and_the_words_that_differ() -> None:
    with pytest.raises(RewardError, match="'many' of example e1 holds no number"):
        Numeric()(example("many"), "3")
    score = TokenF1()(example("big red house"), "red house on a hill")
    assert score.value == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert "Missing: big." in score.feedback
    assert "Not in the reference: on, hill." in score.feedback


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_in_range(a: str, b: str) -> None:
    value = TokenF1()(example(a), b).value
    assert 0.0 <= value <= 1.0
    assert value == pytest.approx(TokenF1()(example(b), a).value)


@pytest.mark.parametrize("reward", [Exact(), Normalised(), Contains(), Numeric(), TokenF1()])
def test_a_missing_target_is_an_error_of_the_set_up(reward: Exact) -> None:
    with pytest.raises(RewardError, match="example e1 has no target"):
        reward(example(), "x")


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "tags": {"items": {"type": "string"}}},
    "required": ["n"],
}


def test_schema() -> None:
    reward = JsonSchema(SCHEMA)
    assert reward(example(), '{"n": 2, "tags": ["a"]}').value == 1.0
    assert "required property" in reward(example(), "{}").feedback
    score = reward(example(), '{"n": 0, "tags": [1]}')
    assert score.value == 0.0
    assert "at n: 0 is less than the minimum" in score.feedback
    assert "at tags.0: 1 is not of type 'string'" in score.feedback
    assert "not valid JSON" in reward(example(), "{").feedback
    with pytest.raises(ConfigError, match="not valid"):
        JsonSchema({"type": "objekt"})


@pytest.mark.parametrize(
    ("reward", "output", "value"),
    [
        (Regex(r"^Dear \w+"), "Dear Ann,", 1.0),
        (Regex("dear"), "Dear Ann", 0.0),
        (Regex("dear", ignore_case=True), "Dear Ann", 1.0),
        (Regex(r"\d+", full=True), " 42\n", 1.0),
        (Regex(r"\d+", full=True), "42 a", 0.0),
        (Regex("caf\u00e9+"), "caf\u00e9\u00e9 \U0001f600", 1.0),
    ],
)
async def test_regex(reward: Regex, output: str, value: float) -> None:
    assert (await reward(example(), output)).value == value


async def test_a_catastrophic_pattern_is_stopped_at_its_limit() -> None:
    started = time.monotonic()
    score = await Regex(r"^(a+)+$", seconds=0.4)(example(), "a" * 60 + "!")
    assert time.monotonic() - started < 5
    assert score.value == 0.0
    assert "within 0.4 s; this counts as no match" in score.feedback


async def test_weighted_sum() -> None:
    whole = WeightedSum((Part("exact", Exact(), 3.0), Part("numeric", Numeric(), 1.0)))
    score = await whole(example("7"), Output("so 7"))
    assert score.value == pytest.approx(0.25)
    assert score.feedback.splitlines()[0].startswith("exact (0, weight 75%): ")
    assert (await whole(example("7"), Output("7"))).value == 1.0

    async def mine(example: Example, output: str) -> Score:
        return Score(0.5, "half")

    mixed = WeightedSum((Part("mine", mine), Part("exact", Exact())))
    assert (await mixed(example("7"), Output("7"))).value == 0.75


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_must_be_positive(weight: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        WeightedSum((Part("exact", Exact(), weight),))
    with pytest.raises(ConfigError, match="needs parts"):
        WeightedSum(())


# `pco.rewards`: ready-made rewards as values, the same as their tables in pco.toml.


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
