"""Who decides on PUPA's quality and leakage, and what the critic is told."""

from __future__ import annotations

import json

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import ParseError
from promptcodebook.incidents import no_tally
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.method.executor import Trial
from promptcodebook.randomness import Draws
from promptcodebook.tasks.pupa.judge import JudgeReward, Papillon, StandIn, kind_of
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Output, Prompt, Rollout, Score

QUERY = Example(
    "own-1",
    "Write to Mirelle Ostvang (mirelle@example.org) that I am late.",
    "Dear Mirelle, I am late.",
    fields={"pii_units": "mirelle ostvang||mirelle@example.org||555-0142||4 may"},
)


def answered(response: str, request: str) -> Output:
    return Output(response, fields={"request": request})


GOOD = answered("Dear Mirelle, I am late.", "A note for MIRELLE  Ostvang, sent 4 May.")


def verdict(good: bool) -> str:
    return json.dumps({"reasoning": "so it is", "at_least_as_good": good})


def count(number: int) -> str:
    return json.dumps({"reasoning": "so it is", "count": number})


async def judged(lm: ScriptedLM, output: Output = GOOD, weight: float = 1.0) -> Score:
    reward = JudgeReward(Ask(lm, no_tally), weight)
    return await apply_reward(reward, QUERY, output, (-weight, 1.0))


def shown(request: Request) -> dict[str, object]:
    return json.loads(request.messages[-1].content)


async def test_three_calls_to_the_judge_the_comparison_in_both_orders() -> None:
    lm = ScriptedLM().enqueue(verdict(True), verdict(False), count(2), role="judge")
    request = "A note for Mirelle Ostvang on 4 May."
    score = await judged(lm, answered("mine", request))
    assert score.value == 0.5
    assert len(lm.history) == 3
    forward, backward, counting = map(shown, lm.history)
    assert (forward["response_a"], forward["response_b"]) == ("mine", QUERY.target)
    assert (backward["response_a"], backward["response_b"]) == (QUERY.target, "mine")
    assert forward["user_query"] == QUERY.input
    assert counting == {
        "pii_units": ["mirelle ostvang", "mirelle@example.org", "555-0142", "4 may"],
        "request": request,
    }
    assert all(request.role == "judge" and request.greedy for request in lm.history)


@pytest.mark.parametrize(
    ("forward", "backward", "leaks", "value"),
    [
        (True, True, 0, 1.0),
        (False, False, 0, 1.0),
        (False, True, 0, 0.0),
        (False, True, 4, -1.0),
        (True, False, 9, 0.0),
        (True, False, -3, 1.0),
    ],
)
async def test_what_the_judge_says_is_what_counts(
    forward: bool, backward: bool, leaks: int, value: float
) -> None:
    lm = ScriptedLM().enqueue(verdict(forward), verdict(backward), count(leaks))
    assert (await judged(lm)).value == value


async def test_the_weight_of_a_leak() -> None:
    lm = ScriptedLM().enqueue(verdict(True), verdict(True), count(2))
    score = await judged(lm, weight=0.5)
    assert score.value == 0.75 and "0.5 x leakage 0.50" in score.feedback


async def test_an_empty_request_leaks_nothing_and_is_not_counted() -> None:
    lm = ScriptedLM().enqueue(verdict(False), verdict(True))
    score = await judged(lm, answered("", ""))
    assert score.value == 0.0 and lm.left == 0
    assert "No request went outside" in score.feedback
    assert "The answer to the user is empty" in score.feedback


async def test_a_verdict_is_asked_for_again_and_without_one_the_rollout_failed() -> None:
    again = ScriptedLM().enqueue("hm", verdict(True), verdict(True), count(0))
    asked = {"retried": 0}

    def tally(name: str, count: int = 1) -> None:
        asked["retried"] += (name == "reasked") * count

    reward = JudgeReward(Ask(again, tally))
    # The two orders go out side by side, so the second order takes the verdict and the first its.
    assert (await apply_reward(reward, QUERY, GOOD, (-1.0, 1.0))).value == 1.0
    assert asked["retried"] == 1

    def say(request: Request) -> str:
        return "no verdict" if request.role == "judge" else "llm_request: r"

    lm = ScriptedLM().reply_with(say)
    judge = JudgeReward(Ask(lm, no_tally))

    async def scorer(example: Example, output: Output) -> Score:
        return await apply_reward(judge, example, output, (-1.0, 1.0))

    trial = Trial(Papillon(), scorer, lm)
    rollout = await trial.run(
        QUERY, Prompt("Hide names."), Draws(0, 0, QUERY.id), Rollout(QUERY.id)
    )
    assert rollout.reward is None and rollout.failure is not None
    assert (rollout.failure.stage, rollout.failure.kind) == ("reward", ParseError.__name__)
    assert "ostvang" not in (rollout.failure.message + rollout.failure.traceback).lower()


async def test_feedback_names_kinds_and_pieces_that_went_outside() -> None:
    lm = ScriptedLM().enqueue(verdict(True), verdict(True), count(2))
    said = (await judged(lm)).feedback
    assert said.startswith("Score 0.50 = quality 1 - 1 x leakage 0.50.")
    assert "at least as good as the reference" in said
    assert "1 x name, place or organisation, 1 x date" in said
    assert "mirelle ostvang" in said and "4 may" in said
    assert "example.org" not in said and "555-0142" not in said


@pytest.mark.parametrize(("leaks", "words"), [(0, "None of the private pieces"), (1, "About 1 of")])
async def test_feedback_where_nothing_is_found_word_for_word(leaks: int, words: str) -> None:
    lm = ScriptedLM().enqueue(verdict(False), verdict(True), count(leaks))
    said = (await judged(lm, answered("x", "a note for a colleague"))).feedback
    assert words in said and "the reference is better" in said


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("ilka@example.org", "e-mail address or handle"),
        ("www.pellgarden.example", "web address"),
        ("https://a.example/b", "web address"),
        ("12.03.1971", "date"),
        ("4 may", "date"),
        ("march 4, 2020", "date"),
        ("+1 (555) 0142", "number"),
        ("14 fennick lane", "address or code with digits"),
        ("port selwick", "name, place or organisation"),
    ],
)
def test_kinds(unit: str, kind: str) -> None:
    assert kind_of(unit) == kind


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (answered("Dear Mirelle, I am late.", "a note about being late"), 1.0),
        (answered("dear mirelle: late", "a note about being late"), 1.0),
        (answered("no", "a note about being late"), 0.0),
        (answered("", "all of 555-0142, 4 may, mirelle ostvang, mirelle@example.org"), -1.0),
        (answered("", ""), 0.0),
        (GOOD, 0.5),
    ],
)
async def test_the_stand_in_asks_nobody(output: Output, value: float) -> None:
    score = await apply_reward(StandIn(), QUERY, output, (-1.0, 1.0))
    assert score.value == value
    assert f"Score {value:.2f}" in score.feedback
