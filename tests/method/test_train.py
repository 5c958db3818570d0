"""The loop in minibatch mode: batches, r̄, Θ from the start, and independence of reply order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import BudgetReached, EndpointDown, LMError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.failures import gather_all
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Example, Output, Score
from tests.method.build import (
    ENCODED,
    Shuffled,
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
    verdict,
)


async def test_all_routes_of_a_batch_use_the_codebook_and_rates_from_its_start():
    world = World(one_batch(explore=ENCODED, update={"epochs": 2, "steps_per_epoch": 1}))
    steps = await world.run(examples(5))
    seen = [r.messages[0].content for r in world.asked("encoder")]
    assert len(set(seen[:5])) == 1 and len(set(seen[5:])) == 1
    assert seen[0] != seen[5]
    assert steps[0].parameters.encoder in seen[5]
    assert all(text in seen[5] for text in steps[0].parameters.codebook.texts)


async def test_explored_routes_of_a_batch_use_r_bar_from_its_start():
    """With α = 1 and reward 0, r̄ of c2 and c3 falls from 1 to -1 at the batch's first example."""
    lm = ScriptedLM().reply_with(lambda r: "0" if r.role == "executor" else talkative(r))
    explore = {"epsilon_min": 1.0, "tau": 0.01, "alpha": 1.0, "gamma": 1.0}
    world = World(one_batch(explore=explore), lm)
    state = State(0, parameters(), RoutingStatistics((0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 1, 1)))
    (step,) = await world.run(examples(5), state=state)
    assert [t.rollout.route.indices for t in step.traces if t.rollout.route] == [(2, 3)] * 5
    assert step.ema == pytest.approx((0, 0, -0.4, -0.4))


async def test_each_variable_is_rewritten_once_from_all_gradients_of_the_batch():
    world = World(one_batch(explore=ENCODED))
    (step,) = await world.run(examples(5))
    assert [r.variable for r in step.rewrites] == ["encoder", "generator", 0, 1, "critic"]
    assert len(world.asked("updater")) == 5
    assert all(len(r.gradient.splitlines()) == 5 for r in step.rewrites)


@pytest.mark.parametrize("mode", ["minibatch", "online"])
async def test_the_result_does_not_depend_on_who_answers_first(mode: str):
    data = examples(7)
    update = {"batch_size": 5, "epochs": 3, "mode": mode, "max_gradients": 2, "accept": "improve"}
    runs = [
        await World(
            config(update=update), wrap=lambda lm, seed=seed: Shuffled(lm, seed) if seed else lm
        ).run(data)
        for seed in (0, 1, 2)
    ]
    first, *others = (repr(steps).encode() for steps in runs)
    assert len(runs[0]) == (3 if mode == "minibatch" else 12)
    assert others == [first, first]


@pytest.mark.parametrize("critic", [{"stages": 1}, {"stages": 2}])
async def test_no_two_calls_of_a_run_share_a_sample(critic: dict[str, int]):
    """Every draw is keyed by step, example and purpose, so no call's chance depends on another."""
    world = World(one_batch(explore=ENCODED, critic=critic, update={"epochs": 2}))
    await world.run(examples(5))
    samples = [r.sample for r in world.lm.history]
    assert len(set(samples)) == len(samples) > 50
    other = World(one_batch(explore=ENCODED, critic=critic, seed=1))
    await other.run(examples(5))
    assert not {r.sample for r in other.lm.history} & set(samples)


async def test_a_run_taken_up_in_the_middle_goes_on_as_if_never_stopped():
    def uneven(request: Request) -> Scripted:
        """A reward for each input of its own, so that what is known of an instinct matters."""
        return f"0.{said(request)[-1]}" if request.role == "executor" else talkative(request)

    settings = config(update={"batch_size": 3, "epochs": 4})
    whole = await World(settings, ScriptedLM().reply_with(uneven)).run(examples(7))
    world = World(settings, ScriptedLM().reply_with(uneven))
    rest = await world.run(examples(7), state=State.after(whole[1]))
    assert repr(rest) == repr(whole[2:])


BLAMED = {
    "input 0": attributed(routing="say it of input 0"),
    "input 1": attributed(rendering="say it of input 1"),
    "input 2": attributed(instincts={1: "say it of input 2"}),
    "input 3": attributed(instincts={3: "say it of input 3"}),
    "input 4": attributed(instincts={1: "say it of input 4"}),
}
"""Whom each example's complaint is laid at, and what is said of it."""
SCORES = {"input 0": 0.1, "input 1": 0.2, "input 2": 0.3, "input 3": 0.4, "input 4": 0.6}


def telling(request: Request) -> Scripted:
    """Routes to 1 and 3; complains of each example in words of its own, and blames one part."""
    about = next((name for name in BLAMED if name in said(request)), "")
    match request.role:
        case "encoder":
            return routed(1, 3)
        case "critic":
            return verdict(SCORES[about], f"a complaint of {about}")
        case "attribution":
            assert f"a complaint of {about}" in said(request), "another example's feedback"
            return BLAMED[about]
        case _:
            return talkative(request)


async def test_a_complaint_reaches_the_part_that_is_blamed_from_its_own_example():
    """And no other part; ρ is made of its own score, and r̄ of that."""
    world = World(
        one_batch(explore={**ENCODED, "alpha": 0.5}, critic={"trainable": False}),
        ScriptedLM().reply_with(telling),
    )
    (step,) = await world.run(examples(5))
    told = {r.variable: r.gradient.splitlines() for r in step.rewrites}
    of_1 = [f"- say it of {t.rollout.example_id.replace('x', 'input ')}" for t in step.traces
            if t.rollout.example_id in ("x2", "x4")]  # fmt: skip
    assert told == {
        "encoder": ["- say it of input 0"],
        "generator": ["- say it of input 1"],
        1: of_1,
        3: ["- say it of input 3"],
    }
    rate = 0.0
    for trace in step.traces:
        name = trace.rollout.example_id.replace("x", "input ")
        own = trace.gradients
        assert name in f"{own.encoder}{own.generator}{own.codebook}"
        assert trace.penalty == pytest.approx(1 - SCORES[name])
        rate += 0.5 * (0.5 - trace.penalty - rate)
    assert step.ema == pytest.approx((0, rate, 0, rate)) and rate != 0.0


async def test_each_example_is_judged_by_its_own_input_answer_and_feedback():
    """Side by side, what the checker says of one must not reach the critic of another."""

    async def scorer(example: Example, output: Output) -> Score:
        return Score(0.5, f"this is about {example.input}")

    lm = ScriptedLM().reply_with(lambda r: said(r)[-7:] if r.role == "executor" else talkative(r))
    world = World(one_batch(explore=ENCODED), lm, scorer=scorer)
    (step,) = await world.run(examples(5))
    for i in range(5):
        own = [r for r in (*world.asked("critic"), *world.own_gradients) if f"input {i}" in said(r)]
        assert len(own) == 2
        assert all(said(r).count(f"input {i}") == 3 for r in own), "input, answer and feedback"
        assert not any(f"input {k}" in said(r) for r in own for k in range(5) if k != i)
    assert all(t.rollout.feedback.endswith(t.rollout.output) for t in step.traces)


#


async def later(result: object, seconds: float, done: list[object]) -> object:
    await asyncio.sleep(seconds)
    done.append(result)
    if isinstance(result, Exception):
        raise result
    return result


async def test_results_come_in_order_and_the_first_error_after_everyone_has_finished():
    done: list[object] = []
    assert await gather_all([later("slow", 0.01, done), later("fast", 0, done)]) == ["slow", "fast"]
    errors = [EndpointDown("a"), EndpointDown("b")]
    chains = [later(errors[0], 0.01, done), later(errors[1], 0, done), later(1, 0.02, done)]
    with pytest.raises(LMError, match="a"):
        await gather_all(chains)
    assert done == ["fast", "slow", errors[1], errors[0], 1]
    with pytest.raises(BudgetReached):  # what ends the run goes before what spoils a chain
        await gather_all([later(errors[0], 0, done), later(BudgetReached("b"), 0, done)])


async def test_cancelling_leaves_no_chain_running():
    done: list[object] = []
    chains = asyncio.create_task(gather_all([later(1, 5, done), later(2, 5, done)]))
    await asyncio.sleep(0)
    chains.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chains
    assert done == [] and asyncio.all_tasks() == {asyncio.current_task()}


# The ablation switches (decision 19), and other decisions seen through the loop.


@pytest.mark.parametrize(("tree", "variables"), [
    ({"encoder": {"mode": "static"}}, ["generator", 0, "critic"]),
    ({"critic": {"trainable": False}}, ["encoder", "generator", 0]),
    ({"compose": "verbatim", "base_prompt": "You are terse."}, ["encoder", 0, "critic"]),
])  # fmt: skip
async def test_a_switch_keeps_its_text_as_it_was(tree, variables):
    """Decisions 12, 19: a static encoder routes; a fixed critic is never asked about itself;
    verbatim composition asks no generator. A frozen instinct is never rewritten."""
    world, start = World(one_batch(explore=ENCODED, **tree)), parameters(book(frozen=[1]))
    (step,) = await world.run(examples(5), start)
    assert [r.variable for r in step.rewrites] == variables
    for name in ("encoder", "generator", "critic"):
        assert (getattr(step.parameters, name) != getattr(start, name)) == (name in variables)
    assert step.parameters.codebook[1].text == "rule one"
    assert len(world.asked("encoder")) == 5
    assert bool(world.own_gradients) == ("critic" in variables)
    verbatim = "compose" in tree
    prompt = "You are terse.\n\nrule zero\nrule one" if verbatim else "Follow the rules."
    assert {t.rollout.prompt for t in step.traces} == {prompt}
    assert bool(world.asked("generator")) != verbatim


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
