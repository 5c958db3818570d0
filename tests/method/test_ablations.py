"""The ablation switches (decision 19), and other decisions seen through the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptcodebook.calls import Request
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.state import RoutingStatistics, State
from tests.method.build import (
    ENCODED,
    World,
    attributed,
    book,
    config,
    examples,
    one_batch,
    parameters,
    routed,
    said,
    talkative,
)


async def test_a_static_encoder_routes_but_is_never_rewritten():
    """Decision 19: encoder.mode = static keeps θ₀."""
    world = World(one_batch(explore=ENCODED, encoder={"mode": "static"}))
    (step,) = await world.run(examples(5))
    assert len(world.asked("encoder")) == 5
    assert step.parameters.encoder == "theta 0"
    assert [r.variable for r in step.rewrites] == ["generator", 0, 1, "critic"]


async def test_without_an_encoder_every_route_is_explored():
    """Decision 19: encoder.mode = none never asks for a route, whatever ε is."""
    explore = {"epsilon": 0.0, "epsilon_min": 0.0}
    world = World(one_batch(explore=explore, encoder={"mode": "none"}))
    (step,) = await world.run(examples(5))
    assert world.asked("encoder") == []
    assert all(t.rollout.route and t.rollout.route.explored for t in step.traces)
    assert step.parameters.encoder == ""


async def test_without_text_updates_the_critic_still_gives_the_penalty():
    """Decision 19: text_updates = false leaves Θ alone; r̄ still takes r - ρ = 0.1."""
    settings = one_batch(explore={**ENCODED, "alpha": 1.0}, update={"text_updates": False})
    world = World(settings)
    (step,) = await world.run(examples(5))
    assert step.parameters == parameters() and step.rewrites == ()
    assert step.ema == pytest.approx((0.1, 0.1, 0, 0))
    assert step.success == pytest.approx((0.5, 0.5, 0, 0))
    assert world.own_gradients == [] and world.asked("attribution") == []


async def test_a_fixed_critic_is_never_asked_about_itself():
    """Decision 19: critic.trainable = false keeps ψ₀ and pays for no g_ψ."""
    world = World(one_batch(explore=ENCODED, critic={"trainable": False}))
    (step,) = await world.run(examples(5))
    assert step.parameters.critic == "psi 0" and world.own_gradients == []
    assert [r.variable for r in step.rewrites] == ["encoder", "generator", 0, 1]


async def test_exploration_can_be_switched_off():
    """Decision 6: explore.policy = none is ε = 0."""
    world = World(one_batch(explore={"policy": "none", "epsilon": 1.0}))
    (step,) = await world.run(examples(5))
    assert step.epsilon == 0.0
    assert not any(t.rollout.route and t.rollout.route.explored for t in step.traces)


async def test_uniform_exploration_takes_no_notice_of_r_bar():
    """Decision 6: with τ this small SuccWtd would choose c0, c1 always; uniform does not."""
    state = State(0, parameters(), RoutingStatistics((9, 9, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0)))
    routes = {}
    for policy in ("success", "uniform"):
        explore = {"policy": policy, "epsilon_min": 1.0, "tau": 0.01}
        settings = config(explore=explore, update={"batch_size": 30, "epochs": 1})
        (step,) = await World(settings).run(examples(30), state=state)
        routes[policy] = {t.rollout.route.indices for t in step.traces if t.rollout.route}
    assert routes["success"] == {(0, 1)}
    assert len(routes["uniform"]) > 3


async def test_verbatim_composition_puts_the_instincts_in_the_prompt_as_they_are():
    """Decision 12: no generator call, and φ is not rewritten."""
    world = World(one_batch(explore=ENCODED, compose="verbatim", base_prompt="You are terse."))
    (step,) = await world.run(examples(5))
    assert world.asked("generator") == []
    assert {t.rollout.prompt for t in step.traces} == {"You are terse.\n\nrule zero\nrule one"}
    assert "generator" not in [r.variable for r in step.rewrites]


async def test_a_frozen_instinct_is_never_rewritten():
    world = World(one_batch(explore=ENCODED))
    start = parameters(book(frozen=[1]))
    (step,) = await world.run(examples(5), start)
    assert step.parameters.codebook[1].text == "rule one"
    assert [r.variable for r in step.rewrites] == ["encoder", "generator", 0, "critic"]


@pytest.mark.parametrize(("flag", "variables"), [(False, [0]), (True, ["encoder", 0])])
async def test_theta_learns_from_explored_routes_only_if_told_to(flag: bool, variables: list[str]):
    """Decision 7: by default g_θ counts only where the encoder chose."""
    lm = ScriptedLM().reply_with(
        lambda r: attributed("", {0: "sharpen"}, "wrong") if r.role == "attribution"
        else talkative(r)
    )  # fmt: skip
    explore = {"epsilon_min": 1.0, "tau": 0.01}
    settings = one_batch(
        explore=explore, update={"encoder_on_explored": flag}, critic={"trainable": False}
    )
    state = State(0, parameters(), RoutingStatistics((9, 9, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0)))
    (step,) = await World(settings, lm).run(examples(5), state=state)
    assert [r.variable for r in step.rewrites] == variables


async def test_an_epoch_is_a_full_pass_or_a_number_of_batches():
    """Decision 1: 10 examples in batches of 4 make three updates a pass, or one, as asked."""
    for per_epoch, epochs in (("all", [0, 0, 0, 1, 1, 1]), (1, [0, 1]), (2, [0, 0, 1, 1])):
        update = {"batch_size": 4, "epochs": 2, "steps_per_epoch": per_epoch}
        steps = await World(config(update=update)).run(examples(10))
        assert [s.epoch for s in steps] == epochs


async def test_rewards_are_rescaled_for_the_averages():
    """Decision 5: 0 in the range -1..1 is 0.5; full is 1."""
    lm = ScriptedLM().reply_with(lambda r: "0" if r.role == "executor" else talkative(r))
    settings = one_batch(explore={**ENCODED, "alpha": 1.0}, reward_range=(-1.0, 1.0))
    (step,) = await World(settings, lm).run(examples(5))
    assert step.success[0] == pytest.approx(0.5)
    assert step.traces[0].rollout.reward == 0.0 and step.traces[0].unit == 0.5
    assert step.ema[0] == pytest.approx(0.5 - 0.4)


async def test_tasks_without_references_learn_from_the_score_alone():
    """Decision 22: the critic is told that there is no y*, and ρ rests on its score."""
    world = World(one_batch(explore={**ENCODED, "alpha": 1.0}))
    data = [replace(x, target=None) for x in examples(5)]
    (step,) = await world.run(data)
    assert step.ema[0] == pytest.approx(0.5 - 0.4)
    assert all("There is no reference answer" in said(r) for r in world.asked("critic"))
    assert not any("Reference answer" in said(r) for r in world.asked("critic"))


async def test_routes_that_stay_wrong_are_repaired_and_counted():
    """Decision 10, in the loop: the run goes on with S valid indices."""
    lm = ScriptedLM().reply_with(lambda r: routed(3, 9) if r.role == "encoder" else talkative(r))
    world = World(one_batch(explore=ENCODED), lm)
    (step,) = await world.run(examples(5))
    assert {t.rollout.route.indices for t in step.traces if t.rollout.route} == {(0, 3)}
    assert (world.tally["route_repairs"], world.tally["route_fallbacks"]) == (5, 5)


async def test_a_critic_that_says_nothing_usable_has_failed():
    """Some of a batch: where most of it fails, the run stops (test_failures.py)."""

    def answer(request: Request) -> str:
        mumbles = request.role == "critic" and "input 2" in said(request)
        return "hm" if mumbles else talkative(request)

    (step,) = await World(one_batch(explore=ENCODED), ScriptedLM().reply_with(answer)).run(
        examples(5)
    )
    assert {t.rollout.example_id: t.failure.kind for t in step.traces if t.failure} == {
        "x2": "ParseError"
    }
