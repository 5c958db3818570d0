"""The program: three hops, five modules, and what reaches the reward."""

import json
from collections.abc import Sequence

from promptcodebook.calls import Reply
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.hover.task import INSTRUCTIONS, STAGES, HoverProgram
from promptcodebook.tasks.retrieval.retriever import retrieved_titles
from promptcodebook.types import Example, Output, Prompt

CLAIM = Example("c1", "The mill stands by the river that rises on the hill.", "SUPPORTED")


class Shelf:
    """A search that writes down what it was asked and numbers its passages."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, query: str, k: int) -> Sequence[str]:
        self.asked.append((query, k))
        hop = len(self.asked)
        return [f"Page {hop}.{n} | text {n} of hop {hop}" for n in range(k)]


class Bare:
    """A search over nothing."""

    async def __call__(self, query: str, k: int) -> Sequence[str]:
        return ()


PROMPT = Prompt("Take care.")

REPLIES: tuple[Scripted, ...] = (
    "reasoning: read\nsummary: the mill is old",
    "reasoning: river next\nquery: river of the mill",
    "reasoning: read on\nsummary: the river is long",
    "reasoning: hill last\nquery: hill of the river",
    "reasoning: all there\nlabel: not supported",
)


async def run(
    prompt: Prompt = PROMPT,
    replies: Sequence[Scripted] = REPLIES,
    search: Shelf | Bare | None = None,
) -> tuple[Output, ScriptedLM]:
    lm = ScriptedLM().enqueue(*replies)
    chat = BoundChat(lm, lambda purpose: len(purpose))
    return await HoverProgram(search or Shelf())(prompt, CLAIM, chat), lm


async def test_the_hops_ask_for_7_7_and_10_passages() -> None:
    shelf = Shelf()
    output, _ = await run(search=shelf)
    assert shelf.asked == [
        (CLAIM.input, 7),
        ("river of the mill", 7),
        ("hill of the river", 10),
    ]
    retrieved = retrieved_titles(output)
    assert [len(hop) for hop in retrieved] == [7, 7, 10]
    assert retrieved[0][0] == "Page 1.0" and retrieved[-1][-1] == "Page 3.9"


async def test_the_label_is_the_output_and_the_titles_stand_beside_it() -> None:
    output, _ = await run()
    assert output.text == "NOT_SUPPORTED"
    assert list(output.fields) == ["retrieved"]
    assert json.loads(json.dumps(output.fields)) == output.fields
    assert not output.truncated


async def test_every_stage_is_in_the_trace_with_what_it_was_given() -> None:
    output, lm = await run()
    assert tuple(stage.name for stage in output.trace) == STAGES == HoverProgram.stages
    assert all(CLAIM.input in stage.input for stage in output.trace)
    given = {stage.name: stage.input for stage in output.trace}
    assert "Page 1.6 | text 6 of hop 1" in given["summarize1"]
    assert "the mill is old" in given["query2"] and "Page" not in given["query2"]
    assert "the mill is old" in given["summarize2"] and "Page 2.0" in given["summarize2"]
    assert "the mill is old" in given["query3"] and "the river is long" in given["query3"]
    assert "the river is long" in given["verify"] and "Page 3.9" in given["verify"]
    assert [request.role for request in lm.history] == ["executor"] * 5


async def test_the_prompt_stands_before_each_stage_s_instruction() -> None:
    _, lm = await run(Prompt("Take care."))
    for request, stage in zip(lm.history, STAGES, strict=True):
        system = request.messages[0].content
        assert system.startswith(f"Take care.\n\n{INSTRUCTIONS[stage]}")


async def test_a_prompt_for_each_stage() -> None:
    _, lm = await run(Prompt("all", {stage: f"For {stage}." for stage in STAGES}))
    starts = [request.messages[0].content.split("\n")[0] for request in lm.history]
    assert starts == [f"For {stage}." for stage in STAGES]


async def test_a_reply_cut_anywhere_marks_the_output() -> None:
    cut = Reply("reasoning: on and", finish="length")
    output, _ = await run(replies=(REPLIES[0], cut, *REPLIES[2:]))
    assert output.truncated


async def test_an_empty_query_finds_nothing_and_the_claim_goes_on() -> None:
    shelf = Shelf()
    replies = (REPLIES[0], "reasoning: none\nquery:", *REPLIES[2:])
    output, _ = await run(replies=replies, search=shelf)
    assert [k for _, k in shelf.asked] == [7, 10]
    assert retrieved_titles(output)[1] == ()
    assert "(none found)" in output.trace[2].input


async def test_over_an_empty_corpus_the_label_alone_is_left() -> None:
    output, _ = await run(search=Bare())
    assert (output.text, output.fields) == ("NOT_SUPPORTED", {"retrieved": [[], [], []]})


async def test_a_label_that_cannot_be_read_is_kept_as_written() -> None:
    output, _ = await run(replies=(*REPLIES[:4], "reasoning: hm\nlabel: undecided"))
    assert output.text == "undecided"
