"""What the loop does when calls fail or must stop (decision 15)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from promptcodebook.calls import LM, Reply, Request
from promptcodebook.errors import (
    BudgetReached,
    CallTimeout,
    DiskFull,
    EndpointDown,
    Interrupted,
    StoreError,
    TooManyFailures,
)
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.failures import FailureWatch
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.train import train
from promptcodebook.types import Example, Failure, Gradients, Score, Step
from tests.method.build import (
    ENCODED,
    World,
    config,
    examples,
    is_own_gradient,
    one_batch,
    parameters,
    said,
    talkative,
)


def failing_for(example: str, error: Scripted, role: str = "executor") -> ScriptedLM:
    """A talkative model whose calls in one role fail when they are about one input."""

    def reply(request: Request) -> Scripted:
        about = request.role == role and not is_own_gradient(request)
        return error if about and example in said(request) else talkative(request)

    return ScriptedLM().reply_with(reply)


DOWN = EndpointDown("nothing answers")


async def test_a_failed_executor_joins_no_update_and_no_average():
    """Decision 15: a bad rollout is data; the four others are learned from."""
    world = World(one_batch(explore=ENCODED), failing_for("input 2", DOWN))
    (step,) = await world.run(examples(5))
    (bad,) = [t for t in step.traces if t.rollout.failure]
    assert bad.rollout.failure is not None
    assert (bad.rollout.example_id, bad.rollout.failure.stage) == ("x2", "execute")
    assert (bad.rollout.failure.kind, bad.rollout.failure.message) == (
        "EndpointDown",
        "nothing answers",
    )
    assert bad.rollout.reward is None and bad.verdict is None
    assert step.selected == (4, 4, 0, 0)
    assert len(world.asked("critic")) == 4
    assert all(len(r.gradient.splitlines()) == 4 for r in step.rewrites)


async def test_a_reward_that_raises_fails_its_rollout_with_the_traceback():
    """Decisions 5 and 15: what leaves the range or raises is a failed rollout."""

    async def scorer(example: Example, output: str) -> Score:
        if example.id == "x1":
            raise ZeroDivisionError("no units")
        return Score(0.5)

    world = World(one_batch(explore=ENCODED), scorer=scorer)
    (step,) = await world.run(examples(5))
    (bad,) = [t.rollout for t in step.traces if t.rollout.failure]
    assert bad.failure is not None
    assert (bad.example_id, bad.failure.stage, bad.output) == ("x1", "reward", "0.5")
    assert "ZeroDivisionError: no units" in bad.failure.traceback
    assert step.selected == (4, 4, 0, 0)


@pytest.mark.parametrize(("role", "error", "stage"), [
    ("encoder", EndpointDown("gone", role="encoder"), "route"),
    ("generator", EndpointDown("gone", role="generator"), "compose"),
    ("generator", DOWN, "prompt"),
])  # fmt: skip
async def test_a_failure_is_named_after_the_call_that_failed(
    role: str, error: Exception, stage: str
):
    """Decision 15: what cannot be routed or composed is not executed."""
    world = World(one_batch(explore=ENCODED), failing_for("input 0", error, role))
    (step,) = await world.run(examples(5))
    (bad,) = [t.rollout for t in step.traces if t.rollout.failure]
    assert bad.failure is not None and bad.failure.stage == stage
    assert len(world.asked("executor")) == 4


async def test_a_truncated_prompt_is_never_executed_and_the_rollout_goes_on_without_it():
    """Decision 15: it is refused; the instincts stand in for it verbatim, and this is counted."""
    cut = Reply("Follow the", finish="length")
    world = World(one_batch(explore=ENCODED), failing_for("input 3", cut, "generator"))
    (step,) = await world.run(examples(5))
    assert not any(t.rollout.failure for t in step.traces)
    prompts = {t.rollout.example_id: t.rollout.prompt for t in step.traces}
    assert prompts.pop("x3") == "rule zero\nrule one"
    assert set(prompts.values()) == {"Follow the rules."}
    assert not any("Follow the\n" in said(r) for r in world.asked("executor"))
    assert world.tally["prompt_fallbacks"] == 1


async def test_a_failed_critic_leaves_the_reward_counted_and_nothing_to_learn():
    """Decision 15: r̄ takes r alone (0.5, and 0.1 of the others), no gradient comes of it."""
    settings = one_batch(explore={**ENCODED, "alpha": 0.5})
    lm = failing_for("input 4", "a teapot", "critic")
    (step,) = await World(settings, lm).run(examples(5))
    (failed,) = [t for t in step.traces if t.failure is not None]
    assert failed.rollout.example_id == "x4" and failed.gradients == Gradients()
    ema = 0.0
    for trace in step.traces:
        ema += 0.5 * ((0.5 if trace is failed else 0.1) - ema)
    assert step.ema[0] == pytest.approx(ema)


@pytest.mark.parametrize(("role", "stage"), [("critic", "critique"), ("attribution", "attribute")])
async def test_critics_that_are_mostly_not_understood_stop_the_run(role: str, stage: str):
    """45 of 45 of them once cost all 45 steps."""
    lm = ScriptedLM().reply_with(lambda r: "a teapot" if r.role == role else talkative(r))
    said = f"5 of the last 5 critiques taught nothing; the first, at {stage}: ParseError"
    with pytest.raises(TooManyFailures, match=said) as caught:
        await World(one_batch(explore=ENCODED), lm).run(examples(5))
    assert [t.failure.stage for t in caught.value.traces if t.failure] == [stage] * 5


async def test_few_critiques_a_batch_add_up_to_a_stop():
    """Where most answers are solved nobody critiques a whole batch at once."""
    asked = 0

    def lost(request: Request) -> Scripted:
        nonlocal asked
        if request.role != "critic":
            return talkative(request)
        asked += 1
        return "a teapot"

    settings = config(update={"mode": "online", "batch_size": 6, "epochs": 12})
    world = World(settings, ScriptedLM().reply_with(lost))
    with pytest.raises(TooManyFailures, match="4 of the last 4 critiques"):
        await world.run(examples(6))
    assert asked == 2 * 4, "each is asked once more for the right form"


async def test_a_rollout_without_a_reward_is_not_critiqued():
    """Nor does it count as a critique that taught something: four were asked for, and four lost."""
    lost = {"critic": "a teapot", "executor": DOWN}

    def reply(request: Request) -> Scripted:
        about = request.role == "critic" or "input 2" in said(request)
        return lost.get(request.role, talkative(request)) if about else talkative(request)

    world = World(one_batch(explore=ENCODED), ScriptedLM().reply_with(reply))
    with pytest.raises(TooManyFailures, match="4 of the last 4 critiques taught nothing"):
        await world.run(examples(5))
    assert not any("input 2" in said(r) for r in world.asked("critic"))


async def test_a_failed_attribution_keeps_the_verdict_its_penalty_and_the_critic_s_own_gradient():
    """Decision 15: ρ is known (1 - 0.6), so r̄ takes r - ρ = 0.1, and ψ learns from it."""
    settings = one_batch(explore={**ENCODED, "alpha": 0.5})
    lm = failing_for("input 2", "a teapot", "attribution")
    (step,) = await World(settings, lm).run(examples(5))
    (failed,) = [t for t in step.traces if t.failure is not None]
    assert failed.rollout.example_id == "x2"
    learned = failed.gradients
    assert learned.critic and replace(learned, critic="") == Gradients()
    assert all(t.verdict is not None and t.verdict.score == 0.6 for t in step.traces)
    assert step.ema[0] == pytest.approx(0.1 * (1 - 0.5**5))


async def test_a_failed_adversary_keeps_what_the_attribution_found():
    """One malformed g_ψ must not throw away four good gradients that are paid for."""
    lm = ScriptedLM().reply_with(lambda r: "a teapot" if is_own_gradient(r) else talkative(r))
    (step,) = await World(one_batch(explore=ENCODED), lm).run(examples(5))
    assert [t.failure.stage for t in step.traces if t.failure] == ["adversary"] * 5
    assert [r.variable for r in step.rewrites] == ["encoder", "generator", 0, 1]


def odd_ones_fail(request: Request) -> Scripted:
    odd = request.role == "executor" and int(said(request)[-1]) % 2 == 1
    lost = EndpointDown(f"no answer to {request.messages[-1].content}")
    return lost if odd else talkative(request)


@pytest.mark.parametrize("count", [1, 3, 4])
async def test_a_batch_of_which_half_fails_goes_on(count: int):
    """Decision 15: x1 and x3 of x0..x3, x1 of x0..x2, and none of x0."""
    lm = ScriptedLM().reply_with(odd_ones_fail)
    world = World(config(update={"batch_size": count, "epochs": 1}), lm)
    (step,) = await world.run(examples(count))
    assert sum(t.rollout.failure is not None for t in step.traces) == count // 2


@pytest.mark.parametrize(("count", "failed", "mode"), [
    (5, 3, "minibatch"), (3, 2, "minibatch"), (1, 1, "minibatch"), (5, 3, "online"),
])  # fmt: skip
async def test_a_batch_that_mostly_fails_stops_with_the_first_error(
    count: int, failed: int, mode: str
):
    """Decision 15: x1, x3 and x5 of x1..x5; x1 and x3 of x1..x3; x1 alone."""
    settings = config(update={"batch_size": count, "epochs": 1, "mode": mode})
    world = World(settings, ScriptedLM().reply_with(odd_ones_fail))
    with pytest.raises(TooManyFailures, match=f"{failed} of .* rollouts failed") as error:
        await world.run(examples(count, 1))
    odd = [r for r in world.asked("executor") if said(r)[-1] in "135"]
    assert f"EndpointDown: no answer to {odd[0].messages[-1].content}" in str(error.value)
    assert error.value.hint and len(odd) == failed


@pytest.mark.parametrize("role", ["critic", "attribution"])
async def test_a_critic_that_nobody_can_ask_stops_the_run(role: str):
    """Every rollout would be paid for, and nothing learned of any."""
    lm = ScriptedLM().reply_with(lambda r: DOWN if r.role == role else talkative(r))
    with pytest.raises(TooManyFailures, match=r"5 of 5 rollouts failed.*EndpointDown"):
        await World(one_batch(explore=ENCODED), lm).run(examples(5))


@pytest.mark.parametrize(("lost", "match"), [
    (DOWN, r"updater cannot be asked.*EndpointDown"),
    (CallTimeout("no reply in time"), r"5 of the last 5 rewrites.*update: CallTimeout"),
])  # fmt: skip
async def test_an_updater_that_nobody_can_ask_stops_the_run(lost: Exception, match: str):
    """So does one that is never there in time: most of a batch's rewrites lost is enough."""
    lm = ScriptedLM().reply_with(lambda r: lost if r.role == "updater" else talkative(r))
    with pytest.raises(TooManyFailures, match=match):
        await World(one_batch(explore=ENCODED), lm).run(examples(5))


@pytest.mark.parametrize("update", [{"batch_size": 5}, {"batch_size": 5, "mode": "online"}])
async def test_failures_far_apart_never_add_up_to_a_stop(update: dict[str, object]):
    """One of five in each of five epochs: five in all, but never most of a batch's worth."""
    settings = config(update={**update, "epochs": 5})
    steps = await World(settings, failing_for("input 2", DOWN)).run(examples(5))
    failed = [t for s in steps for t in s.traces if t.rollout.failure is not None]
    assert len(failed) == 5


async def walk(world: World, data: Sequence[Example], past: Sequence[Step]) -> list[Step]:
    """The steps until the run is stopped."""
    state = State.after(past[-1]) if past else State.first(parameters())
    schedule = Schedule(data, world.config.update, world.config.randomness)
    steps: list[Step] = []
    with pytest.raises(TooManyFailures):
        async for step in train(world.learner, schedule, state, past[::-1]):
            steps.append(step)
    return steps


@pytest.mark.parametrize("role", ["executor", "critic", "updater"])
@pytest.mark.parametrize("mode", ["online", "minibatch"])
async def test_a_run_that_goes_on_stops_where_it_would_have_stopped(role: str, mode: str):
    """What broke before a kill counts after it."""

    def world() -> World:
        def reply(request: Request) -> Scripted:
            draw = zlib.crc32(repr((request.messages[-1].content, request.sample)).encode()) % 16
            fails = request.role == role and not is_own_gradient(request) and draw < 7
            lost = "a teapot" if role == "critic" else CallTimeout("no reply in time")
            return lost if fails else talkative(request)

        size = 4 if mode == "online" else 3
        update = {"mode": mode, "batch_size": size, "epochs": 40}
        return World(config(update=update, explore=ENCODED), ScriptedLM().reply_with(reply))

    data = examples(6)
    whole = await walk(world(), data, ())
    assert whole
    for done in {*range(1, len(whole) + 1, 1 + len(whole) // 10), len(whole)}:
        rest = await walk(world(), data, whole[:done])
        assert [s.index for s in rest] == [s.index for s in whole[done:]], done


async def test_critiques_are_recalled_as_far_back_as_there_are_enough_of_them():
    """Most answers are solved, and critiqued by nobody: they fill the rollouts' window alone."""
    (step,) = await World(one_batch(explore=ENCODED)).run(examples(5))
    one = replace(step.traces[0], failure=None)
    lost = replace(one, unit=0.5, failure=Failure("critique", "ParseError", "no JSON"))
    solved = replace(one, unit=1.0)
    latest = replace(step, traces=(lost, solved, solved, solved), rewrites=())
    before = replace(step, traces=(lost, lost, solved, solved), rewrites=())
    watch = FailureWatch(4)
    watch.recall([latest, before], lambda trace: trace.unit != 1.0)
    with pytest.raises(TooManyFailures, match="3 of the last 3 critiques taught nothing"):
        watch.see_critiques(())


class Stopping:
    """An LM that raises for one request at once while every other takes its time."""

    def __init__(self, inner: LM, error: Exception, when: str, role: str) -> None:
        self.finished: list[Request] = []
        self.running = 0
        self._inner, self._error, self._when, self._role = inner, error, when, role

    async def __call__(self, request: Request) -> Reply:
        if request.role == self._role and self._when in said(request):
            raise self._error
        self.running += 1
        try:
            await asyncio.sleep(0.003)
            reply = await self._inner(request)
        finally:
            self.running -= 1
        self.finished.append(request)
        return reply


@pytest.mark.parametrize(("error", "when", "role", "finished"), [
    (BudgetReached("spent"), "input 0", "executor", {"attribution": 4, "executor": 4}),
    (Interrupted("ctrl-c"), "input 0", "executor", {"attribution": 4, "executor": 4}),
    (BudgetReached("spent"), "the directive of the encoder", "updater", {"updater": 4}),
    (BudgetReached("spent"), "Critic's verdict", "attribution", {"critic": 10, "updater": 0}),
])  # fmt: skip
async def test_a_stop_in_one_chain_lets_the_others_finish_first(
    error: Exception, when: str, role: str, finished: dict[str, int]
):
    """No call is left running, and nothing is rewritten after a stop."""
    lm = Stopping(ScriptedLM().reply_with(talkative), error, when, role)
    with pytest.raises(type(error)):
        await World(one_batch(explore=ENCODED), wrap=lambda _: lm).run(examples(5))
    assert lm.running == 0
    roles = [r.role for r in lm.finished]
    assert {each: roles.count(each) for each in finished} == finished
    assert role == "updater" or "updater" not in roles


@pytest.mark.parametrize("role", ["encoder", "generator", "executor", "critic", "updater"])
@pytest.mark.parametrize("error", [DiskFull("no space"), StoreError("locked")])
async def test_a_store_that_cannot_write_ends_the_run(role: str, error: Exception):
    """A journal that fails is no bad rollout: going on would lose paid replies."""
    lm = ScriptedLM().reply_with(lambda r: error if r.role == role else talkative(r))
    with pytest.raises(type(error)):
        await World(one_batch(explore=ENCODED), lm).run(examples(5))


async def test_fewer_examples_than_a_batch_are_a_whole_batch_to_what_stops_a_run():
    """Else a small task's failures would be waited for until there were a batch of them."""
    down = ScriptedLM().reply_with(
        lambda request: DOWN if request.role == "executor" else talkative(request)
    )
    world = World(config(explore=ENCODED, update={"batch_size": 12, "epochs": 3}), down)
    with pytest.raises(TooManyFailures):
        await world.run(examples(3))
    assert len(world.asked("executor")) == 3
