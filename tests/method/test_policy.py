"""The forward pass (Eqs. 3-5), stages, and the guard of the untrusted role (decision 13)."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.randomness import Draws, Randomness
from promptcodebook.calls import Chat, Message, Reply, Request, Usage
from promptcodebook.errors import BudgetReached, ConfigError, EndpointDown, LMError, Stop
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat, Evaluator, Trial, average, roll_out
from promptcodebook.method.exploration import Exploring
from promptcodebook.method.policy import (
    Deployed,
    FixedPrompt,
    join_prompts,
    repair_route,
    route_fault,
    route_schema,
)
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import load_templates
from promptcodebook.routing.ranking import BUCKETS, Embedder
from promptcodebook.types import (
    Example,
    Failure,
    Output,
    Prompt,
    PromptLength,
    Ranking,
    Rollout,
    Route,
    Score,
    Stage,
)
from tests.build.cases import table
from tests.build.method import World, book, config, examples, parameters, routed, sent, talkative

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
    assert sent(world.lm.history[2]) == "Follow the rules.\nthe input"
    assert rollout.usage.calls == 3 and rollout.failure is None
    assert "stage of the work" not in sent(world.lm.history[1]), "one prompt for all of it"
    state = State(0, parameters(), STANDING)
    training = Exploring(world.composer, world.router, state, 1.0)
    route, _, usage = await training.prompt(X, DRAWS)
    assert route is not None and route.explored and usage.calls == 1, "it asks no encoder"
    unscored = await roll_out(FixedPrompt("p"), Trial(world.program, None, world.lm), X, DRAWS)
    assert (unscored.output, unscored.reward, unscored.failure) == ("0.5", None, None)


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

    async def named(prompt: Prompt, example: Example, lm: Chat) -> Output:
        await lm("one", purpose="first")
        return Output((await lm("two", purpose="second")).text)

    world = World(config())
    await roll_out(FixedPrompt("p"), Trial(named, None, world.lm), X, DRAWS)
    assert [r.messages for r in world.lm.history] == [(Message("user", t),) for t in ("one", "two")]
    samples = [r.sample for r in world.lm.history]
    assert samples == [DRAWS.sample(f"execute {purpose}") for purpose in ("first", "second")]

    async def half(prompt: str, example: Example, lm: Chat) -> str:
        await lm("one", system=prompt)
        raise RuntimeError("agent broke")

    world = World(config(), executor=half)
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert rollout.failure is not None and rollout.failure.kind == "RuntimeError"
    assert rollout.usage.calls == 3 and rollout.prompt == "Follow the rules."


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


def per_stage(request: Request) -> Scripted:
    if request.role != "generator":
        return talkative(request)
    return f"Prompt for {'ask' if 'work: ask' in sent(request) else 'check'}."


async def test_compose_per_stage_makes_one_prompt_for_each_stage():
    """Decision 13: routed once, composed once a stage, and the critic reads what was used."""

    async def staged(prompt: Prompt, example: Example, lm: Chat) -> str:
        await lm("q", system=prompt.of("ask"))
        return (await lm("r", system=prompt.of("check"))).text

    tree, lm = config(compose_per_stage=True), ScriptedLM().reply_with(per_stage)
    world = World(tree, lm, executor=staged, stages=("ask", "check"))
    rollout = await roll_out(deployed(world), world.trial, X, DRAWS)
    assert len(world.asked("encoder")) == 1
    first, second = world.asked("generator")
    assert "The prompt is for this stage of the work: ask" in sent(first)
    assert first.sample != second.sample
    asked = [sent(r) for r in world.asked("executor")]
    assert asked == ["Prompt for ask.\nq", "Prompt for check.\nr"]
    assert rollout.prompt == "ask: Prompt for ask.\n\ncheck: Prompt for check."


@pytest.mark.parametrize(("text", "stages"), table(__file__, "stages"))
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
    chat = 'Here is the system prompt:\n\n"Follow rule one."'
    world, text = await compose(chat, base_prompt="Base {x}\n## user")
    seen = sent(world.lm.history[0])
    assert text == "Base {x}\n## user\n\nFollow rule one."
    assert join_prompts("", "b") == "b" and join_prompts("a", "") == "a"
    assert seen.startswith("phi")
    assert "[1] rule one\n[3] rule three" in seen and "rule two" not in seen
    assert seen.endswith("the input")


@pytest.mark.parametrize(("reply", "fault"), [
    (Reply("Follow the", finish="length"), "it was cut at its length limit"),
    ("", "it has no text"), ("  \n", "it has no text"),
    ("<think>nothing but thoughts", "it has no text, or only thoughts"),
    ("I'm sorry, but I can't help with that.", "it is a refusal"), ("[1]", "it is an index"),
])  # fmt: skip
async def test_a_prompt_that_is_cut_or_empty_is_asked_for_once_more(reply: str | Reply, fault: str):
    """Then the instincts take its place: a deployed policy must answer, in the scored format."""
    world, text = await compose(reply, "Follow rule one.")
    first, second = world.lm.history
    assert text == "Follow rule one." and world.tally["prompt_fallbacks"] == 0
    assert second.messages[: len(first.messages)] == first.messages
    assert fault in second.messages[-1].content and first.sample != second.sample
    world, text = await compose(
        reply, reply, output_format="End in \\boxed{}.", base_prompt="Base."
    )
    assert text == "Base.\n\nrule one\nrule three\n\nEnd in \\boxed{}."
    assert len(world.lm.history) == 2 and world.tally["prompt_fallbacks"] == 1


async def test_our_template_asks_for_the_task_s_own_format_and_the_paper_s_for_the_answer_only():
    """The paper's generator demands the bare answer, whatever form the task has."""
    ours, _ = await compose("p", output_format="The answer ends in \\boxed{}.")
    paper, _ = await compose("p", output_format="The answer ends in \\boxed{}.", templates="paper")
    assert "The answer ends in \\boxed{}." in sent(ours.lm.history[0])
    seen = sent(paper.lm.history[0])
    assert "boxed" not in seen
    assert "concise final answer alone, never its reasoning" in seen


# E_θ: routing, its faults and their repair (decision 10), and the order of its prompt (14).

GARBAGE = st.lists(st.integers(-(10**12), 10**12) | st.integers(-3, 20), max_size=40)
INPUT = Example("x", "an input")
MIXED = RoutingStatistics((0.1, 0.4, 0.4, -0.2), (0.2, 0.5, 0.6, 0.0), (3, 2, 1, 0))


@given(GARBAGE, st.lists(st.floats(-1, 1), min_size=1, max_size=18), st.data())
def test_any_list_becomes_s_valid_distinct_sorted_indices(indices, rates, data):
    """Decision 10: whatever the model wrote."""
    select = data.draw(st.integers(1, len(rates)))
    route = repair_route(indices, rates, select)
    assert len(route) == select and list(route) == sorted(set(route))
    assert all(0 <= k < len(rates) for k in route)
    assert route_fault(route, len(rates), select) is None
    valid = [k for k in dict.fromkeys(indices) if 0 <= k < len(rates)]
    assert set(valid[:select]) <= set(route)
    good = len(indices) == len(set(indices)) == select == len(valid)
    assert (route_fault(indices, len(rates), select) is None) == good
    # A fault names few indices, and says when there are more.
    assert route_fault([0, 0, 7], 4, 2) == (
        "selected_indices: [7] lie outside 0..3; an index is named twice; "
        "1 valid indices instead of 2"
    )
    many, eight = route_fault(range(1000), 4, 2) or "", route_fault(range(4, 12), 4, 2) or ""
    assert len(many) < 120 and "10, 11] and more lie outside" in many
    assert "10, 11] lie outside" in eight


async def route(*replies: str | Reply | Exception, **tree) -> tuple[World, Route]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies))
    found, _, _ = await world.composer.route(parameters(), MIXED, INPUT, Draws(0, 0, "x"))
    return world, found


async def test_a_good_route_is_sorted_and_keeps_its_reasons():
    """Decisions 2, 10: a route is sorted, indices run from 0; one re-ask quotes the fault. S and K
    are in the schema, in the order of the template."""
    exact = {"encoder": {"fewer": False}}
    world, found = await route(routed(3, 0), **exact)
    assert found == Route((0, 3), constraints=("c",), analysis="a")
    (request,) = world.lm.history
    assert request.schema == route_schema(2, 4, load_templates("default").sources["encoder"])
    assert request.schema.body["required"] == ["selected_indices"]
    fields = cast("dict[str, object]", request.schema.body["properties"])
    assert fields["selected_indices"] == {
        "type": "array", "minItems": 2, "maxItems": 2, "uniqueItems": True,
        "items": {"type": "integer", "enum": [0, 1, 2, 3]},
    }  # fmt: skip
    demand = {"type": "string", "maxLength": 80}
    assert fields["constraints"] == {"type": "array", "maxItems": 5, "items": demand}
    assert list(fields) == ["selected_indices", "constraints", "analysis"]
    for template, order in (
        (load_templates("paper").sources["encoder"], [1, 0, 2]),
        ('first "analysis", then "selected_indices"', [2, 0, 1]),
    ):
        properties = cast("dict[str, object]", route_schema(2, 4, template).body["properties"])
        assert list(properties) == [list(fields)[i] for i in order]
    world, found = await route(routed(3, 3), routed(2, 3))
    assert found.indices == (2, 3) and found.repaired and not found.fallback
    assert "an index is named twice" in world.lm.history[1].messages[-1].content
    assert world.tally["route_repairs"] == 1 and world.tally["route_fallbacks"] == 0


def test_all_before_the_input_is_the_same_for_every_input():
    """Decision 14: a server's prefix cache serves all but the input, and nothing follows it."""
    messages = World(config()).composer.messages
    first, second = (
        "\n".join(m.content for m in messages(parameters(), MIXED, task))
        for task in ("abc {theta}", "xyz")
    )
    prefix = first.removesuffix("abc {theta}")
    assert first != prefix and second == prefix + "xyz"
    assert "[3] rule three (untried)" in prefix
    assert "2 different integers from 0 to 3" in prefix


@pytest.mark.parametrize(
    "indices", ['["c1", "[3]"]', '"1, 3"', '{"1": "why", "3": "why"}', '[{"index": 1}, 3.0, null]']
)
async def test_a_route_is_read_however_it_is_written(indices: str):
    odd = f'{{"selected_indices": {indices}, "constraints": null, "analysis": ["a", "b"]}}'
    world, found = await route(odd)
    assert found == Route((1, 3), analysis="a b") and len(world.lm.history) == 1


@pytest.mark.parametrize(("reply", "indices", "fault"), [
    (routed(3, 8), (1, 3), "[8] lie outside 0..3; 1 valid indices instead of 2"),
    (routed(3, 3), (1, 3), "an index is named twice; 1 valid indices instead of 2"),
    ('{"selected_indices": null}', (1, 2), "0 valid indices instead of 2"),
    ("no json", (1, 2), "it was not of the form asked for"),
    (Reply('{"selected_indices": [1', finish="length"), (1, 2), "it was cut at its length limit"),
])  # fmt: skip
async def test_what_stays_wrong_keeps_its_valid_picks(
    reply: str | Reply, indices: tuple[int, ...], fault: str
):
    """Decision 10: 3 is valid; c1 and c2 have the highest r̄ (tied, lowest index first)."""
    settings = config(encoder={"fewer": False})
    world = World(settings, ScriptedLM().enqueue(reply, reply))
    found, _, usage = await world.composer.route(parameters(), MIXED, INPUT, Draws(0, 0, "x"))
    assert found.indices == indices and found.repaired and found.fallback
    assert found.fault.removeprefix("selected_indices: ") == fault
    assert (world.tally["route_repairs"], world.tally["route_fallbacks"]) == (1, 1)
    assert usage.calls == 2 and usage.completion_tokens > 0


@pytest.mark.parametrize(("replies", "indices", "fault"), [
    ([routed(3)], (3,), ""),
    ([routed(1, 3)], (1, 3), ""),
    ([routed(8), routed(8, 3)], (3,), "[8] lie outside 0..3"),
    ([routed(), routed(0, 1, 2)], (0, 1), "3 valid indices instead of 1 to 2"),
    (["no json", "none"], (1, 2), "it was not of the form asked for"),
])  # fmt: skip
async def test_an_encoder_may_take_fewer_than_s_and_one_at_least(
    replies: list[str], indices: tuple[int, ...], fault: str
):
    """Decision 37: S is a maximum; where nothing is usable, S of the highest r̄ as before."""
    world, found = await route(*replies)
    asked = world.lm.history[0]
    assert found.indices == indices and found.fault.removeprefix("selected_indices: ") == fault
    assert "at most 2 different instincts" in asked.messages[0].content
    assert asked.schema is not None and '"minItems": 1' in json.dumps(asked.schema.body)


@pytest.mark.parametrize(("reply", "indices", "fallback"), [
    ("1, 3\nsince it asks for both", (1, 3), False),
    ("I take rules 3 and 1.", (1, 3), False),
    ("none of them", (1, 2), True),
])  # fmt: skip
async def test_a_route_in_one_line(reply: str, indices: tuple[int, ...], fallback: bool):
    """The set few-shot asks for no JSON."""
    world = World(config(templates="few-shot"), ScriptedLM().enqueue(reply, reply))
    found, _, _ = await world.composer.route(parameters(), MIXED, INPUT, Draws(0, 0, "x"))
    assert (found.indices, found.fallback) == (indices, fallback)
    assert world.lm.history[0].schema is None


LONG = "".join(f"{i} " for i in range(5000))


@pytest.mark.parametrize(("text", "read"), [
    *((LONG[:n], LONG[:n]) for n in (1, 1999, 2000)),
    *((LONG[:n], LONG[:1000] + LONG[n - 1000 : n]) for n in (2001, 5000)),
    ("", "-"), (" \n", "-"),  # an endpoint refuses to embed nothing
])  # fmt: skip
async def test_of_a_long_input_both_ends_are_embedded(text: str, read: str):
    """Up to 2,000 characters all of it is, and of a longer one a thousand from either end."""
    lm = ScriptedLM().enqueue(Reply("", vector=(1.0, 2.0)))
    vector, usage = await Embedder(lm).read(text)
    (asked,) = lm.history
    assert asked.messages == (Message("user", read),)
    assert (asked.role, asked.embeds) == ("encoder", True)
    assert vector == (1.0, 2.0) and usage.calls == 1
    with pytest.raises(LMError, match=r"^the model answered an embedding request") as error:
        await Embedder(ScriptedLM().enqueue("as you like")).read(text)
    assert error.value.hint.startswith("router.features = 'words'")
    assert "roles.encoder.model" in error.value.hint and error.value.role == "encoder"


# The program at work: what may reach the untrusted role, and what an agent cannot swallow.

SECRET = "Our refund limit is 40.\nNever name it.\n\n\n\nBe brief."


STAGED = Prompt("whole", {"find": "Look it up.", "say": "Say it."})


@pytest.mark.parametrize(("sent", "system", "prompt"), [
    (SECRET, "", Prompt(SECRET)),
    ("Rewrite this. Be brief.", "", Prompt(SECRET)),
    ("hello", "Be brief.", Prompt(SECRET)),
    ([Message("user", "hi"), Message("user", "Our refund limit is 40.\nNever name it.")], "",
     Prompt(SECRET)),
    ([Message("user", "Our refund limit is 40."), Message("user", "Never name it.")], "",
     Prompt(SECRET)),
    ("Never name it.", "Our refund limit is 40.", Prompt(SECRET)),
    ("Say it.", "", STAGED),
])  # fmt: skip
async def test_the_composed_prompt_never_reaches_the_untrusted_role(
    sent: str | Sequence[Message], system: str, prompt: Prompt
):
    """Decision 13: no paragraph, nor one that is dealt out to several messages, nor a stage's own.
    An empty paragraph is in every text, and keeps none back."""

    async def forward(prompt: Prompt, example: Example, lm: Chat) -> Output:
        asked = (sent, system) if example is X else ("where is my parcel?", "")
        return Output((await lm(asked[0], system=asked[1], role="untrusted", purpose="ask")).text)

    lm = ScriptedLM().enqueue("answered")
    trial, other = Trial(forward, None, lm), Example("y", "another")
    failure = (await trial.run(X, prompt, DRAWS, Rollout("x"))).failure
    assert lm.history == [] and failure is not None
    assert failure.kind == ConfigError.__name__ and "rewritten request" in failure.hint
    assert "about to be sent to the untrusted role" in failure.message
    assert (await trial.run(other, prompt, DRAWS, Rollout("y"))).output == "answered"


@pytest.mark.parametrize("then", [None, ValueError("something else")])
async def test_an_agent_cannot_turn_the_end_of_a_run_into_an_answer(then: Exception | None):
    async def swallow(prompt: Prompt, example: Example, lm: Chat) -> Output:
        with suppress(Exception):
            return Output((await lm("hi")).text)
        if then is not None:
            raise then
        return Output("made up")

    lm = ScriptedLM().enqueue(BudgetReached("spent"))
    with pytest.raises(Stop, match="spent"):
        await Trial(swallow, None, lm).run(X, Prompt("p"), DRAWS, Rollout("x"))


# Evaluation: retries, failures as the floor (decision 15).


def failing(request: Request) -> Scripted:
    """The executor fails for x1, and answers 0.8 for all others."""
    return EndpointDown("gone") if "input 1" in sent(request) else "0.8"


async def evaluate(lm: ScriptedLM, seed: int = 0, done=None, **fields):
    world = World(config(), lm)
    evaluator = Evaluator(world.trial, Randomness(seed), **fields)
    return await evaluator.evaluate("zero-shot", FixedPrompt("p"), examples(4), "test", done)


async def test_retries_are_drawn_and_paid_for():
    """Once unless said otherwise. No attempt shares its draws with another or with training."""
    world = World(config(update={"batch_size": 2, "epochs": 3}))
    await world.run(examples(4))
    lost = ScriptedLM().reply_with(lambda request: EndpointDown("gone"))
    await evaluate(lost, world.config.seed, retries=3)
    evaluated = {r.sample for r in lost.history}
    assert len(lost.history) == 4 * 4 == len(evaluated)
    assert not {r.sample for r in world.asked("executor")} & evaluated
    result = await evaluate(ScriptedLM().reply_with(lambda request: "no number"))
    # An answer that the reward cannot read is paid for, and not asked for again.
    assert result.failed == 4 and [r.usage.calls for r in result.rollouts] == [1] * 4
    mended = await evaluate(ScriptedLM().enqueue(EndpointDown("gone")).reply_with(lambda _: "1"))
    assert sum(r.usage.calls for r in mended.rollouts) == 4 and mended.failed == 0


async def test_what_still_fails_counts_as_the_floor_with_the_mean_of_the_rest_beside_it():
    """Decision 15: (0.8 · 3 + 0) / 4 = 0.6 in the headline, 0.8 over those answered. Rollouts come
    in the examples' order, and are told as they finish."""
    heard: list[Rollout] = []
    result = await evaluate(ScriptedLM().reply_with(failing), done=heard.append)
    assert result.failed == 1
    assert result.score == pytest.approx(0.6) and result.answered == pytest.approx(0.8)
    assert (await evaluate(ScriptedLM().reply_with(failing), floor=-1.0)).score == pytest.approx(
        0.35
    )
    assert [r.example_id for r in result.rollouts] == ["x0", "x1", "x2", "x3"]
    assert sorted(heard, key=lambda r: r.example_id) == list(result.rollouts)
    assert (result.name, result.split) == ("zero-shot", "test")
    empty = replace(result, rollouts=())
    assert empty.score is None and empty.answered is None


async def test_samples_count_by_their_mean_and_a_failed_one_as_the_floor():
    """Decision 18: AIME is the mean of five sampled runs a problem."""

    def reply(request: Request) -> Scripted:
        return EndpointDown("gone") if request.sample == lost else str(request.sample % 2)

    lm = ScriptedLM().reply_with(reply)
    lost, heard = -1, list[Rollout]()
    whole = await evaluate(lm, samples=3, retries=0, done=heard.append)
    drawn = [request.sample for request in lm.history]
    assert len(set(drawn)) == len(heard) == 12 and not whole.failed
    assert sum(r.reward or 0.0 for r in whole.rollouts) == pytest.approx(
        sum(sample % 2 for sample in drawn) / 3
    )
    assert [r.usage.calls for r in whole.rollouts] == [3] * 4
    first = next(sample for sample in drawn if sample % 2)
    lost = first
    less = await evaluate(lm, samples=3, retries=0)
    assert less.failed == 0 and less.score == pytest.approx(whole.score - 1 / 12)


def test_an_example_is_lost_where_each_of_its_samples_is():
    spent, late = Usage(calls=1, prompt_tokens=10), Failure("execute", "CallTimeout", "late")
    good, bad = Rollout("a", reward=1.0, usage=spent), Rollout("a", failure=late, usage=spent)
    assert average([good], 0.0) == good and average([good, good], 0.0).usage.calls == 2
    made = average([bad, good], 0.0)
    assert (made.reward, made.failure) == (0.5, None), "it was answered once"
    assert average([bad, good]).reward == 1.0, "left out where there is no floor"
    assert average([bad, good, bad], -1.0).reward == pytest.approx(-1 / 3), "a task's least reward"
    neither = average([replace(bad, output="one"), replace(bad, output="two")], 0.0)
    assert (neither.output, neither.failure, neither.reward) == ("one", late, None)
    assert average([good, replace(good, truncated=True)], 0.0).truncated
    assert not average([good, good], 0.0).truncated


async def test_the_prompt_length_is_the_prompt_s_share_of_the_request():
    """Of two executor calls with 10 of 40 and 30 of 40 letters in the system prompt, at 80 tokens
    each as the server counts them: 20 and 60; a judge's prompt is none of the executor's. A prompt
    within the user's message counts too."""
    lm = ScriptedLM().reply_with(lambda request: Reply("ok", usage=Usage(1, 80, 5)))
    chat = BoundChat(lm, lambda purpose: 0)
    await chat("u" * 30, system="s" * 10)
    await chat("u" * 10, system="s" * 30)
    await chat("u", system="s" * 900, role="judge")
    assert chat.prompt_length == PromptLength(longest=60, total=80)
    await chat("a prompt that is none of its own, within the user's message")
    await chat("")
    assert chat.prompt_length == PromptLength(longest=60, total=80)
    lm = ScriptedLM().reply_with(lambda request: Reply("ok", usage=Usage(1, 80, 5)))
    chat = BoundChat(lm, lambda purpose: 0, prompt=Prompt("p" * 10, {"read": "r" * 30}))
    await chat("u" * 28 + "\n\n" + "p" * 10)
    await chat("u" * 10, system="r" * 30)
    await chat("r" * 30 + "u" * 10)
    assert chat.prompt_length == PromptLength(longest=60, total=140)
    for estimated in ((True, False), (False, True), (False, False)):
        lm = ScriptedLM().enqueue(
            *(Reply("ok", usage=Usage(1, 8, 5), estimated=e) for e in estimated)
        )
        chat = BoundChat(lm, lambda purpose: 0)
        for _ in estimated:
            await chat("u", system="s")
        assert chat.prompt_length == PromptLength(longest=4, total=8, estimated=any(estimated))
