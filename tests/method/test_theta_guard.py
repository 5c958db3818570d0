"""θ must go on routing (decisions 23, 28): a rewritten θ is on trial on the next batch's routes."""

from collections.abc import Callable
from typing import Any

import pytest

from promptcodebook import types
from promptcodebook.calls import Request
from promptcodebook.errors import BudgetReached, EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import State
from tests.build.method import (
    ENCODED,
    Shuffled,
    World,
    config,
    examples,
    routed,
    sent,
    talkative,
)

DRIFTED = "Tell the encoder to write prose."
BATCH = 5


def drifting(
    broken: Callable[[Request], Scripted | None], theta: str = DRIFTED
) -> Callable[[Request], Scripted]:
    """A model that rewrites θ to `theta`; of its routes under it, `broken` says which are odd."""

    def reply(request: Request) -> Scripted:
        if request.role == "updater" and "directive of the encoder" in sent(request):
            return theta
        if request.role == "encoder" and sent(request).startswith(theta):
            odd = broken(request)
            return routed(0, 1) if odd is None else odd
        return talkative(request)

    return reply


def about(count: int, reply: Scripted) -> Callable[[Request], Scripted | None]:
    """Odd routes for the first `count` inputs."""
    names = [f"input {i}" for i in range(count)]
    return lambda request: reply if any(n in sent(request) for n in names) else None


def guarded(most: float = 0.2, steps: int = 2, explore: dict[str, Any] = ENCODED, **tree: Any):
    update = {"batch_size": BATCH, "epochs": steps, "shared_by": 1, **tree}
    return config(explore=explore, encoder={"max_fallback": most}, update=update)


async def run(
    broken: Callable[[Request], Scripted | None], **tree: Any
) -> tuple[World, list[types.Step]]:
    """Step 0 rewrites θ to one that drifts; the steps after it try that."""
    world = World(guarded(**tree), ScriptedLM().reply_with(drifting(broken)))
    return world, await world.run(examples(BATCH))


def of_theta(step: types.Step) -> types.Rewrite:
    (rewrite,) = [r for r in step.rewrites if r.variable == "encoder"]
    return rewrite


def fallbacks(step: types.Step) -> list[bool]:
    return [t.rollout.route.fallback for t in step.traces if t.rollout.route]


@pytest.mark.parametrize(("odd", "most", "passes"), [
    (0, 0.2, True), (1, 0.2, True), (2, 0.2, False), (5, 0.2, False), (2, 0.4, True),
])  # fmt: skip
async def test_theta_is_taken_back_when_more_than_a_fifth_of_its_first_routes_fall_back(
    odd: int, most: float, passes: bool
):
    """1 of 5 is a fifth; 2 of 5 is more. Then that batch is routed again under the old one."""
    world, (first, second) = await run(about(odd, "I would rather talk."), most=most)
    assert of_theta(first).kept and first.parameters.encoder == DRIFTED
    assert first.trial == types.ThetaTrial("theta 0")
    assert sum(fallbacks(second)) == (odd if passes else 0)
    counted = world.tally["route_fallbacks"], world.tally["route_repairs"]
    assert counted == (sum(fallbacks(second)),) * 2, "what was routed in vain is none of the run's"
    assert world.tally["encoder_refused"] == (not passes)
    # The trial takes no call of its own; what is taken back is asked once more, and routed again.
    assert len(world.asked("encoder")) == 2 * BATCH + odd + (0 if passes else BATCH)
    if passes:
        return
    reason = f"with it, {odd} of 5 routes fell back, more than 20%"
    back = types.Rewrite("encoder", DRIFTED, "theta 0", "", True, reason, origin="trial")
    assert of_theta(second) == back, "and no other rewrite of θ in that step"
    assert second.parameters.encoder == "theta 0" and second.trial is None
    assert len([r for r in second.rewrites if r.kept]) > 1, "the others stay"


@pytest.mark.parametrize("odd", [3, 5])
async def test_theta_goes_on_being_on_trial_while_all_routes_are_explored(odd: int):
    """At the start of a run they are; θ may not drift unseen, and is tried when it first routes."""
    first = {"epsilon": 1.0, "epsilon_min": 0.0, "gamma": 0.0}
    more = {"steps_per_epoch": 2, "encoder_on_explored": True}
    _, steps = await run(about(odd, "prose"), explore=first, **more)
    assert [s.trial for s in steps[:2]] == [types.ThetaTrial("theta 0")] * 2
    assert steps[2].parameters.encoder == "theta 0" and not any(fallbacks(steps[2]))


@pytest.mark.parametrize(("odd", "kept"), [(3, True), (4, False), (5, False)])
async def test_a_theta_that_routes_badly_may_be_rewritten_to_one_that_routes_less_badly(
    odd: int, kept: bool
):
    """Four of five fall back under θ as it is: three of five is better, four or five are not."""

    def reply(request: Request) -> Scripted:
        under_old = request.role == "encoder" and sent(request).startswith("theta 0")
        if under_old:
            return about(4, "prose")(request) or talkative(request)
        return drifting(about(odd, "prose"))(request)

    first, second = await World(guarded(), ScriptedLM().reply_with(reply)).run(examples(BATCH))
    assert first.trial == types.ThetaTrial("theta 0", share_before=0.8)
    assert (of_theta(second).origin == "trial") == (not kept)


async def test_one_fallback_takes_no_theta_back_in_online_mode_and_two_do():
    """There a batch is one example, of which one fallback is more than a fifth."""
    for odd, reasons in ((1, []), (3, ["with it, 2 of "])):
        _, steps = await run(about(odd, "prose"), mode="online", steps=1)
        back = [r.reason[:14] for s in steps for r in s.rewrites if r.origin == "trial"]
        assert back == reasons


async def test_an_input_that_could_not_be_routed_counts_on_neither_side():
    lost = drifting(lambda r: EndpointDown("gone") if "input 0" in sent(r) else None)
    _, second = await World(guarded(), ScriptedLM().reply_with(lost)).run(examples(BATCH))
    failed = [t.rollout.failure for t in second.traces if t.rollout.failure is not None]
    assert [f.kind for f in failed] == ["EndpointDown"]
    assert all(r.origin != "trial" for r in second.rewrites)
    with pytest.raises(BudgetReached):
        await run(about(1, BudgetReached("spent")))


async def test_a_run_whose_encoder_drifts_goes_on_routing_and_the_same_wherever_it_was_stopped():
    """Unguarded, θ drifts in the first step and every later route is a fallback."""
    _, free = await run(about(5, "prose"), most=1.0, steps=4)
    assert [any(fallbacks(s)) for s in free] == [False, True, True, True]
    world, steps = await run(about(5, "prose"), steps=4)
    assert not any(any(fallbacks(s)) for s in steps)
    for done in range(1, 4):
        state = State.after(steps[done - 1])
        lm = Shuffled(ScriptedLM().reply_with(drifting(about(5, "prose"))), seed=done)
        again = World(world.config, wrap=lambda _, lm=lm: lm)
        assert await again.run(examples(BATCH), state=state) == steps[done:]
