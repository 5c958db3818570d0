"""Whatever a reward does, it ends as a Score in its range or as one clear RewardError."""

import asyncio
import math
import sys

import pytest

from promptcodebook.errors import BudgetReached, RewardError
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Output, Score

EXAMPLE = Example("e7", "question", "answer")


async def applied(value: object, low: float = 0.0, high: float = 1.0) -> Score:
    return await apply_reward(lambda example, output: value, EXAMPLE, Output("output"), (low, high))  # type: ignore[arg-type, return-value]


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

    assert (await apply_reward(reward, EXAMPLE, Output("output"), (0.0, 1.0))).value == 0.5


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf])
async def test_values_that_are_not_finite(said: float) -> None:
    with pytest.raises(RewardError, match=f"returned {said} for example e7"):
        await applied(said)


@pytest.mark.parametrize("said", [None, "1", [1], 1j])
async def test_values_that_are_no_numbers(said: object) -> None:
    with pytest.raises(RewardError, match=f"'{type(said).__name__}' for example e7") as caught:
        await applied(said)
    assert "pco.Score" in caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        (0.5, "half"),
        {"score": 0.5, "feedback": "half"},
        {"value": 0.5, "feedback": "half"},
        Score(0.5, "half"),
    ],
)
async def test_feedback_comes_in_a_pair_or_by_name(said: object) -> None:
    assert await applied(said) == Score(0.5, "half")


@pytest.mark.parametrize(
    "said", [(True, ""), (1, None), {"score": 1}, {"score": 1.0, "feedback": None}]
)
async def test_feedback_may_be_missing(said: object) -> None:
    assert await applied(said) == Score(1.0, "")


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ((0.5,), "a tuple of float"),
        ((), "a tuple of nothing"),
        ((0.5, "a", "b"), "a tuple of float, str, str"),
        ((0.5, 0.5), "a tuple of float, float"),
        ({"reward": 1}, "a mapping with the keys 'reward'"),
        ({}, "a mapping with the keys none"),
        ({"score": 1, "value": 1}, "a mapping with the keys 'score', 'value'"),
        ({"score": 1, "feedbak": "x"}, "'score', 'feedbak'"),
        (("half", "0.5"), "'str' for example e7, not a number"),
        ({"score": None}, "'NoneType' for example e7, not a number"),
    ],
)
async def test_what_is_no_score_is_named_with_what_would_be_one(said: object, what: str) -> None:
    with pytest.raises(RewardError, match=what) as caught:
        await applied(said)
    assert "(0.5, 'feedback')" in caught.value.hint


async def test_the_number_of_a_pair_is_held_to_the_range_like_any() -> None:
    with pytest.raises(RewardError, match=r"outside its range 0\.\.1"):
        await applied((7, "seven of ten"))


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
        await apply_reward(lambda e, o: _raises(error), EXAMPLE, Output("output"), (0.0, 1.0))  # type: ignore[arg-type, return-value]
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
        await apply_reward(reward, EXAMPLE, Output("output"), (0.0, 1.0))


async def test_a_reached_budget_and_a_cancellation_pass_through() -> None:
    with pytest.raises(BudgetReached):
        await apply_reward(
            lambda e, o: _raises(BudgetReached("enough")), EXAMPLE, Output(""), (0.0, 1.0)
        )  # type: ignore[arg-type, return-value]

    async def slow(example: Example, output: str) -> float:
        await asyncio.sleep(60)
        return 1.0

    task = asyncio.create_task(apply_reward(slow, EXAMPLE, Output(""), (0.0, 1.0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sys.exception() is None
