"""Loading HotpotQA: our own examples, a data folder, and what is wrong with one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptcodebook.calls import Reply
from promptcodebook.errors import DataError, LMError, PcoError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.hotpotqa.task import MODULES, STAGES, HotpotProgram, load_hotpotqa
from promptcodebook.tasks.retrieval import retrieved_titles
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Output, Prompt

ROW = {
    "id": "a",
    "question": "Which tree bears acorns?",
    "answer": "oak",
    "gold_titles": ["Oak"],
    "supporting_facts": [["Oak", 1]],
}
PAGES = [
    {"title": "Oak", "sentences": ["An oak is a tree.", " Oaks bear acorns."]},
    {"title": "Elm", "sentences": ["An elm is a tree."]},
]


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "hotpotqa"
    folder.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(lines(PAGES))
    for split in ("train", "val", "test"):
        row = {**ROW, "id": split, "question": f"{ROW['question']} ({split})"}
        (folder / f"{split}.jsonl").write_text(lines([row]))
    return folder


async def test_our_own_examples_are_there_without_any_data() -> None:
    task = load_task("hotpotqa")
    for _, examples in task.dataset.items():
        for example in examples:
            facts, titles = example.fields["facts"], example.fields["gold_titles"]
            assert isinstance(facts, list) and isinstance(titles, list)
            assert {fact.split(" | ")[0] for fact in facts} == set(titles)
            right = Output(example.target or "")
            score = await apply_reward(task.reward(None), example, right, task.reward_range)
            assert score.value == 1.0
    assert task.reward_range == (0.0, 1.0)


async def test_the_program_runs_on_our_own_pages() -> None:
    task = load_hotpotqa()
    shipped = Path(load_hotpotqa.__code__.co_filename).parent / "examples"
    names = {path.name for path in shipped.iterdir()}
    assert names == {f"{name}.jsonl" for name in ("corpus", "train", "val", "test")}, "no index"
    lm = ScriptedLM().enqueue(
        "reasoning: r\nsummary: the engine is Dorothea, by Kestle and Sons",
        "reasoning: r\nquery: Kestle and Sons works",
        "reasoning: r\nsummary: the works were in Marle",
        "reasoning: r\nanswer: Marle",
    )
    example = task.dataset.test[0]
    output = await task.program(Prompt(""), example, BoundChat(lm, lambda purpose: 0))
    assert output.text == "Marle"
    assert retrieved_titles(output)[1][0] == "Kestle and Sons"
    score = await apply_reward(task.reward(None), example, output, task.reward_range)
    assert score.value == 1.0
    assert "All needed pages were retrieved." in score.feedback


def test_a_folders_index_is_kept_beside_its_corpus(folder: Path) -> None:
    (example,) = load_hotpotqa(folder).dataset.test
    assert (example.target, example.fields["facts"]) == ("oak", ["Oak | Oaks bear acorns."])
    assert (folder / "corpus.jsonl.bm25").is_dir()


def test_a_fact_that_the_corpus_lacks_is_left_out(folder: Path) -> None:
    row = {**ROW, "supporting_facts": [["Oak", 9], ["Ash", 0], ["Oak", 0]]}
    (folder / "val.jsonl").write_text(lines([row]))
    assert load_hotpotqa(folder).dataset.val[0].fields["facts"] == ["Oak | An oak is a tree."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": None}, "'answer' must be a text"),
        ({"question": " "}, "'question' is empty"),
        ({"answer": ""}, "'answer' is empty"),
        ({"gold_titles": []}, "'gold_titles' must be a list of titles"),
        ({"gold_titles": [1]}, "'gold_titles' must be a list of titles"),
        ({"gold_titles": "Oak"}, "'gold_titles' must be a list"),
        ({"supporting_facts": ["Oak"]}, "'supporting_facts' must hold pairs"),
        ({"supporting_facts": [["Oak", "0"]]}, "'supporting_facts' must hold pairs"),
        ({"supporting_facts": [["Oak", True]]}, "'supporting_facts' must hold pairs"),
        ({"supporting_facts": None}, "'supporting_facts' must be a list"),
        ({"supporting_facts": ...}, "'supporting_facts' is missing"),
    ],
)
def test_a_faulty_row_is_named(folder: Path, change: dict[str, object], said: str) -> None:
    row = {k: v for k, v in {**ROW, **change}.items() if v is not ...}
    (folder / "val.jsonl").write_text(lines([{**ROW, "id": "b"}, row]))
    with pytest.raises(DataError, match=said) as caught:
        load_hotpotqa(folder)
    assert f"{folder / 'val.jsonl'}:2" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("val.jsonl", lines([{**ROW, "id": "train"}]), "'train' occurs twice"),
        ("corpus.jsonl", "", "holds no page"),
        ("corpus.jsonl", '{"title": "x"}\n', "corpus.jsonl:1"),
    ],
)
def test_a_faulty_file_is_named(folder: Path, name: str, text: str, said: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(PcoError, match=said):
        load_hotpotqa(folder)


# The program: two hops, four modules, and what reaches the reward.


QUESTION = Example("q1", "Who built the {tower} on the isle of Ness?", "Ruth Calloway")


class Shelf:
    """A search that writes down what it was asked; it finds numbered passages, or none."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, query: str, k: int) -> Sequence[str]:
        self.asked.append((query, k))
        hop = len(self.asked)
        return [f"Page {hop}.{n} | text {n} of hop {hop}" for n in range(min(k, self.size))]


PROMPT = Prompt("Take care.")

REPLIES: tuple[Scripted, ...] = (
    "reasoning: read\nsummary: the tower is called Skerry",
    "reasoning: builder next\nquery: Skerry tower builder",
    "reasoning: read on\nsummary: Calloway built it",
    "reasoning: there it is\nanswer: Ruth Calloway",
)


async def run(
    prompt: Prompt = PROMPT, replies: Sequence[Scripted] = REPLIES, search: Shelf | None = None
) -> tuple[Output, ScriptedLM]:
    lm = ScriptedLM().enqueue(*replies)
    chat = BoundChat(lm, lambda purpose: len(purpose))
    return await HotpotProgram(search or Shelf())(prompt, QUESTION, chat), lm


async def test_each_hop_asks_for_seven_passages() -> None:
    shelf = Shelf()
    output, _ = await run(search=shelf)
    assert shelf.asked == [(QUESTION.input, 7), ("Skerry tower builder", 7)]
    assert output.text == "Ruth Calloway"
    assert output.fields == {"retrieved": [[f"Page {hop}.{n}" for n in range(7)] for hop in (1, 2)]}
    assert json.loads(json.dumps(output.fields)) == output.fields


async def test_every_stage_sees_what_it_needs_and_is_in_the_trace() -> None:
    output, lm = await run()
    given = [stage.input for stage in output.trace]
    assert tuple(stage.name for stage in output.trace) == STAGES == HotpotProgram.stages
    assert all(QUESTION.input in text for text in given)
    assert [stage.output for stage in output.trace] == list(REPLIES)
    assert "[7] Page 1.6 | text 6 of hop 1" in given[0]
    assert "the tower is called Skerry" in given[1] and "Page" not in given[1]
    assert "the tower is called Skerry" in given[2] and "Page 2.0" in given[2]
    assert "Page 1.0" not in given[2]
    assert "Skerry" in given[3] and "Calloway built it" in given[3] and "Page" not in given[3]
    assert [r.messages[-1].content for r in lm.history] == given


async def test_the_prompt_stands_before_the_instruction_of_each_stage() -> None:
    _, lm = await run(Prompt("Take care."))
    systems = [request.messages[0].content for request in lm.history]
    for stage, system in zip(STAGES, systems, strict=True):
        assert system.startswith(f"Take care.\n\n{MODULES[stage][0]}")
    assert {request.role for request in lm.history} == {"executor"}
    assert len({request.sample for request in lm.history}) > 1


async def test_each_stage_may_have_a_prompt_of_its_own() -> None:
    prompt = Prompt("whole", {stage: f"For {stage} alone." for stage in STAGES[:3]})
    _, lm = await run(prompt)
    systems = [request.messages[0].content for request in lm.history]
    assert [system.split("\n")[0] for system in systems] == [
        "For summarize1 alone.",
        "For query2 alone.",
        "For summarize2 alone.",
        "whole",
    ]


@pytest.mark.parametrize("cut", range(4))
async def test_a_cut_reply_of_any_stage_marks_the_output(cut: int) -> None:
    replies = list(REPLIES)
    replies[cut] = Reply(str(replies[cut]), finish="length")
    output, _ = await run(replies=replies)
    assert output.truncated
    assert not (await run())[0].truncated


async def test_a_blank_query_searches_for_nothing() -> None:
    shelf = Shelf()
    replies = (REPLIES[0], "reasoning: none needed\nquery:", *REPLIES[2:])
    output, lm = await run(replies=replies, search=shelf)
    assert len(shelf.asked) == 1
    assert retrieved_titles(output)[1] == ()
    assert "(none found)" in lm.history[2].messages[-1].content


async def test_nothing_found_is_said_plainly() -> None:
    output, _ = await run(search=Shelf(0))
    assert "(none found)" in output.trace[0].input
    assert retrieved_titles(output) == ((), ())


async def test_an_error_of_the_model_is_raised() -> None:
    with pytest.raises(LMError, match="no"):
        await run(replies=(REPLIES[0], LMError("no")))


@pytest.mark.parametrize(
    ("fields", "titles"),
    [
        ({}, ()),
        ({"retrieved": 4}, ()),
        ({"retrieved": [["a", 1, None], "b", ["c"]]}, (("a",), ("c",))),
    ],
)
def test_odd_titles_are_passed_over(
    fields: dict[str, object], titles: tuple[tuple[str, ...], ...]
) -> None:
    assert retrieved_titles(Output("x", fields=fields)) == titles
