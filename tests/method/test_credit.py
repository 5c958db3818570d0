"""Verdict, ρ and gradients of one rollout (Eqs. 7-8; decisions 3, 5, 19, 20)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import History, unit_reward
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Gradients, Rollout, Route, Trace, Verdict
from tests.method.build import World, attributed, book, config, said, verdict

ONE_CALL = json.dumps(
    {"score": 0.5, "feedback": "bad", "rendering_errors": "r", "instinct_errors": {},
     "routing_errors": ""}
)  # fmt: skip
CHOSEN = Route((0, 1))
OWN = json.dumps({"feedback": "own"})


async def assign(
    reward: float,
    *critic: str,
    attribution: str = attributed("r"),
    route: Route = CHOSEN,
    **tree,
):
    lm = ScriptedLM().enqueue(*critic, role="critic").enqueue(attribution, role="attribution")
    world = World(config(**tree), lm)
    rollout = Rollout("x", route, "p", "y", reward=reward)
    history = History(Example("x", "in", "out"), book(), rollout)
    trace = await world.credit.assign("psi", history, Draws(0, 0, "x"))
    return world, trace


def roles(world: World) -> list[str]:
    return [r.role for r in world.lm.history]


@pytest.mark.parametrize(
    ("reward", "bounds", "unit"), [(0.5, (0, 1), 0.5), (0, (-1, 1), 0.5), (5, (0, 5), 1)]
)
def test_rewards_are_rescaled_to_the_unit_interval(reward, bounds, unit):
    """Decision 5."""
    assert unit_reward(reward, bounds) == unit


async def test_two_stages_ask_critic_attribution_and_the_critic_about_itself():
    """Decision 3: the default is App. C.2's pipeline."""
    world, trace = await assign(0.5, verdict(0.7), OWN)
    assert roles(world) == ["critic", "attribution", "critic"]
    assert trace.gradients == Gradients(generator="r", critic="own")
    assert trace.penalty == pytest.approx(0.3)


async def test_one_stage_asks_no_attribution():
    """Decision 3: critic.stages = 1."""
    world, trace = await assign(0.5, ONE_CALL, OWN, critic={"stages": 1})
    assert roles(world) == ["critic", "critic"]
    assert trace.gradients == Gradients(generator="r", critic="own")
    assert trace.verdict == Verdict(0.5, "bad") and trace.penalty == 0.5


async def test_a_solved_example_costs_no_critic_call():
    """Its critique is empty by definition, so ρ = 0."""
    world, trace = await assign(1.0)
    assert world.lm.history == []
    assert trace == Trace(trace.rollout, 1.0, Verdict(1.0, ""))


async def test_skip_solved_false_calls_the_critic_all_the_same():
    world, trace = await assign(1.0, verdict(0.4), OWN, critic={"skip_solved": False})
    assert roles(world) == ["critic", "attribution", "critic"]
    assert trace.penalty == 0.0 and trace.gradients.generator == "r"


async def test_full_is_the_top_of_the_task_s_range():
    """Decision 5: 1 in the range 0..5 is far from full."""
    _, trace = await assign(1.0, verdict(0.4), OWN, reward_range=(0.0, 5.0))
    assert trace.unit == 0.2 and trace.penalty == pytest.approx(0.6)
    world, _ = await assign(5.0, reward_range=(0.0, 5.0))
    assert world.lm.history == []


async def test_an_empty_critique_is_not_attributed_but_may_be_questioned():
    world, trace = await assign(0.5, verdict(0.4, ""), OWN)
    assert roles(world) == ["critic", "critic"]
    assert trace.penalty == 0.0
    assert replace(trace.gradients, severity={}) == Gradients(critic="own")


async def test_switches_save_their_calls():
    """Decision 19."""
    fixed, _ = await assign(0.5, verdict(0.4), critic={"trainable": False})
    assert roles(fixed) == ["critic", "attribution"]
    textless, trace = await assign(0.5, verdict(0.4), update={"text_updates": False})
    assert roles(textless) == ["critic"]
    assert trace.penalty == pytest.approx(0.6) and trace.gradients == Gradients()


GRAVE = json.dumps(
    {"rendering_errors": "r", "instinct_errors": {"1": "vague"}, "routing_errors": "",
     "severity": {"rendering": 0.1, "instinct": 0.2, "routing": 0.9}}
)  # fmt: skip
OWN_RATED = json.dumps({"feedback": "own", "severity": 0.05})


async def test_the_residual_counts_all_four_variables():
    """Theorem 5: 0.6 - (0.1 + 0.2 + 0 + 0.05); ρ is 0 where nothing is said."""
    world, trace = await assign(0.5, verdict(0.4), OWN_RATED, attribution=GRAVE)
    assert roles(world) == ["critic", "attribution", "critic"]
    rated = {"generator": 0.1, "codebook": 0.2, "encoder": 0.0, "critic": 0.05}
    assert trace.gradients.severity == pytest.approx(rated)
    assert trace.residual == pytest.approx(0.25)


async def test_severities_are_on_the_scale_of_the_penalty():
    _, trace = await assign(
        0.5, verdict(0.4), OWN_RATED, attribution=GRAVE, critic={"penalty_weight": 2.0}
    )
    assert trace.penalty == pytest.approx(1.2)
    assert trace.gradients.severity["codebook"] == pytest.approx(0.4)
    assert trace.residual == pytest.approx(1.2 - 2 * 0.35)
    unskipped = {"skip_solved": False}
    _, full = await assign(1.0, verdict(0.4), OWN_RATED, attribution=GRAVE, critic=unskipped)
    assert full.penalty == full.residual == 0.0 and set(full.gradients.severity.values()) == {0.0}


@pytest.mark.parametrize("own", [OWN, "a teapot", None])
async def test_without_a_severity_of_psi_the_residual_is_of_the_other_three(own: str | None):
    """Not asked for, not given, or from a server that knows no such field."""
    replies = [verdict(0.4), *([own, own] if own else [])]
    _, trace = await assign(0.5, *replies, attribution=GRAVE, critic={"trainable": own is not None})
    assert "critic" not in trace.gradients.severity
    assert trace.residual == pytest.approx(0.3)


async def test_a_rubric_that_needs_no_change_counts_nothing():
    for silent in ('{"feedback": ""}', '{"feedback": "none", "severity": 0.8}'):
        _, trace = await assign(0.5, verdict(0.4), silent, attribution=GRAVE)
        assert trace.gradients.severity["critic"] == 0.0
        assert trace.residual == pytest.approx(0.3)


async def test_a_silent_verdict_leaves_the_blame_of_the_rubric_alone():
    """ρ(ℓ) = 0 and nobody is to blame but ψ: δ = -ρ(g_ψ)."""
    _, trace = await assign(0.5, verdict(0.4, ""), OWN_RATED)
    assert trace.residual == pytest.approx(-0.05)
    _, printed = await assign(0.5, verdict(0.4, ""), OWN_RATED, templates="paper")
    assert printed.residual is None


async def test_without_severities_of_the_other_three_there_is_no_residual():
    _, plain = await assign(0.5, verdict(0.4), OWN_RATED)
    assert plain.residual is None and plain.gradients.severity == {"critic": 0.05}
    partly = {"rendering_errors": "r", "routing_errors": "z", "severity": {"rendering": 0.1}}
    _, part = await assign(0.5, verdict(0.4), OWN_RATED, attribution=json.dumps(partly))
    assert part.residual is None
    _, failed = await assign(0.5, verdict(0.4), OWN_RATED, attribution="a teapot")
    assert failed.residual is None


async def test_the_attribution_reads_the_score_that_severities_are_measured_by():
    world, _ = await assign(0.5, verdict(0.35), OWN)
    assert "Score: 0.35 on a scale" in said(world.lm.history[1])


FILLED_UP = Route((0, 1), repaired=True, fallback=True, fault="[19] lie outside 0..15")


@pytest.mark.parametrize("reward", [0.5, 1.0])
async def test_a_route_that_was_filled_up_teaches_theta_its_fault_and_nothing_else(reward: float):
    """Decision 23: θ did not make the route that the verdict is about."""
    blaming = attributed("r", {0: "vague"}, "it should have picked c3")
    _, trace = await assign(reward, verdict(0.4), OWN, attribution=blaming, route=FILLED_UP)
    assert "[19] lie outside 0..15" in trace.gradients.encoder
    assert "c3" not in trace.gradients.encoder
    assert trace.gradients.codebook == ({0: "vague"} if reward < 1 else {})


async def test_the_fault_of_a_route_is_learned_from_though_the_critic_fails():
    _, trace = await assign(0.5, "a teapot", "a teapot", route=FILLED_UP)
    assert trace.failure is not None and trace.failure.stage == "critique"
    assert "[19]" in trace.gradients.encoder


async def test_without_text_updates_nothing_is_learned_from_a_fault():
    _, trace = await assign(0.5, verdict(0.4), route=FILLED_UP, update={"text_updates": False})
    assert trace.gradients == Gradients()
