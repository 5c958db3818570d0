"""`accept: improve` (decision 9)."""

from __future__ import annotations

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import State
from tests.method.build import (
    World,
    config,
    examples,
    parameters,
    said,
    talkative,
)


def settings(accept: str = "improve", **tree):
    update = {"batch_size": 4, "epochs": 1, "accept": accept, "encoder_on_explored": True}
    return config(update=update, **tree)


def after_rewriting(reward: Scripted) -> ScriptedLM:
    """0.5 under the old φ; `reward` under the new one."""

    def reply(request: Request) -> Scripted:
        match request.role:
            case "generator":
                return "new prompt" if "phi 1" in said(request) else "old prompt"
            case "executor" if "new prompt" in said(request):
                return reward
            case "updater" if "the directive of the generator" in said(request):
                return "phi 1"
            case _:
                return talkative(request)

    return ScriptedLM().reply_with(reply)


@pytest.mark.parametrize("reward", ["0.5", "0.9"])
async def test_rewrites_are_kept_when_the_reward_has_not_fallen(reward: str):
    """Decision 9: equal is not fallen."""
    world = World(settings(), after_rewriting(reward))
    (step,) = await world.run(examples(4))
    assert not step.reverted and all(r.kept for r in step.rewrites)
    assert step.parameters.generator == "phi 1"
    assert len(world.asked("executor")) == 8


async def test_rewrites_are_reverted_when_the_reward_fell_but_psi_is_exempt():
    """Decision 9: the reward does not depend on ψ."""
    world = World(settings(), after_rewriting("0.1"))
    (step,) = await world.run(examples(4))
    assert step.reverted
    assert step.parameters.generator == "phi 0" and step.parameters.encoder == "theta 0"
    assert step.parameters.codebook == parameters().codebook
    assert step.parameters.critic != "psi 0"
    refused = [r for r in step.rewrites if not r.kept]
    assert {r.variable for r in step.rewrites} - {r.variable for r in refused} == {"critic"}
    assert {r.reason for r in refused} == {"the batch's reward fell from 0.5000 to 0.1000"}


async def test_accept_always_runs_nothing_again():
    world = World(settings("always"), after_rewriting("0.1"))
    (step,) = await world.run(examples(4))
    assert not step.reverted and step.parameters.generator == "phi 1"
    assert len(world.asked("executor")) == 4


async def test_explored_routes_stay_fixed_and_encoder_routes_are_chosen_anew():
    """Decision 9: a draw is not repeated under new rates; the rewritten encoder is asked again."""
    explored = World(settings(explore={"epsilon_min": 1.0}), after_rewriting("0.9"))
    (step,) = await explored.run(examples(4))
    drawn = [t.rollout.route.indices for t in step.traces if t.rollout.route]
    asked = explored.asked("generator")
    assert len(asked) == 8 and explored.asked("encoder") == []
    for z, first, again in zip(drawn, asked[:4], asked[4:], strict=True):
        for k in range(4):
            assert (f"\n[{k}] " in said(first)) == (f"\n[{k}] " in said(again)) == (k in z)
    encoded = World(settings(explore={"policy": "none"}), after_rewriting("0.9"))
    await encoded.run(examples(4))
    thetas = [said(r).splitlines()[0] for r in encoded.asked("encoder")]
    assert thetas[:4] == ["theta 0"] * 4 and thetas[4] == thetas[7] != "theta 0"


async def test_the_executor_draws_the_same_samples_again():
    """Decision 9: the comparison is paired, noise and all."""
    world = World(settings(), after_rewriting("0.9"))
    await world.run(examples(4))
    samples = [(r.messages[-1].content, r.sample) for r in world.asked("executor")]
    assert samples[:4] == samples[4:] and len(set(samples)) == 4


async def test_the_averages_learn_from_the_run_as_it_was():
    world = World(
        settings(explore={"policy": "none", "alpha": 1.0}, critic={"trainable": False}),
        after_rewriting("0.9"),
    )
    (step,) = await world.run(examples(4))
    assert step.success == pytest.approx((0.5, 0.5, 0, 0))


async def test_rewrites_under_which_nothing_runs_are_not_kept():
    """No reward is no proof that the reward did not fall."""
    world = World(settings(), after_rewriting(EndpointDown("gone")))
    (step,) = await world.run(examples(4))
    assert step.reverted and step.parameters.generator == "phi 0"
    assert "could not be run again" in step.rewrites[0].reason


async def test_examples_without_a_reward_are_not_run_again():
    def reply(request: Request) -> Scripted:
        lost = request.role == "executor" and "input 0" in said(request)
        return EndpointDown("gone") if lost else talkative(request)

    world = World(settings(), ScriptedLM().reply_with(reply))
    await world.run(examples(4))
    assert sum("input 0" in said(r) for r in world.asked("executor")) == 1


async def test_nothing_to_judge_costs_nothing():
    world = World(settings(critic={"skip_solved": True}), ScriptedLM().reply_with(
        lambda r: "1" if r.role == "executor" else talkative(r)
    ))  # fmt: skip
    (step,) = await world.run(examples(4), state=State.first(parameters()))
    assert step.rewrites == () and len(world.asked("executor")) == 4
