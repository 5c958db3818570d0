"""The forward pass (Eqs. 3-5), stages, and the guard of the untrusted role (decision 13)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from promptcodebook.calls import LM, Chat, Message, Reply, Request
from promptcodebook.errors import BudgetReached, ConfigError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.policy import Deployed, Exploring, FixedPrompt, join_prompts
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.randomness import Draws
from promptcodebook.routing.ranking import BUCKETS
from promptcodebook.types import Example, Output, Prompt, Ranking, Route, Score, Stage
from tests.method.build import World, book, config, parameters, said, talkative

X = Example("x", "the input", "the target")
DRAWS = Draws(0, 0, "x")
STANDING = RoutingStatistics((0.1, 0.9, 0.3, 0.9), (0.0,) * 4, (1,) * 4)


def deployed(world: World, theta: str = "theta 0") -> Deployed:
    return Deployed(world.composer, parameters(encoder=theta), STANDING)


async def test_route_compose_execute_and_reward():
    world = World(config())
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert [r.role for r in world.lm.history] == ["encoder", "generator", "executor"]
    assert rollout.route is not None and rollout.route.indices == (0, 1)
    assert (rollout.prompt, rollout.output, rollout.reward) == ("Follow the rules.", "0.5", 0.5)
    assert said(world.lm.history[2]) == "Follow the rules.\nthe input"
    assert rollout.usage.calls == 3 and rollout.failure is None
    assert "stage of the work" not in said(world.lm.history[1]), "one prompt for all of it"
    unscored = await roll_out(FixedPrompt("p"), Trial(world.program, None, world.lm), X, DRAWS)
    assert (unscored.output, unscored.reward, unscored.failure) == ("0.5", None, None)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
async def test_in_training_routing_and_composing_are_paid_for_too(epsilon: float):
    """An explored route asks no encoder."""
    world = World(config())
    state = State(0, parameters(), STANDING)
    training = Exploring(world.composer, world.learner.router, state, epsilon)
    route, _, usage = await training.prompt(X, DRAWS)
    assert route is not None and route.explored == bool(epsilon)
    assert usage.calls == len(world.lm.history) == (1 if epsilon else 2)


async def test_without_an_encoder_a_policy_takes_the_entries_of_highest_r_bar():
    """Decision 19: r̄ is 0.9 at c1 and c3."""
    world = World(config(encoder={"mode": "none"}))
    rollout = await roll_out(deployed(world, theta=""), world.trial, X, DRAWS)
    assert rollout.route is not None and rollout.route.indices == (1, 3)
    assert world.asked("encoder") == []


async def test_a_ranking_reads_the_texts_that_stand_in_the_codebook_now():
    """By likeness alone: to rewritten texts an input is like in another way."""
    ranking = Ranking((1.0,) * BUCKETS, 1.0, ((0,) * BUCKETS,) * 5, (0.0,) * 5, likeness=1.0)
    learned = replace(STANDING, ranking=ranking)
    composer = World(config(select=1)).composer
    texts = ("of rivers", "of bridges", "of clocks", "of bread")
    for turned in (texts, texts[::-1], texts):
        now = parameters(book(*turned))
        route, _, usage = await composer.route(now, learned, replace(X, input="bridges"), DRAWS)
        assert [turned[k] for k in route.indices] == ["of bridges"] and usage.calls == 0


async def test_what_is_answered_with_a_fixed_prompt():
    """It asks the executor alone; chat messages are the conversation."""
    world = World(config())
    rollout = await roll_out(FixedPrompt("Be brief."), world.trial, X, DRAWS)
    assert [r.role for r in world.lm.history] == ["executor"]
    assert rollout.route is None and rollout.prompt == "Be brief."
    world = World(config())
    turns = (Message("user", "hi"), Message("assistant", "yes?"), Message("user", "go"))
    await roll_out(FixedPrompt("p"), world.trial, Example("x", "hi yes? go", messages=turns), DRAWS)
    assert world.lm.history[0].messages == (Message("system", "p"), *turns)


async def test_an_executor_of_one_s_own_may_return_text_or_stages():
    """A failed execution still says what it cost."""

    async def text(prompt: str, example: Example, lm: Chat) -> str:
        return "0.25"

    async def staged(prompt: str, example: Example, lm: Chat) -> Output:
        first = await lm("one", system=prompt)
        second = await lm("two", system=prompt)
        return Output(second.text, (Stage("first", "one", first.text),))

    plain = World(config(), executor=text)
    assert (await roll_out(FixedPrompt("p"), plain.trial, X, DRAWS)).reward == 0.25
    world = World(config(), executor=staged)
    rollout = await roll_out(FixedPrompt("p"), world.trial, X, DRAWS)
    assert rollout.stages == (Stage("first", "one", "0.5"),) and rollout.usage.calls == 2
    assert len({r.sample for r in world.lm.history}) == 2

    async def half(prompt: str, example: Example, lm: Chat) -> str:
        await lm("one", system=prompt)
        raise RuntimeError("agent broke")

    world = World(config(), executor=half)
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert rollout.failure is not None and rollout.failure.kind == "RuntimeError"
    assert rollout.usage.calls == 3 and rollout.prompt == "Follow the rules."


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
async def test_what_a_program_asks_is_sent_as_it_stands_and_drawn_by_its_purpose(order):
    """Nothing is put before a message without a system prompt; the order of calls is free."""

    async def program(prompt: Prompt, example: Example, lm: Chat) -> Output:
        for text in order:
            await lm(text, purpose=text)
        return Output("0.5")

    world = World(config())
    await roll_out(FixedPrompt("p"), Trial(program, None, world.lm), X, DRAWS)
    assert [r.messages for r in world.lm.history] == [(Message("user", t),) for t in order]
    samples = {said(r): r.sample for r in world.lm.history}
    assert samples == {t: DRAWS.sample(f"execute {t}") for t in ("one", "two")}


@pytest.mark.parametrize(("chat", "output"), [(True, False), (False, True), (False, False)])
async def test_a_rollout_is_cut_where_a_call_or_the_program_s_output_is(chat: bool, output: bool):
    async def program(prompt: Prompt, example: Example, lm: Chat) -> Output:
        return Output((await lm("x")).text, truncated=output)

    lm = ScriptedLM().enqueue(Reply("0.5", finish="length" if chat else "stop"))
    rollout = await roll_out(FixedPrompt("p"), Trial(program, None, lm), X, DRAWS)
    assert rollout.truncated == (chat or output)


async def test_fields_that_a_run_could_not_keep_are_a_failure_and_plain_ones_reach_the_reward():
    def agent(fields: dict[str, object]):
        async def run(prompt: str, example: Example, lm: Chat) -> Output:
            return Output("0.5", fields=fields)

        return run

    async def scorer(example: Example, output: Output) -> Score:
        return Score(len(output.fields) / 4)

    kept = World(config(), executor=agent({"titles": ["a", "b"]}), scorer=scorer)
    rollout = await roll_out(FixedPrompt("p"), kept.trial, X, DRAWS)
    assert (rollout.reward, rollout.fields) == (0.25, {"titles": ["a", "b"]})
    odd: list[tuple[object, str]] = [({"odd": value}, "not JSON") for value in ({1}, float("nan"))]
    for fields, reason in [*odd, (None, "not a mapping"), ([], "not a mapping")]:
        world = World(config(), executor=agent(cast("dict[str, object]", fields)))
        rollout = await roll_out(FixedPrompt("p"), world.trial, X, DRAWS)
        assert rollout.failure is not None and reason in rollout.failure.message


async def test_a_stop_is_no_failure():
    world = World(config(), ScriptedLM().enqueue(BudgetReached("spent")))
    with pytest.raises(BudgetReached):
        await roll_out(FixedPrompt("p"), world.trial, X, DRAWS)


def leaking(how: str):
    """Executors that hand the composed prompt to the untrusted role, each in its own way."""

    async def run(prompt: str, example: Example, lm: Chat) -> str:
        match how:
            case "system":
                reply = await lm("request", system=prompt, role="untrusted")
            case "text":
                reply = await lm(f"request, {prompt}, more", role="untrusted")
            case "messages":
                turns = [Message("user", "a"), Message("assistant", prompt)]
                reply = await lm(turns, role="untrusted")
            case _:
                rewritten = await lm(example.input, system=prompt)
                reply = await lm(rewritten.text, role="untrusted")
        return reply.text

    return run


@pytest.mark.parametrize("how", ["system", "text", "messages"])
async def test_the_composed_prompt_never_reaches_the_untrusted_role(how: str):
    """Decision 13: the generator has seen the private input. Found letter for letter."""
    odd = "It's \"two\"\nlines \\ of {text}.\n\nAnd 'another' paragraph."
    lm = ScriptedLM().reply_with(lambda r: odd if r.role == "generator" else talkative(r))
    world = World(config(), lm, executor=leaking(how))
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert world.asked("untrusted") == [] and rollout.failure is not None
    assert rollout.failure.kind == ConfigError.__name__
    assert "untrusted role" in rollout.failure.message


async def test_the_untrusted_role_gets_what_a_trusted_stage_rewrote():
    """Decision 13: its own request goes through."""
    lm = ScriptedLM().reply_with(lambda r: "0.75" if r.role == "untrusted" else talkative(r))
    world = World(config(), lm, executor=leaking("no"))
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert rollout.reward == 0.75 and said(world.asked("untrusted")[0]) == "0.5"


def per_stage(request: Request) -> Scripted:
    if request.role != "generator":
        return talkative(request)
    return f"Prompt for {'ask' if 'work: ask' in said(request) else 'check'}."


class Counting:
    """An LM that knows how many of its calls ran side by side."""

    def __init__(self, inner: LM) -> None:
        self.inner, self.running, self.most = inner, 0, 0

    async def __call__(self, request: Request) -> Reply:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        return await self.inner(request)


async def test_compose_per_stage_makes_one_prompt_for_each_stage():
    """Decision 13: routed once, composed once a stage, and the critic reads what was used."""

    async def staged(prompt: Prompt, example: Example, lm: Chat) -> str:
        await lm("q", system=prompt.of("ask"))
        return (await lm("r", system=prompt.of("check"))).text

    stages, lm = ("ask", "check"), Counting(ScriptedLM().reply_with(per_stage))
    tree = config(compose_per_stage=True)
    world = World(tree, executor=staged, stages=stages, wrap=lambda _: lm)
    world.lm = lm.inner
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert len(world.asked("encoder")) == 1 and len(world.asked("generator")) == lm.most == 2
    asked = [said(r) for r in world.asked("executor")]
    assert asked == ["Prompt for ask.\nq", "Prompt for check.\nr"]
    assert rollout.prompt == "ask: Prompt for ask.\n\ncheck: Prompt for check."


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("ask: 1.\n\n2.\n\ncheck: 3: 4.", {"ask": "1.\n\n2.", "check": "3: 4."}),
        ("ask: \n\ncheck: ", {"ask": "", "check": ""}),
        ("Be brief.", {}),
        ("ask: One.", {}),
        ("check: One.\n\nask: Two.", {}),
        ("ask: One. check: Two.", {}),
    ],
)  # fmt: skip
def test_the_prompts_of_stages_are_read_out_of_the_whole(text: str, stages: dict[str, str]):
    """What is none of `of_stages` is for all stages."""
    read = Prompt.read(text, ("ask", "check"))
    assert read == Prompt(text, stages)
    assert not stages or Prompt.of_stages(read.stages) == read
    assert Prompt.read(text, ()) == Prompt(text)


# G_φ and composition (decisions 4, 12 and 15).


async def compose(
    *replies: str | Reply | Exception, output_format: str = "", **tree
) -> tuple[World, str]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies), output_format=output_format)
    prompt, _ = await world.composer.compose(parameters(), Route((1, 3)), X, DRAWS)
    return world, prompt.text


async def test_the_generator_sees_the_selected_instincts_by_index_and_the_input():
    """Assumption 1: the entry index stands in the composition template."""
    world, text = await compose("Follow rule one.")
    seen = said(world.lm.history[0])
    assert text == "Follow rule one."
    assert seen.startswith("phi")
    assert "[1] rule one\n[3] rule three" in seen and "rule two" not in seen
    assert seen.endswith("the input")


async def test_the_base_prompt_stands_word_for_word_before_the_composed_one():
    _, text = await compose("Composed.", base_prompt="Base {x}\n## user")
    assert text == "Base {x}\n## user\n\nComposed."
    assert join_prompts("", "b") == "b" and join_prompts("a", "") == "a"
    _, text = await compose('Here is the system prompt:\n\n"Follow rule one."', base_prompt="Base.")
    assert text == "Base.\n\nFollow rule one."


async def test_our_template_asks_for_the_task_s_own_format_and_the_paper_s_for_the_answer_only():
    """Decision 4."""
    ours, _ = await compose("p", output_format="The answer ends in \\boxed{}.")
    paper, _ = await compose("p", output_format="The answer ends in \\boxed{}.", templates="paper")
    assert "The answer ends in \\boxed{}." in said(ours.lm.history[0])
    seen = said(paper.lm.history[0])
    assert "boxed" not in seen
    assert "concise final answer alone, never its reasoning" in seen


@pytest.mark.parametrize(("reply", "fault"), [
    (Reply("Follow the", finish="length"), "it was cut at its length limit"),
    ("", "it holds no text"), ("  \n", "it holds no text"),
    ("<think>nothing but thoughts", "it holds no text but thoughts"),
])  # fmt: skip
async def test_a_prompt_that_is_cut_or_empty_is_asked_for_once_more(reply: str | Reply, fault: str):
    world, text = await compose(reply, "Follow rule one.")
    first, second = world.lm.history
    assert text == "Follow rule one." and world.tally["prompt_fallbacks"] == 0
    assert second.messages[: len(first.messages)] == first.messages
    assert fault in second.messages[-1].content and first.sample != second.sample


@pytest.mark.parametrize("reply", ["", "<think>nothing", Reply("Follow the", finish="length")])
async def test_without_a_usable_reply_the_instincts_stand_in_verbatim(reply: str | Reply):
    """A weak model, and a deployed policy, must answer anyway, in the format that is scored."""
    lm = ScriptedLM().enqueue(reply, reply)
    world = World(config(base_prompt="Base."), lm, output_format="End in \\boxed{}.")
    prompt, usage = await world.composer.compose(parameters(), Route((1, 3)), X, DRAWS)
    assert prompt.text == "Base.\n\nrule one\nrule three\n\nEnd in \\boxed{}."
    assert usage.calls == 2 == len(lm.history) and world.tally["prompt_fallbacks"] == 1


async def test_a_stage_is_named_and_drawn_apart():
    world = World(config(), ScriptedLM().enqueue("a", "b"))
    for stages in ((), ("rewrite",)):
        composer = replace(world.composer, stages=stages)
        await composer.compose(parameters(), Route((0, 1)), X, DRAWS)
    whole, stage = world.lm.history
    named = "The prompt is for this stage of the work: rewrite"
    assert named in said(stage)
    assert said(stage).replace(named, "").split() == said(whole).split()
    assert whole.sample != stage.sample
