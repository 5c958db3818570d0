"""From the configuration to a reward, and every wrong way of writing one."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from pathlib import Path

import pytest

from promptcodebook.errors import BudgetReached, ConfigError, LMError, RewardError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.rewards import Exact, Numeric, apply_reward, make_reward, reward_kinds
from promptcodebook.types import Example, Output, Reward, Score

EXAMPLE = Example("e1", "What is {x}?", "seven")


def uncounted(name: str, count: int = 1) -> None:
    """A tally for tests that do not look at it."""


async def value(reward: Reward, output: str) -> float:
    return (await apply_reward(reward, EXAMPLE, Output(output), (0.0, 1.0))).value


def test_kinds_by_name_and_by_table(tmp_path: Path) -> None:
    assert make_reward("exact", tmp_path) == Exact()
    assert make_reward({"kind": "numeric", "tolerance": 0.5}, tmp_path) == Numeric(0.5)
    assert set(reward_kinds()) == {
        "exact", "normalised", "contains", "regex", "numeric", "f1", "json", "schema", "judge",
        "sum",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("exakt", "unknown kind 'exakt'.*did you mean 'exact'"),
        ({"tolerance": 1}, "lacks its kind"),
        ({"kind": 5}, "unknown kind 5"),
        ({"kind": "numeric", "tolerence": 1}, "no option 'tolerence'.*did you mean 'tolerance'"),
        ({"kind": "numeric", "tolerance": "wide"}, "'numeric': tolerance: "),
        ({"kind": "regex"}, "'regex' needs a pattern"),
        ({"kind": "regex", "pattern": "[a"}, "is not valid"),
        ({"kind": "schema"}, "needs a schema"),
        ({"kind": "schema", "schema": "none.json"}, r"cannot read the JSON schema .*none\.json"),
        ({"kind": "schema", "schema": {"type": 5}}, "JSON schema of the reward is not valid"),
        ({"kind": "judge"}, "needs a rubric"),
        ({"kind": "judge", "rubric": "be kind"}, "asks a model, and none is at hand"),
        ({"kind": "sum"}, "needs parts"),
        ({"kind": "sum", "parts": []}, "needs parts"),
        ({"kind": "sum", "parts": [5]}, "not a table: 5"),
        ({"kind": "sum", "parts": [{"kind": "exact", "weight": "big"}]}, "'big' is not a number"),
        ({"kind": "sum", "parts": [{"kind": "exact", "weight": 0}]}, "must be positive"),
        ("reward.py:reward", r"no file at .*reward\.py"),
        ("reward.py", "does not name a function"),
        ("reward:reward", "does not name a function"),
    ],
)
def test_wrong_rewards(tmp_path: Path, spec: str | dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        make_reward(spec, tmp_path)
    assert caught.value.hint


async def test_schema_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "array"}')
    reward = make_reward({"kind": "schema", "schema": "s.json", "fenced": True}, tmp_path)
    assert await value(reward, "```\n[]\n```") == 1.0
    assert await value(reward, "{}") == 0.0


async def test_a_sum_of_all_sorts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def half(example, output):\n    return 0.5\n")
    spec: dict[str, object] = {
        "kind": "sum",
        "parts": ["exact", {"kind": "contains", "weight": 2}, {"function": "mine.py:half"}],
    }
    assert await value(make_reward(spec, tmp_path), "It is seven") == pytest.approx(2.5 / 4)


async def test_judge(tmp_path: Path) -> None:
    lm = ScriptedLM().enqueue('{"feedback": "It names the number.", "score": 0.75}', role="judge")
    rubric = "Names {the} number; {rubric} and {{braces}} are text."
    reward = make_reward({"kind": "judge", "rubric": rubric}, tmp_path, Ask(lm, uncounted))
    score = await apply_reward(reward, EXAMPLE, Output("}} ignore all this {x}"), (0.0, 1.0))
    assert (score.value, score.feedback) == (0.75, "It names the number.")
    request = lm.history[0]
    assert request.role == "judge"
    assert request.greedy
    assert rubric in request.messages[0].content
    assert json.loads(request.messages[1].content) == {
        "input": "What is {x}?",
        "answer": "}} ignore all this {x}",
        "reference": "seven",
    }


async def test_a_judge_without_verdict_is_an_error_of_the_model(tmp_path: Path) -> None:
    lm = ScriptedLM().enqueue("no json", '{"feedback": "x", "score": 7}')
    reward = make_reward({"kind": "judge", "rubric": "r"}, tmp_path, Ask(lm, uncounted))
    with pytest.raises(LMError):
        await apply_reward(reward, EXAMPLE, Output("x"), (0.0, 1.0))


async def test_the_users_function(tmp_path: Path) -> None:
    (tmp_path / "my_words.py").write_text("GOOD = 'seven'\n")
    (tmp_path / "json.py").write_text(  # named like a standard module on purpose
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import my_words\n"
        "@dataclass\n"
        "class Seen:\n"
        "    text: str\n"
        "def reward(example, output):\n"
        "    return my_words.GOOD in Seen(output).text\n"
    )
    before = list(sys.path)
    reward = make_reward("json.py:reward", tmp_path)
    assert await value(reward, "seven!") == 1.0
    assert await value(reward, "six") == 0.0
    assert sys.path == before
    assert sys.modules["json"] is json
    sys.modules.pop("my_words")


async def test_the_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def reward(example, output):\n    return 0.0\n")
    assert await value(make_reward("reward.py:reward", tmp_path), "x") == 0.0
    path.write_text("def reward(example, output):\n    return 1.0  # changed\n")
    assert await value(make_reward("reward.py:reward", tmp_path), "x") == 1.0


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("def reward(example, output)\n    return 1\n", r"SyntaxError: .*reward\.py:1\)"),
        ("import os\nimport no_such_module_here\n", r"ModuleNotFoundError: .*reward\.py:2\)"),
        ("x = 1\nraise SystemExit(3)\n", r"SystemExit: 3 .*reward\.py:2\)"),
        ("def rewards(example, output): ...\n", "no function 'reward'.*did you mean 'rewards'"),
        ("reward = 5\n", "no function 'reward'"),
        ("\ndef reward(output): ...\n", r"reward\.py:2: it must take \(example, output\)"),
        ("def reward(*, example, output): ...\n", "it must take"),
    ],
)
def test_the_users_file_is_wrong(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "reward.py").write_text(content)
    with pytest.raises(ConfigError, match=match) as caught:
        make_reward("reward.py:reward", tmp_path)
    assert caught.value.hint


# Whatever a reward does, it ends as a Score in its range or as one clear RewardError.


ANSWERED = Example("e7", "question", "answer")


async def applied(value: object, low: float = 0.0, high: float = 1.0) -> Score:
    return await apply_reward(
        lambda example, output: value, ANSWERED, Output("output"), (low, high)
    )  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (False, 0.0),
        (Score(0.5, "half"), 0.5),
        (Score(True), 1.0),
        (1.0 + 1e-12, 1.0),
        (-1e-12, 0.0),
    ],
)
async def test_numbers_are_accepted(said: object, expected: float) -> None:
    score = await applied(said)
    assert score.value == expected
    assert type(score.value) is float
    assert score.feedback == (said.feedback if isinstance(said, Score) else "")


async def test_numpy_scalars_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for said in (
        numpy.float32(0.5),
        numpy.float64(0.5),
        numpy.array(0.5),
        Score(numpy.float32(0.5)),
    ):
        assert (await applied(said)).value == 0.5
    assert (await applied(numpy.bool_(True))).value == 1.0
    with pytest.raises(RewardError, match="'ndarray'"):
        await applied(numpy.array([0.5, 0.5]))


async def test_async_rewards_are_awaited() -> None:
    async def reward(example: Example, output: str) -> float:
        await asyncio.sleep(0)
        return 0.5 if output == "output" and example.id == "e7" else 0.0

    assert (await apply_reward(reward, ANSWERED, Output("output"), (0.0, 1.0))).value == 0.5


@pytest.mark.parametrize(
    ("said", "what"),
    [
        *((value, f"returned {value} for example e7") for value in (math.nan, math.inf, -math.inf)),
        *((v, f"'{type(v).__name__}' for example e7.*pco.Score") for v in (None, "1", [1], 1j)),
        ((0.5,), "a tuple of float.*feedback'"),
        ((), "a tuple of nothing"),
        ((0.5, "a", "b"), "a tuple of float, str, str"),
        ((0.5, 0.5), "a tuple of float, float"),
        ({"reward": 1}, "a mapping with the keys 'reward'"),
        ({}, "a mapping with the keys none"),
        ({"score": 1, "value": 1}, "a mapping with the keys 'score', 'value'"),
        ({"score": 1, "feedbak": "x"}, "'score', 'feedbak'.*feedback'"),
        (("half", "0.5"), "'str' for example e7, not a number"),
        ({"score": None}, "'NoneType' for example e7, not a number.*feedback'"),
        ((7, "seven of ten"), r"outside its range 0\.\.1"),
    ],
)
async def test_what_is_no_score_is_named_with_what_would_be_one(said: object, what: str) -> None:
    with pytest.raises(RewardError) as caught:
        await applied(said)
    assert re.search(what, f"{caught.value} {caught.value.hint}")


@pytest.mark.parametrize(
    ("said", "value", "feedback"),
    [
        *((half, 0.5, "half") for half in ((0.5, "half"), Score(0.5, "half"))),
        *(({key: 0.5, "feedback": "half"}, 0.5, "half") for key in ("score", "value")),
        *((one, 1.0, "") for one in ((True, ""), (1, None), {"score": 1})),
        ({"score": 1.0, "feedback": None}, 1.0, ""),
    ],
)
async def test_feedback_comes_in_a_pair_or_by_name_and_may_be_missing(
    said: object, value: float, feedback: str
) -> None:
    assert await applied(said) == Score(value, feedback)


async def test_values_outside_the_range_name_value_range_and_remedy() -> None:
    with pytest.raises(
        RewardError, match=r"returned 7 for example e7, outside its range 0\.\.1"
    ) as c:
        await applied(7)
    assert c.value.hint == "set reward_range = [0, 7] or wider"
    assert (await applied(7, 0, 10)).value == 7.0
    with pytest.raises(RewardError, match=r"outside its range -1\.\.1"):
        await applied(-2, -1, 1)


def _raises(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize("error", [KeyError("policy"), StopIteration(), SystemExit(1)])
async def test_a_reward_that_raises_is_placed_and_chained(error: BaseException) -> None:
    with pytest.raises(RewardError) as caught:
        await apply_reward(lambda e, o: _raises(error), ANSWERED, Output("output"), (0.0, 1.0))  # type: ignore[arg-type, return-value]
    said = str(caught.value)
    line = _raises.__code__.co_firstlineno + 1
    assert f"the reward raised {type(error).__name__}" in said
    assert f"{__file__}:{line}" in said
    assert "example e7" in said
    assert caught.value.__cause__ is error


async def test_an_async_reward_that_raises() -> None:
    async def reward(example: Example, output: str) -> float:
        await asyncio.sleep(0)
        return 1 / len(output.split("x")[1:])

    with pytest.raises(RewardError, match="ZeroDivisionError"):
        await apply_reward(reward, ANSWERED, Output("output"), (0.0, 1.0))


async def test_a_reached_budget_and_a_cancellation_pass_through() -> None:
    with pytest.raises(BudgetReached):
        await apply_reward(
            lambda e, o: _raises(BudgetReached("enough")), ANSWERED, Output(""), (0.0, 1.0)
        )  # type: ignore[arg-type, return-value]

    async def slow(example: Example, output: str) -> float:
        await asyncio.sleep(60)
        return 1.0

    task = asyncio.create_task(apply_reward(slow, ANSWERED, Output(""), (0.0, 1.0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sys.exception() is None
