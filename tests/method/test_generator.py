"""G_φ and composition (decisions 4, 12 and 15)."""

from __future__ import annotations

import pytest

from promptcodebook.calls import Reply
from promptcodebook.errors import ParseError, TruncatedReply
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.generator import join_prompts
from promptcodebook.randomness import Draws
from promptcodebook.types import Route
from tests.method.build import World, book, config, said

DRAWS = Draws(0, 0, "x")


async def compose(*replies: str | Reply, output_format: str = "", **tree) -> tuple[World, str]:
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


async def test_a_prompt_cut_at_its_cap_is_refused():
    """Decision 15."""
    with pytest.raises(TruncatedReply) as error:
        await compose(Reply("Follow the", finish="length"))
    assert "roles.generator.max_tokens" in error.value.hint


@pytest.mark.parametrize("reply", ["", "  \n", "<think>nothing but thoughts"])
async def test_an_empty_prompt_is_refused(reply: str):
    with pytest.raises(ParseError):
        await compose(reply)


async def test_verbatim_asks_nobody():
    """Decision 12."""
    world, text = await compose(compose="verbatim")
    assert text == "rule one\nrule three" and world.lm.history == []


async def test_a_stage_is_named_and_drawn_apart():
    world = World(config(), ScriptedLM().enqueue("a", "b"))
    for stage in ("", "rewrite"):
        await world.generator.compose("phi", book(), Route((0, 1)), "in", DRAWS, stage)
    whole, stage = world.lm.history
    assert "this stage of the work: rewrite" in said(stage)
    assert "stage of the work" not in said(whole)
    assert whole.sample != stage.sample
