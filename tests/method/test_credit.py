"""Verdict, ρ and gradients of one rollout (Eqs. 7-8; decisions 3, 5, 19, 20)."""

from __future__ import annotations

import json

import pytest

from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import History, unit_reward
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Gradients, Rollout, Route, Trace, Verdict
from tests.method.build import World, attributed, book, config, verdict

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
    assert trace.penalty == 0.0 and trace.gradients == Gradients(critic="own")


async def test_switches_save_their_calls():
    """Decision 19."""
    fixed, _ = await assign(0.5, verdict(0.4), critic={"trainable": False})
    assert roles(fixed) == ["critic", "attribution"]
    textless, trace = await assign(0.5, verdict(0.4), update={"text_updates": False})
    assert roles(textless) == ["critic"]
    assert trace.penalty == pytest.approx(0.6) and trace.gradients == Gradients()


async def test_the_residual_is_in_the_trace():
    """Decision 20: 0.6 - (0.1 + 0.2 + 0)."""
    reply = json.dumps({"rendering_errors": "r", "severity": {"rendering": 0.1, "instinct": 0.2}})
    _, trace = await assign(0.5, verdict(0.4), OWN, attribution=reply)
    assert trace.residual == pytest.approx(0.3)
    _, plain = await assign(0.5, verdict(0.4), OWN)
    assert plain.residual is None


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
