"""Exact match and F1 of answers."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.hotpotqa.score import exact_match, f1, reward
from promptcodebook.tasks.hotpotqa.task import STAGES, HotpotProgram, load_hotpotqa
from promptcodebook.tasks.retrieval import retrieved_titles
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Output, Prompt, Score
from tests.tasks.shared import Shelf, vectors


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        ("The Harbour.", "harbour", True),
        ("twenty-one", "twentyone", True),
        ("twenty one", "twenty-one", False),
        ("banana", "bnn", False),
        ("an", "", True),
        ("the", "a", True),
        ("“Harbour”", "Harbour", False),
        ("1914–1918", "1914-1918", False),
        ("  north \n pier ", "North Pier", True),
        ("yes", "no", False),
    ],
)
def test_exact_match(prediction: str, gold: str, equal: bool) -> None:
    assert exact_match(prediction, gold) is equal
    assert exact_match(gold, prediction) is equal


def test_composed_and_decomposed_letters_are_equal_only_under_nfd() -> None:
    assert not exact_match("Caf\u00e9", "Cafe\u0301")
    assert exact_match("Caf\u00e9", "Cafe\u0301", nfd=True)


def test_f1_counts_repeated_words_and_is_zero_beside_a_yes_or_no() -> None:
    for pair in (("yes it is", "yes"), ("no", "no man"), ("noanswer", "x"), ("x", "y")):
        assert f1(*pair) == (0.0, 0.0, 0.0)
    score, precision, recall = f1("pier pier north", "the north pier")
    assert (precision, recall) == (2 / 3, 1.0)
    assert score == pytest.approx(0.8)


def test_agrees_with_the_public_scorer() -> None:
    rows = vectors("hotpotqa")
    assert len(rows) > 100
    for row in rows:
        pair, wanted = (
            (row["prediction"], row["gold"]),
            (row["f1"], row["precision"], row["recall"]),
        )
        assert (exact_match(*pair), exact_match(*pair, nfd=True)) == (row["em"], row["em_nfd"])
        assert f1(*pair) == pytest.approx(wanted, abs=1e-12), row["id"]


# The reward: exact match, and feedback on answer, hops and facts.


FACTS = ["Skerry Light | It was built by Ruth Calloway.", "Ruth Calloway | She grew up on a barge."]
EXAMPLE = Example(
    "q1",
    "Where did the builder of Skerry Light grow up?",
    "a barge",
    fields={"gold_titles": ["Skerry Light", "Ruth Calloway"], "facts": FACTS},
)


def answered(answer: str, *retrieved: tuple[str, ...]) -> Output:
    return Output(answer, fields={"retrieved": [list(hop) for hop in retrieved]})


def judged(answer: str, *retrieved: tuple[str, ...]) -> Score:
    return reward(EXAMPLE, answered(answer, *retrieved))


def test_a_right_answer_with_all_pages() -> None:
    score = judged("The barge.", ("Skerry Light", "Marle"), ("ruth calloway",))
    assert score.value == 1.0
    assert score.feedback == (
        "The answer 'a barge' is right. "
        "Hop 1 (search with the question) found 'Skerry Light'; still missing: 'Ruth Calloway'. "
        "Hop 2 (query2) found 'Ruth Calloway'. All needed pages were retrieved. "
        "The sentences that decide the answer, which the summaries should carry:\n"
        f"- {FACTS[0]}\n- {FACTS[1]}"
    )


def test_a_wrong_answer_names_what_was_missing() -> None:
    score = judged("Marle", ("Marle",), ("Marle", "Skerry Light"))
    assert score.value == 0.0
    assert "The answer 'Marle' is wrong; the right answer is 'a barge'." in score.feedback
    assert "Hop 1 (search with the question) found none of the pages still needed" in score.feedback
    assert "Hop 2 (query2) found 'Skerry Light'; still missing: 'Ruth Calloway'." in score.feedback
    assert "Never retrieved: 'Ruth Calloway'." in score.feedback


@pytest.mark.parametrize(
    ("answer", "retrieved", "said"),
    [
        ("barge", [("Skerry Light", "Ruth Calloway"), ()], "(query2) had nothing left to find."),
        ("She grew up on a barge", [], "only the bare answer counts"),
        ("a long red barge", [], "only the bare answer counts"),
        ("an old boat", [], "is wrong; the right answer is 'a barge'."),
        (" ", [], "There is no answer; the right one is 'a barge'."),
    ],
)
def test_feedback_says_what_is_wrong(
    answer: str, retrieved: list[tuple[str, ...]], said: str
) -> None:
    assert said in judged(answer, *retrieved).feedback


def test_feedback_is_bounded_and_tells_a_near_miss() -> None:
    long = ["x" * 5000] * 50
    example = Example("q", "x", "y" * 5000, fields={"gold_titles": ["t" * 90] * 50, "facts": long})
    said = reward(example, answered("z" * 5000, ("a",), ("b",)))
    assert len(said.feedback) < 6000
    assert "…" in said.feedback
    near = reward(Example("q", "x", "the long red barge"), Output("red"))
    assert "F1 0.50" in near.feedback
    assert reward(Example("q", "x", "Caf\u00e9"), Output("Cafe\u0301")).value == 1.0


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


# The program: two hops, four modules, and what reaches the reward.


QUESTION = Example("q1", "Who built the {tower} on the isle of Ness?", "Ruth Calloway")


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


async def test_a_blank_query_searches_for_nothing() -> None:
    shelf = Shelf()
    replies = (REPLIES[0], "reasoning: none needed\nquery:", *REPLIES[2:])
    output, lm = await run(replies=replies, search=shelf)
    assert len(shelf.asked) == 1
    assert retrieved_titles(output)[1] == ()
    assert "(none found)" in lm.history[2].messages[-1].content


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
