"""θ must go on routing (decision 23): a rewrite of it is tried on the batch before it is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import BudgetReached, EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.step import Rewrite, Step
from tests.method.build import (
    ENCODED,
    World,
    config,
    examples,
    parameters,
    routed,
    said,
    talkative,
)

DRIFTED = "Tell the encoder to write prose."
BATCH = 5


def drifting(
    broken: Callable[[Request], Scripted | None], theta: str = DRIFTED
) -> Callable[[Request], Scripted]:
    """A model that rewrites θ to `theta`; of its routes under it, `broken` says which are odd."""

    def reply(request: Request) -> Scripted:
        if request.role == "updater" and "directive of the encoder" in said(request):
            return theta
        if request.role == "encoder" and said(request).startswith(theta):
            odd = broken(request)
            return routed(0, 1) if odd is None else odd
        return talkative(request)

    return reply


def about(count: int, reply: Scripted) -> Callable[[Request], Scripted | None]:
    """Odd routes for the first `count` inputs."""
    names = [f"input {i}" for i in range(count)]
    return lambda request: reply if any(n in said(request) for n in names) else None


async def run(
    broken: Callable[[Request], Scripted | None],
    explore: dict[str, Any] | None = None,
    most: float = 0.2,
    **tree: Any,
) -> tuple[World, Step]:
    settings = config(
        explore=explore or ENCODED,
        encoder={"max_fallback": most},
        update={"batch_size": BATCH, "epochs": 1, **tree},
    )
    world = World(settings, ScriptedLM().reply_with(drifting(broken)))
    (step,) = await world.run(examples(BATCH))
    return world, step


def of_theta(step: Step) -> Rewrite:
    (rewrite,) = [r for r in step.rewrites if r.variable == "encoder"]
    return rewrite


@pytest.mark.parametrize(("odd", "kept"), [(0, True), (1, True), (2, False), (5, False)])
async def test_theta_is_refused_when_more_than_a_fifth_of_the_batch_falls_back(
    odd: int, kept: bool
):
    """1 of 5 is a fifth; 2 of 5 is more. The other rewrites of the step stay."""
    world, step = await run(about(odd, "I would rather talk."))
    theta = of_theta(step)
    assert (theta.kept, theta.after) == (kept, DRIFTED)
    assert step.parameters.encoder == (DRIFTED if kept else "theta 0")
    assert all(r.kept for r in step.rewrites if r.variable != "encoder")
    assert step.reverted == (() if kept else ("encoder",)), "nothing else was"
    assert theta.reason == ("" if kept else f"{odd} of 5 routes fell back with it, more than 20%")
    assert world.tally["encoder_refused"] == (not kept)


async def test_the_trial_is_a_call_for_each_example_and_counts_no_fallback_of_the_run():
    world, _ = await run(about(0, ""))
    assert len(world.asked("encoder")) == 2 * BATCH
    world, _ = await run(about(5, routed(0, 9)))
    assert len(world.asked("encoder")) == 3 * BATCH, "each is asked for once more"
    assert (world.tally["route_fallbacks"], world.tally["route_repairs"]) == (0, 0)
    assert world.tally["faulty"] == 2 * BATCH, "they are replies all the same"


@pytest.mark.parametrize("odd", [3, 5])
async def test_explored_inputs_are_tried_too(odd: int):
    """At the start of a run all routes are explored; θ must not drift meanwhile."""
    explored = {"epsilon": 1.0, "epsilon_min": 1.0}
    _, step = await run(about(odd, "prose"), explore=explored, encoder_on_explored=True)
    assert all(t.rollout.route is not None and t.rollout.route.explored for t in step.traces)
    assert step.parameters.encoder == "theta 0"


async def test_nothing_is_tried_where_theta_was_not_rewritten_or_the_guard_is_off():
    world, step = await run(about(5, "prose"), most=1.0)
    assert step.parameters.encoder == DRIFTED and len(world.asked("encoder")) == BATCH
    static = config(
        encoder={"mode": "static", "max_fallback": 0.2},
        explore=ENCODED,
        update={"batch_size": BATCH, "epochs": 1},
    )
    world = World(static, ScriptedLM().reply_with(talkative))
    await world.run(examples(BATCH))
    assert len(world.asked("encoder")) == BATCH


@pytest.mark.parametrize(("odd", "kept"), [(3, True), (5, False)])
async def test_a_theta_that_routes_badly_may_be_rewritten_to_one_that_routes_less_badly(
    odd: int, kept: bool
):
    """All five fall back under θ as it is: three of five is better, five of five is not."""

    def reply(request: Request) -> Scripted:
        mended = drifting(about(odd, "prose"))
        under_old = request.role == "encoder" and said(request).startswith("theta 0")
        return "prose" if under_old else mended(request)

    settings = config(
        explore=ENCODED,
        encoder={"max_fallback": 0.2},
        update={"batch_size": BATCH, "epochs": 1},
    )
    (step,) = await World(settings, ScriptedLM().reply_with(reply)).run(examples(BATCH))
    assert all("filled up" in t.gradients.encoder for t in step.traces)
    assert of_theta(step).kept == kept


async def test_theta_is_compared_with_the_routes_that_it_made_itself():
    """Some routes are explored, all others fall back under θ as it is: three of five is better."""

    def reply(request: Request) -> Scripted:
        under_old = request.role == "encoder" and said(request).startswith("theta 0")
        return "prose" if under_old else drifting(about(3, "prose"))(request)

    settings = config(
        explore={"epsilon": 0.5, "epsilon_min": 0.5},
        encoder={"max_fallback": 0.2},
        update={"batch_size": BATCH, "epochs": 1},
    )
    (step,) = await World(settings, ScriptedLM().reply_with(reply)).run(examples(BATCH))
    explored = sum(t.rollout.route.explored for t in step.traces if t.rollout.route)
    assert 2 <= explored < BATCH, "else nothing is tested"
    assert of_theta(step).kept


async def test_a_theta_that_was_refused_already_is_not_tried():
    settings = config(
        explore=ENCODED, encoder={"max_fallback": 0.2}, update={"batch_size": BATCH, "epochs": 1}
    )
    world = World(
        settings,
        ScriptedLM().reply_with(drifting(about(5, "prose"))),
        check=lambda variable, *_: "it is unsafe" if variable == "encoder" else None,
    )
    (step,) = await world.run(examples(BATCH))
    assert len(world.asked("encoder")) == BATCH and "unsafe" in of_theta(step).reason
    assert world.tally["encoder_refused"] == 0


async def test_an_example_that_could_not_be_routed_spoils_no_trial():
    def reply(request: Request) -> Scripted:
        old = request.role == "encoder" and said(request).startswith("theta 0")
        gone = old and "input 4" in said(request)
        return EndpointDown("gone") if gone else drifting(about(2, "prose"))(request)

    settings = config(
        explore=ENCODED, encoder={"max_fallback": 0.2}, update={"batch_size": BATCH, "epochs": 1}
    )
    (step,) = await World(settings, ScriptedLM().reply_with(reply)).run(examples(BATCH))
    assert sum(t.rollout.route is None for t in step.traces) == 1
    assert of_theta(step).reason == "2 of 5 routes fell back with it, more than 20%"


async def test_a_theta_that_nobody_could_be_asked_about_is_not_kept():
    _, step = await run(about(3, EndpointDown("gone")))
    assert of_theta(step).reason == "3 of 5 routes could not be tried with it"
    _, step = await run(about(2, EndpointDown("gone")))
    assert of_theta(step).kept


async def test_half_of_a_batch_is_enough_to_try_a_theta_on():
    settings = config(
        explore=ENCODED, encoder={"max_fallback": 0.2}, update={"batch_size": 4, "epochs": 1}
    )
    lost = drifting(about(2, EndpointDown("gone")))
    (step,) = await World(settings, ScriptedLM().reply_with(lost)).run(examples(4))
    assert of_theta(step).kept


async def test_a_reached_budget_is_no_fallback():
    with pytest.raises(BudgetReached):
        await run(about(1, BudgetReached("spent")))


async def test_what_is_refused_is_not_judged_by_the_rule_that_follows():
    """`improve` runs the batch again under what is left: never under the refused θ."""
    world, step = await run(about(5, "prose"), accept="improve", accept_on="batch")
    assert step.parameters.encoder == "theta 0"
    prompts = [said(r) for r in world.asked("encoder")]
    assert sum(text.startswith(DRIFTED) for text in prompts) == 2 * BATCH
    assert sum(text.startswith("theta 0") for text in prompts) == 2 * BATCH


async def test_a_run_whose_encoder_drifts_goes_on_routing():
    """Unguarded, θ drifts in the first step and every later route is a fallback."""

    async def fallbacks(most: float) -> list[bool]:
        settings = config(
            explore=ENCODED,
            encoder={"max_fallback": most},
            update={"batch_size": BATCH, "epochs": 3},
        )
        world = World(settings, ScriptedLM().reply_with(drifting(about(5, "prose"))))
        steps = await world.run(examples(BATCH), parameters())
        return [t.rollout.route.fallback for s in steps for t in s.traces if t.rollout.route]

    assert await fallbacks(1.0) == [False] * BATCH + [True] * 2 * BATCH
    assert await fallbacks(0.2) == [False] * 3 * BATCH
