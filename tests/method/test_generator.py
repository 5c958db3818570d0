"""G_φ and composition (decisions 4, 12 and 15)."""

from __future__ import annotations

import pytest

from promptcodebook.calls import Reply
from promptcodebook.errors import EndpointDown
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.policy import Composition, Generator, join_prompts
from promptcodebook.randomness import Draws
from promptcodebook.types import Route
from tests.method.build import World, book, config, said

DRAWS = Draws(0, 0, "x")


async def compose(
    *replies: str | Reply | Exception, output_format: str = "", **tree
) -> tuple[World, str]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies), output_format=output_format)
    text, _ = await world.generator.compose("phi", book(), Route((1, 3)), "an input", DRAWS)
    return world, text


async def test_the_generator_sees_the_selected_instincts_by_index_and_the_input():
    """Assumption 1: the entry index stands in the composition template."""
    world, text = await compose("Follow rule one.")
    seen = said(world.lm.history[0])
    assert text == "Follow rule one."
    assert seen.startswith("phi")
    assert "[1] rule one\n[3] rule three" in seen and "rule two" not in seen
    assert seen.endswith("an input")


async def test_the_base_prompt_stands_word_for_word_before_the_composed_one():
    _, text = await compose("Composed.", base_prompt="Base {x}\n## user")
    assert text == "Base {x}\n## user\n\nComposed."
    assert join_prompts("", "b") == "b" and join_prompts("a", "") == "a"


async def test_our_template_asks_for_the_task_s_own_format_and_the_paper_s_for_the_answer_only():
    """Decision 4."""
    ours, _ = await compose("p", output_format="The answer ends in \\boxed{}.")
    paper, _ = await compose("p", output_format="The answer ends in \\boxed{}.", templates="paper")
    assert "The answer ends in \\boxed{}." in said(ours.lm.history[0])
    seen = said(paper.lm.history[0])
    assert "boxed" not in seen
    assert "concise final answer alone, never its reasoning" in seen


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply("Follow the", finish="length"), "it was cut at its length limit"),
        ("", "it holds no text"),
        ("  \n", "it holds no text"),
        ("<think>nothing but thoughts", "it holds no text but thoughts"),
    ],
)
async def test_a_prompt_that_is_cut_or_empty_is_asked_for_once_more(reply: str | Reply, fault: str):
    world, text = await compose(reply, "Follow rule one.")
    first, second = world.lm.history
    assert text == "Follow rule one." and world.tally["prompt_fallbacks"] == 0
    assert second.messages[: len(first.messages)] == first.messages
    assert fault in second.messages[-1].content and first.sample != second.sample


@pytest.mark.parametrize("reply", ["", "<think>nothing", Reply("Follow the", finish="length")])
async def test_without_a_usable_reply_the_instincts_stand_in_verbatim(reply: str | Reply):
    """A rollout of a weak model, and a deployed policy, must answer anyway."""
    lm = ScriptedLM().enqueue(reply, reply)
    world = World(config(base_prompt="Base."), lm)
    text, usage = await world.generator.compose("phi", book(), Route((1, 3)), "in", DRAWS)
    assert text == "Base.\n\nrule one\nrule three"
    assert usage.calls == 2 == len(lm.history) and world.tally["prompt_fallbacks"] == 1


async def test_what_stands_in_for_a_composed_prompt_asks_for_its_format():
    """As the row concat does: else what is answered could not be scored."""
    form = "The answer ends in \\boxed{}."
    _, text = await compose("", "", output_format=form)
    assert text == f"rule one\nrule three\n\n{form}"


async def test_an_endpoint_that_is_down_is_no_bad_prompt():
    with pytest.raises(EndpointDown):
        await compose(EndpointDown("gone"))


async def test_what_is_written_around_a_prompt_is_taken_off():
    _, text = await compose('Here is the system prompt:\n\n"Follow rule one."', base_prompt="Base.")
    assert text == "Base.\n\nFollow rule one."


async def test_verbatim_asks_nobody():
    """Decision 12."""
    world, text = await compose(compose="verbatim")
    assert text == "rule one\nrule three" and world.lm.history == []


async def test_a_stage_is_named_and_drawn_apart():
    world = World(config(), ScriptedLM().enqueue("a", "b"))
    for stage in ("", "rewrite"):
        await world.generator.compose("phi", book(), Route((0, 1)), "in", DRAWS, stage)
    whole, stage = world.lm.history
    named = "The prompt is for this stage of the work: rewrite"
    assert named in said(stage)
    assert said(stage).replace(named, "").split() == said(whole).split()
    assert whole.sample != stage.sample


async def test_nothing_stands_around_a_prompt_unless_it_is_asked_for():
    """No base prompt, no format, no stage, and the generator composes."""
    lm = ScriptedLM().enqueue("Follow rule one.", role="generator")
    world = World(config(), lm)
    plain = Generator(world.ask, world.templates, Composition())
    text, _ = await plain.compose("phi", book(), Route((1, 3)), "in", DRAWS)
    assert text == "Follow rule one."
    lm.enqueue("p", role="generator")
    await world.generator.compose("phi", book(), Route((1, 3)), "in", DRAWS, stage="")
    assert said(lm.history[0]) == said(lm.history[1]) and "stage" not in said(lm.history[0])
