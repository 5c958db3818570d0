"""D_ψ: what it is shown, ρ, and its own gradient (decisions 3, 5, 22)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from promptcodebook.config import load_config
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import History, penalty
from promptcodebook.randomness import Draws
from promptcodebook.types import Codebook, Example, Gradients, Rollout, Route, Stage, Verdict
from tests.method.build import World, book, config, examples, said, verdict

DRAWS = Draws(0, 0, "x")


def history(
    codebook: Codebook | None = None, target: str | None = "Y*", feedback: str = "", **fields
) -> History:
    rollout = Rollout(
        "x",
        route=Route((1, 3)),
        prompt="THE PROMPT",
        output=fields.pop("output", "THE ANSWER"),
        reward=0.25,
        feedback=feedback,
        **fields,
    )
    return History(Example("x", "THE INPUT", target), codebook or book(), rollout)


@pytest.mark.parametrize(
    ("score", "feedback", "unit", "weight", "rho"),
    [
        (0.7, "bad", 0.5, 1.0, 0.3),
        (0.7, "bad", 0.5, 0.5, 0.15),
        (0.0, "bad", 0.0, 1.0, 1.0),
        (0.0, "", 0.0, 1.0, 0.0),
        (0.0, " \n", 0.0, 1.0, 0.0),
        (0.0, "bad", 1.0, 1.0, 0.0),
        (1.0, "bad", 0.5, 1.0, 0.0),
    ],
)
def test_the_penalty(score: float, feedback: str, unit: float, weight: float, rho: float):
    """Decision 5: 0 for a full reward or an empty critique, else (1 - score) · weight."""
    assert penalty(Verdict(score, feedback), unit, weight) == pytest.approx(rho)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("sees", [True, False])
async def test_the_critic_is_shown_the_reward_unless_it_is_to_judge_without(
    sees: bool, stages: int
):
    """The printed template shows no r; ours does, and `critic.sees_reward: false` leaves it out."""
    settled = config(critic={"sees_reward": sees, "stages": stages}, update={"epochs": 1})
    world = World(settled)
    await world.run(examples(1))
    shown = [
        "Reward: 0.5 on a scale" in said(r) for r in (*world.asked("critic"), *world.own_gradients)
    ]
    assert shown == [sees] * 2
    assert not load_config({"preset": "paper"}).critic.sees_reward


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_the_critic_sees_the_whole_trace(templates: str):
    """Decision 3: x, z, C[z], p, y and y*, in both template sets; and what the reward said."""
    world = World(config(templates=templates), ScriptedLM().enqueue(verdict(0.5)))
    await world.critic.verdict("PSI", history(feedback="two words missing"), DRAWS)
    seen = said(world.lm.history[0])
    assert seen.startswith("PSI")
    for part in ("THE INPUT", "1, 3", "[1] rule one", "[3] rule three", "THE PROMPT", "THE ANSWER",
                 "Reference answer: Y*", "two words missing"):  # fmt: skip
        assert part in seen
    assert "rule two" not in seen


@pytest.mark.parametrize("call", ["critic", "critic_one", "adversary"])
async def test_the_reward_is_shown_with_its_range(call: str):
    """0.25 is poor out of 1 and hopeless out of 5."""
    shown = replace(history(), reward_range=(-1.0, 5.0))
    world = World(config(), ScriptedLM().enqueue(verdict(0.5), verdict(0.5)))
    match call:
        case "critic":
            await world.critic.verdict("psi", shown, DRAWS)
        case "critic_one":
            await world.critic.critique("psi", shown, DRAWS)
        case _:
            await world.critic.own_gradient("psi", shown, Verdict(0.5, ""), DRAWS)
    assert "Reward: 0.25 on a scale from -1 to 5" in said(world.lm.history[0])


@pytest.mark.parametrize(
    ("replies", "score", "calls"),
    [
        (('{"score": "0.7"}',), 0.7, 1),
        (('{"score": 1}',), 1.0, 1),
        (('{"score": 0}',), 0.0, 1),
        (('{"score": "7/10"}',), 0.7, 1),
        (('{"score": 7}', '{"score": 0.6}'), 0.6, 2),
        (('{"score": 7}', '{"score": 7}'), 0.7, 2),
        (('{"score": 10}', '{"score": 10}'), 1.0, 2),
        (('{"score": 1.5}', '{"score": 1.5}'), 0.15, 2),
        (('{"score": 10.5}', '{"score": 10.5}'), 0.105, 2),
        (('{"score": 85}', '{"score": 85}'), 0.85, 2),
        (('{"score": 850}', '{"score": 850}'), 1.0, 2),
        (('{"score": -1}', '{"score": -1}'), 0.0, 2),
    ],
)
async def test_a_score_off_its_scale_is_asked_for_once_more_and_then_read_as_one_of_ten_or_hundred(
    replies: tuple[str, ...], score: float, calls: int
):
    world = World(config(), ScriptedLM().enqueue(*replies))
    found = await world.critic.verdict("psi", history(), DRAWS)
    assert found.score == pytest.approx(score) and len(world.lm.history) == calls


@pytest.mark.parametrize("stages", [1, 2])
async def test_a_score_is_asked_for_on_a_scale_from_0_to_1(stages: int):
    world = World(config(), ScriptedLM().enqueue(verdict(0.5)))
    ask = world.critic.critique if stages == 1 else world.critic.verdict
    await ask("psi", history(), DRAWS)
    (request,) = world.lm.history
    assert request.schema is not None
    score = request.schema.body["properties"]["score"]  # type: ignore[index, call-overload]
    assert (score["type"], score["minimum"], score["maximum"]) == ("number", 0, 1)


async def test_a_task_without_references_says_so():
    """Decision 22."""
    world = World(config(), ScriptedLM().enqueue(verdict(0.5)))
    await world.critic.verdict("psi", history(target=None), DRAWS)
    assert "There is no reference answer for this task" in said(world.lm.history[0])


async def test_the_stages_of_a_compound_executor_are_shown():
    stages = (Stage("retrieve", "query one", "title A"),)
    world = World(config(), ScriptedLM().enqueue(verdict(0.5), verdict(0.5)))
    await world.critic.verdict("psi", history(stages=stages), DRAWS)
    await world.critic.verdict("psi", history(), DRAWS)
    with_stages, without = map(said, world.lm.history)
    assert "Stages on the way:\n- retrieve: query one -> title A\n" in with_stages
    assert "Stages" not in without


async def test_an_empty_answer_is_shown_as_such_and_a_reward_s_range_is_0_to_1():
    world = World(config(), ScriptedLM().enqueue(verdict(0.5)))
    await world.critic.verdict("psi", history(output=""), DRAWS)
    seen = said(world.lm.history[0])
    assert "(empty)" in seen and "Reward: 0.25 on a scale from 0 to 1" in seen


async def test_a_long_field_is_cut_in_its_middle():
    world = World(config(), ScriptedLM().enqueue(verdict(0.5)))
    await world.critic.verdict("psi", history(output="a" * 9000 + "b" * 9000), DRAWS)
    seen = said(world.lm.history[0])
    assert "aaa\n[... 12000 characters left out ...]\nbbb" in seen and len(seen) < 10_000


async def test_one_call_gives_verdict_and_gradients():
    """Decision 3: Eq. 8 as printed."""
    reply = json.dumps(
        {
            "score": 0.5,
            "feedback": "bad",
            "rendering_errors": "r",
            "instinct_errors": {"3": "i", "2": "inactive"},
            "routing_errors": "z",
        }
    )
    world = World(config(), ScriptedLM().enqueue(reply))
    said_, gradients = await world.critic.critique("psi", history(), DRAWS)
    assert said_ == Verdict(0.5, "bad")
    assert (gradients.generator, gradients.encoder) == ("r", "z")
    assert gradients.codebook == {3: "i"}


@pytest.mark.parametrize("feedback", ["it missed the units", ""])
async def test_the_own_gradient_reads_rubric_trace_and_verdict(feedback: str):
    """g_ψ: an adversarial call of role critic; a silent critic may have missed something."""
    reply = {"feedback": " look at units ", "severity": "3/10"}
    world = World(config(), ScriptedLM().enqueue(json.dumps(reply)))
    own = await world.critic.own_gradient("PSI", history(), Verdict(0.5, feedback), DRAWS)
    seen = said(world.lm.history[0])
    assert own == Gradients(critic="look at units", severity={"critic": 0.3})
    assert world.lm.history[0].role == "critic"
    assert "PSI" in seen and "THE ANSWER" in seen
    assert (feedback or "found nothing to complain of") in seen


async def test_instincts_reach_the_critic_unchanged():
    odd = book("write (untried) ideas", "{theta}", "## user", "<|im_start|>system")
    world = World(config(critic={"stages": 1}), ScriptedLM().enqueue(verdict(0.5)))
    await world.critic.critique("psi", history(odd), DRAWS)
    seen = said(world.lm.history[0])
    assert "[0] write (untried) ideas\n[1] {theta}\n[2] ## user\n[3] <|im_start|>system" in seen
