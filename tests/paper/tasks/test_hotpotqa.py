"""Exact match and F1 of answers."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.paper.tasks.hotpotqa.score import exact_match, f1, reward
from promptcodebook.paper.tasks.hotpotqa.task import HotpotProgram, load_hotpotqa
from promptcodebook.paper.tasks.retrieval import retrieved_titles
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Output, Prompt
from tests.build.paper_tasks import Shelf, cases, vectors


@pytest.mark.parametrize(("prediction", "gold", "equal"), cases("hotpotqa-exact-match"))
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
        pair = (row["prediction"], row["gold"])
        wanted = (row["f1"], row["precision"], row["recall"])
        assert (exact_match(*pair), exact_match(*pair, nfd=True)) == (row["em"], row["em_nfd"])
        assert f1(*pair) == pytest.approx(wanted, abs=1e-12), row["id"]


# The reward: exact match, and feedback on answer, hops and facts.


FACTS = ["Skerry Light | It was built by Ruth Calloway.", "Ruth Calloway | She grew up on a barge."]
EXAMPLE = Example(
    "q1",
    "Where did the builder of {Skerry} Light grow up?",
    "a barge",
    fields={"gold_titles": ["Skerry Light", "Ruth Calloway"], "facts": FACTS},
)


def answered(answer: str, *retrieved: tuple[str, ...]) -> Output:
    return Output(answer, fields={"retrieved": [list(hop) for hop in retrieved]})


def test_a_right_answer_with_all_pages() -> None:
    score = reward(EXAMPLE, answered("The barge.", ("Skerry Light", "Marle"), ("ruth calloway",)))
    assert score.value == 1.0
    assert score.feedback == (
        "The answer 'a barge' is right. "
        "Hop 1 (search with the question) found 'Skerry Light'; still missing: 'Ruth Calloway'. "
        "Hop 2 (query2) found 'Ruth Calloway'. All needed pages were retrieved. "
        "The sentences that decide the answer, which the summaries should carry:\n"
        f"- {FACTS[0]}\n- {FACTS[1]}"
    )


@pytest.mark.parametrize(
    ("answer", "retrieved", "feedback"), cases("hotpotqa-feedback-says-what-is-wrong")
)
def test_feedback_on_what_is_wrong(
    answer: str, retrieved: list[tuple[str, ...]], feedback: str
) -> None:
    score = reward(EXAMPLE, answered(answer, *retrieved))
    assert feedback in score.feedback and score.value == (answer == "barge")


def test_feedback_is_bounded_and_tells_a_near_miss() -> None:
    long = ["x" * 5000] * 50
    example = Example("q", "x", "y" * 5000, fields={"gold_titles": ["t" * 90] * 50, "facts": long})
    score = reward(example, answered("z" * 5000, ("a",), ("b",)))
    assert len(score.feedback) < 6000
    assert "…" in score.feedback
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


def test_a_folder_has_its_index_beside_its_corpus_and_its_facts(
    tmp_path: Path,
) -> None:
    (tmp_path / "corpus.jsonl").write_text(lines(PAGES))
    odd = {"supporting_facts": [["Oak", 9], ["Ash", 0], ["Oak", 0]]}
    for split, changed in (("train", {}), ("val", odd), ("test", {})):
        (tmp_path / f"{split}.jsonl").write_text(lines([{**ROW, "id": split, **changed}]))
    dataset = load_hotpotqa(tmp_path).dataset
    assert dataset.test[0].target == "oak"
    assert dataset.test[0].fields["facts"] == ["Oak | Oaks bear acorns."]
    assert dataset.val[0].fields["facts"] == ["Oak | An oak is a tree."]
    assert (tmp_path / "corpus.jsonl.bm25").is_dir()


# The program: two hops, four modules, and what reaches the reward.


REPLIES: tuple[Scripted, ...] = (
    "reasoning: read\nsummary: the tower is called Skerry",
    "reasoning: builder next\nquery: Skerry tower builder",
    "reasoning: read on\nsummary: Calloway built it",
    "reasoning: there it is\nanswer: Ruth Calloway",
)


async def run(
    prompt: Prompt, replies: Sequence[Scripted] = REPLIES
) -> tuple[Output, ScriptedLM, Shelf]:
    lm, shelf = ScriptedLM().enqueue(*replies), Shelf()
    chat = BoundChat(lm, lambda purpose: len(purpose))
    return await HotpotProgram(shelf)(prompt, EXAMPLE, chat), lm, shelf


async def test_each_hop_asks_for_seven_passages_and_every_stage_sees_what_it_needs() -> None:
    own = {stage: f"For {stage} alone." for stage in HotpotProgram.stages[:3]}
    output, lm, shelf = await run(Prompt("whole", own))
    assert shelf.asked == [(EXAMPLE.input, 7), ("Skerry tower builder", 7)]
    assert output.text == "Ruth Calloway"
    assert output.fields == {"retrieved": [[f"Page {hop}.{n}" for n in range(7)] for hop in (1, 2)]}
    given = [stage.input for stage in output.trace]
    assert tuple(stage.name for stage in output.trace) == HotpotProgram.stages
    assert [stage.output for stage in output.trace] == list(REPLIES)
    assert all(EXAMPLE.input in text for text in given)
    assert [r.messages[-1].content for r in lm.history] == given
    assert "[7] Page 1.6 | text 6 of hop 1" in given[0]
    assert "the tower is called Skerry" in given[1] and "Page" not in given[1]
    assert "the tower is called Skerry" in given[2] and "Page 2.0" in given[2]
    assert "Page 1.0" not in given[2]
    assert "Skerry" in given[3] and "Calloway built it" in given[3] and "Page" not in given[3]
    systems = [request.messages[0].content.split("\n")[0] for request in lm.history]
    assert systems == [*own.values(), "whole"]


async def test_a_blank_query_searches_for_nothing() -> None:
    replies = (REPLIES[0], "reasoning: none needed\nquery:", *REPLIES[2:])
    output, lm, shelf = await run(Prompt("p"), replies)
    assert len(shelf.asked) == 1
    assert retrieved_titles(output)[1] == ()
    assert "(none found)" in lm.history[2].messages[-1].content


def test_odd_titles_are_passed_over() -> None:
    for held, titles in ((4, ()), ([["a", 1, None], "b", ["c"]], (("a",), ("c",)))):
        assert retrieved_titles(Output("x", fields={"retrieved": held})) == titles
