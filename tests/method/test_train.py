"""The loop in minibatch mode: batches, r̄, Θ from the start, and independence of reply order."""

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
    LMError,
    StoreError,
    TooManyFailures,
)
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.failures import gather_all
from promptcodebook.method.state import RoutingStatistics, Schedule, State
from promptcodebook.method.train import train
from promptcodebook.types import Example, Gradients, Step
from tests.build.method import (
    ENCODED,
    Shuffled,
    World,
    answering,
    attributed,
    book,
    config,
    examples,
    is_adversary,
    one_batch,
    parameters,
    routed,
    saying,
    sent,
    talkative,
    verdict,
)


async def test_a_batch_uses_theta_from_its_start_and_rewrites_each_variable_once():
    world = World(one_batch(explore=ENCODED, update={"epochs": 2, "steps_per_epoch": 1}))
    steps = await world.run(examples(5))
    seen = [r.messages[0].content for r in world.asked("encoder")]
    assert len(set(seen[:5])) == 1 and len(set(seen[5:])) == 1
    assert seen[0] != seen[5]
    assert steps[0].parameters.encoder in seen[5]
    assert all(text in seen[5] for text in steps[0].parameters.codebook.texts)
    assert [r.variable for r in steps[0].rewrites] == ["encoder", "generator", 0, 1, "critic"]
    assert len(world.asked("updater")) == 2 * 5
    assert all(len(r.gradient.splitlines()) == 5 for r in steps[0].rewrites)


async def test_explored_routes_of_a_batch_use_r_bar_from_its_start():
    """With α = 1 and reward 0, r̄ of c2 and c3 falls from 1 to -1 at the batch's first example."""
    explore = {"epsilon_min": 1.0, "tau": 0.01, "alpha": 1.0, "gamma": 1.0}
    world = World(one_batch(explore=explore), saying("executor", "0"))
    state = State(0, parameters(), RoutingStatistics((0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 1, 1)))
    (step,) = await world.run(examples(5), state=state)
    assert [t.rollout.route.indices for t in step.traces if t.rollout.route] == [(2, 3)] * 5
    assert step.ema == pytest.approx((0, 0, -0.4, -0.4))


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


# Whom each example's complaint is laid at, and what is said of it.
BLAMED = {
    "input 0": attributed(routing="say it of input 0"),
    "input 1": attributed(rendering="say it of input 1"),
    "input 2": attributed(instincts={1: "say it of input 2"}),
    "input 3": attributed(instincts={3: "say it of input 3"}),
    "input 4": attributed(instincts={1: "say it of input 4"}),
}
SCORES = {"input 0": 0.1, "input 1": 0.2, "input 2": 0.3, "input 3": 0.4, "input 4": 0.6}


def telling(request: Request) -> Scripted:
    """Routes to 1 and 3; complains of each example in words of its own, and blames one part."""
    about = next((name for name in BLAMED if name in sent(request)), "")
    match request.role:
        case "encoder":
            return routed(1, 3)
        case "critic":
            return verdict(SCORES[about], f"a complaint of {about}")
        case "attribution":
            assert f"a complaint of {about}" in sent(request), "another example's feedback"
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
    done.clear()
    cancelled = asyncio.create_task(gather_all([later(1, 5, done), later(2, 5, done)]))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert done == [] and asyncio.all_tasks() == {asyncio.current_task()}, "none is left running"


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
    step = await world.step(start)
    assert [r.variable for r in step.rewrites] == variables
    for name in ("encoder", "generator", "critic"):
        assert (getattr(step.parameters, name) != getattr(start, name)) == (name in variables)
    assert step.parameters.codebook[1].text == "rule one"
    assert len(world.asked("encoder")) == 5
    assert bool(world.adversary_calls) == ("critic" in variables)
    verbatim = "compose" in tree
    prompt = "You are terse.\n\nrule zero\nrule one" if verbatim else "Follow the rules."
    assert {t.rollout.prompt for t in step.traces} == {prompt}
    assert bool(world.asked("generator")) != verbatim


async def test_without_text_updates_the_critic_still_gives_the_penalty():
    """Decision 19: text_updates = false leaves Θ alone; r̄ still takes r - ρ = 0.1."""
    settings = one_batch(explore={**ENCODED, "alpha": 1.0}, update={"text_updates": False})
    world = World(settings)
    step = await world.step()
    assert step.parameters == parameters() and step.rewrites == ()
    assert step.ema == pytest.approx((0.1, 0.1, 0, 0))
    assert step.success == pytest.approx((0.5, 0.5, 0, 0))
    assert world.adversary_calls == [] and world.asked("attribution") == []


async def test_exploration_can_be_switched_off():
    """Decision 6: explore.policy = none is ε = 0."""
    step = await World(one_batch(explore={"policy": "none", "epsilon": 1.0})).step()
    assert step.epsilon == 0.0
    assert not any(t.rollout.route and t.rollout.route.explored for t in step.traces)


async def test_rewards_are_rescaled_for_the_averages():
    """Decision 5: 0 in the range -1..1 is 0.5; full is 1."""
    settings = one_batch(explore={**ENCODED, "alpha": 1.0}, reward_range=(-1.0, 1.0))
    step = await World(settings, saying("executor", "0")).step()
    assert step.success[0] == pytest.approx(0.5)
    assert step.traces[0].rollout.reward == 0.0 and step.traces[0].unit == 0.5
    assert step.ema[0] == pytest.approx(0.5 - 0.4)


async def test_tasks_without_references_learn_from_the_score_alone():
    """Decision 22: the critic is told that there is no y*, and ρ rests on its score."""
    world = World(one_batch(explore={**ENCODED, "alpha": 1.0}))
    (step,) = await world.run([replace(x, target=None) for x in examples(5)])
    assert step.ema[0] == pytest.approx(0.5 - 0.4)
    assert all("There is no reference answer" in sent(r) for r in world.asked("critic"))
    assert not any("Reference answer" in sent(r) for r in world.asked("critic"))


# What the loop does when calls fail or must stop (decision 15).


DOWN = EndpointDown("nothing answers")
LATE = CallTimeout("no reply in time")


@pytest.mark.parametrize(("role", "error", "stage"), [
    ("encoder", EndpointDown("gone", role="encoder"), "route"),
    ("generator", EndpointDown("gone", role="generator"), "compose"),
    ("generator", DOWN, "prompt"), ("executor", DOWN, "execute"), ("executor", "none", "reward"),
])  # fmt: skip
async def test_a_failed_rollout_is_named_after_its_call_and_joins_no_update_and_no_average(
    role: str, error: Exception | str, stage: str
):
    """Decision 15: a bad rollout is data; the four others are learned from."""
    world = World(one_batch(explore=ENCODED), saying(role, error, "input 2"))
    step = await world.step()
    (bad,) = [t for t in step.traces if t.rollout.failure]
    failure = bad.rollout.failure
    assert failure is not None and (bad.rollout.example_id, failure.stage) == ("x2", stage)
    assert failure.kind == ("ValueError" if stage == "reward" else "EndpointDown")
    assert stage != "reward" or "ValueError: could not convert" in failure.traceback
    assert bad.rollout.reward is None and bad.verdict is None
    assert step.selected == (4, 4, 0, 0)
    assert len(world.asked("executor")) == (4 if stage in ("route", "compose", "prompt") else 5)
    assert len(world.asked("critic")) == 4
    assert all(len(r.gradient.splitlines()) == 4 for r in step.rewrites)


async def test_what_a_critic_attribution_or_adversary_fails_at_costs_nothing_else():
    """Decision 15. Without a verdict r̄ takes r alone (0.5, and 0.1 of the others); where the
    attribution fails ρ is known (1 - 0.6), and ψ learns from it; one malformed g_ψ must not throw
    away four good gradients."""
    settings = one_batch(explore={**ENCODED, "alpha": 0.5})
    step = await World(settings, saying("critic", "a teapot", "input 4")).step()
    (failed,) = [t for t in step.traces if t.failure is not None]
    assert failed.rollout.example_id == "x4" and failed.gradients == Gradients()
    ema = 0.0
    for trace in step.traces:
        ema += 0.5 * ((0.5 if trace is failed else 0.1) - ema)
    assert step.ema[0] == pytest.approx(ema)
    step = await World(settings, saying("attribution", "a teapot", "input 2")).step()
    (failed,) = [t for t in step.traces if t.failure is not None]
    assert failed.gradients.critic and replace(failed.gradients, critic="") == Gradients()
    assert all(t.verdict is not None and t.verdict.score == 0.6 for t in step.traces)
    assert step.ema[0] == pytest.approx(0.1 * (1 - 0.5**5))
    lm = ScriptedLM().reply_with(lambda r: "a teapot" if is_adversary(r) else talkative(r))
    step = await World(settings, lm).step()
    assert [t.failure.stage for t in step.traces if t.failure] == ["adversary"] * 5
    assert [r.variable for r in step.rewrites] == ["encoder", "generator", 0, 1]


@pytest.mark.parametrize(("role", "lost", "match"), [
    ("critic", DOWN, r"5 of 5 rollouts failed.*EndpointDown"),
    ("attribution", DOWN, r"5 of 5 rollouts failed.*EndpointDown"),
    ("critic", "a teapot", "5 of the last 5 critiques taught nothing; the first, at critique: P"),
    ("attribution", "a teapot", "5 of the last 5 critiques taught nothing; .* at attribute: Parse"),
    ("updater", DOWN, r"all 5 requests to the updater failed.*EndpointDown"),
    ("updater", LATE, r"5 of the last 5 rewrites.*update: CallTimeout"),
])  # fmt: skip
async def test_a_role_that_nobody_can_ask_or_understand_stops_the_run(
    role: str, lost: Scripted, match: str
):
    """Every rollout would be paid for, and nothing learned of any."""
    with pytest.raises(TooManyFailures, match=match) as caught:
        await World(one_batch(explore=ENCODED), saying(role, lost)).step()
    assert role == "updater" or all(t.failure for t in caught.value.traces)


@pytest.mark.parametrize(("count", "failed", "mode"), [
    (5, 3, "minibatch"), (3, 2, "minibatch"), (1, 1, "minibatch"), (5, 3, "online"),
])  # fmt: skip
async def test_a_batch_that_mostly_fails_stops_with_the_first_error_and_one_of_half_goes_on(
    count: int, failed: int, mode: str
):
    """Decision 15: x1, x3 and x5 of x1..x5; x1 and x3 of x1..x3; x1 alone."""

    def execute(request: Request) -> Scripted | None:
        lost = EndpointDown(f"no answer to {request.messages[-1].content}")
        return lost if int(sent(request)[-1]) % 2 else None

    settings = config(update={"batch_size": count, "epochs": 1, "mode": mode})
    world = World(settings, answering(executor=execute))
    with pytest.raises(TooManyFailures, match=f"{failed} of .* rollouts failed") as error:
        await world.run(examples(count, 1))
    odd = [r for r in world.asked("executor") if sent(r)[-1] in "135"]
    assert f"EndpointDown: no answer to {odd[0].messages[-1].content}" in str(error.value)
    assert error.value.hint and len(odd) == failed
    goes_on = World(settings, answering(executor=execute))
    steps = await goes_on.run(examples(count))
    assert sum(t.rollout.failure is not None for s in steps for t in s.traces) == count // 2


async def test_failures_are_counted_over_the_last_batch_s_worth():
    """One of five in each of five epochs never adds up; few critiques a batch do, where most are
    solved; and fewer examples than a batch are a whole one."""
    for mode in ("minibatch", "online"):
        settings = config(update={"batch_size": 5, "mode": mode, "epochs": 5})
        steps = await World(settings, saying("executor", DOWN, "input 2")).run(examples(5))
        failed = [t for s in steps for t in s.traces if t.rollout.failure is not None]
        assert len(failed) == 5
    settings = config(update={"mode": "online", "batch_size": 6, "epochs": 12})
    world = World(settings, saying("critic", "a teapot"))
    with pytest.raises(TooManyFailures, match="4 of the last 4 critiques"):
        await world.run(examples(6))
    assert len(world.asked("critic")) == 2 * 4, "each is asked once more for the right form"
    settings = config(explore=ENCODED, update={"batch_size": 12, "epochs": 3})
    world = World(settings, saying("executor", DOWN))
    with pytest.raises(TooManyFailures):
        await world.run(examples(3))
    assert len(world.asked("executor")) == 3


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
            fails = request.role == role and not is_adversary(request) and draw < 7
            lost = "a teapot" if role == "critic" else LATE
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


class Stopping:
    """An LM that raises for one request at once while every other takes its time."""

    def __init__(self, inner: LM, error: Exception, when: str, role: str) -> None:
        self.finished: list[Request] = []
        self.running = 0
        self._inner, self._error, self._when, self._role = inner, error, when, role

    async def __call__(self, request: Request) -> Reply:
        if request.role == self._role and self._when in sent(request):
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
    with pytest.raises(type(error)):
        await World(one_batch(explore=ENCODED), saying(role, error)).step()
