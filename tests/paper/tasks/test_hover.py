"""Scoring HoVer: titles, labels, and agreement with the public scorers."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.errors import DataError, RewardError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.paper.tasks.hover import score
from promptcodebook.paper.tasks.hover.task import HoverProgram, load_hover
from promptcodebook.paper.tasks.public_sources import source_of
from promptcodebook.paper.tasks.retrieval import SearchFunction, retrieved_titles
from promptcodebook.types import Example, Output, Prompt
from tests.build.paper_tasks import Shelf, cases, vectors

LABELS: dict[str, list[str]] = cases("hover-labels")


@pytest.mark.parametrize(("text", "expected"), [(t, k) for k, ts in LABELS.items() for t in ts])
def test_parse_label(text: str, expected: str) -> None:
    assert score.parse_label(text) == (expected or None)


def test_titles_are_compared_without_case_articles_punctuation_and_composition() -> None:
    assert score.titles_subset(["THE RIVER-TIDE! | x", "other | y"], ["Rivertide"])
    assert score.titles_subset(["Zoe\u0308 Hart | x"], ["Zo\u00eb Hart"])
    assert not score.titles_subset(["Zoe Hart | x"], ["Zo\u00eb Hart"])
    assert not score.titles_subset(["One | x"], ["One", "Two"])
    assert score.titles_subset([], [])


def test_top_k_compares_letter_by_letter_and_document_f1_counts_a_page_twice() -> None:
    assert score.hit_at(["a", "b", "c"], ["b", "a"], 2)
    assert not score.hit_at(["a", "b", "c"], ["a", "c"], 2)
    assert not score.hit_at(["A"], ["a"], 5)
    assert score.doc_f1(["a", "b"], ["b", "c", "d"]) == pytest.approx(0.4)
    assert score.doc_f1(["a", "a"], ["a"]) == pytest.approx(2 / 3)
    assert score.doc_em(["a", "a"], ["a"]) == 0.0
    assert score.doc_f1(["a"], ["a", "a"]) == score.doc_em(["a"], ["a", "a"]) == 1.0
    assert score.doc_f1([], ["a"]) == score.doc_f1(["a"], []) == score.doc_f1([], []) == 0.0


def test_agreement_with_the_public_scorers() -> None:
    rows = vectors("hover")
    assert len(rows) > 80
    for row in rows:
        gold, predicted = row["gold_titles"], row["predicted_titles"]
        assert score.titles_subset(row["retrieved_docs"], gold) == row["titles_subset"], row["id"]
        for k in (5, 8, 10):
            assert score.hit_at(row["ranked_titles"], gold, k) == row[f"hit{k}"], row["id"]
        scores = (score.doc_em(predicted, gold), score.doc_f1(predicted, gold))
        assert scores == pytest.approx((row["doc_em"], row["doc_f1"])), row["id"]


# The rewards and their feedback.


GOLD = {"gold_titles": ["Mill", "The River", "Hill", "Mill"]}
CLAIM = Example("c1", "A claim.", "SUPPORTED", fields=GOLD)


def found(label: str, *hops: tuple[str, ...]) -> Output:
    return Output(label, fields={"retrieved": [list(hop) for hop in hops]})


ALL = (("Mill", "Barn"), ("River",), ("Hill",))


@pytest.mark.parametrize(("output", "both", "pages"), [
    (found("SUPPORTED", *ALL), 1.0, 1.0),
    (found("NOT_SUPPORTED", *ALL), 0.0, 1.0),
    (found("undecided", *ALL), 0.0, 1.0),
    (found("SUPPORTED", *ALL[:2]), 0.0, 0.0),
    (Output("SUPPORTED"), 0.0, 0.0),
    (Output(""), 0.0, 0.0),
])  # fmt: skip
def test_pages_and_label_beside_pages_alone(output: Output, both: float, pages: float) -> None:
    assert score.reward(CLAIM, output).value == both
    assert score.retrieval_reward(CLAIM, output).value == pages
    # An unreadable gold label matches nothing.
    unread = replace(CLAIM, target="?")
    assert score.reward(unread, replace(output, text="?")).value == 0.0


def test_feedback_names_what_each_hop_found_and_what_is_missing() -> None:
    output = found("NOT SUPPORTED", ("Mill", "Barn"), ("Lake",), ("River",))
    text = score.reward(CLAIM, output).feedback
    assert "Hop 1 (search with the claim) found 'Mill'; still missing: 'The River', 'Hill'." in text
    assert "Hop 2 (query2) found none of the pages still needed; still missing: 'The R" in text
    assert "Hop 3 (query3) found 'The River'; still missing: 'Hill'. Never retr" in text
    assert "Never retrieved: 'Hill'" in text
    assert text.endswith("The label NOT_SUPPORTED is wrong; the right label is SUPPORTED.")
    assert "Barn" not in text


def test_a_label_that_cannot_be_read_is_quoted() -> None:
    text = score.reward(CLAIM, Output("perhaps")).feedback
    assert "could not be read from 'perhaps': it must be SUPPORTED or NOT_SUPPORTED" in text
    assert "Nothing was retrieved; needed: 'Mill', 'The" in text


def test_an_example_without_gold_pages_cannot_be_judged() -> None:
    for fields in ({}, {"gold_titles": []}, {"gold_titles": "Mill"}):
        with pytest.raises(RewardError, match="c1 has no gold titles"):
            score.reward(Example("c1", "A claim.", "SUPPORTED", fields=fields), Output("SUPPORTED"))


Rows = list[dict[str, object]]


def write(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def claim(uid: str, **other: object) -> dict[str, object]:
    row = {"uid": uid, "claim": f"Claim {uid}.", "label": "SUPPORTED", "gold_titles": ["Mill"]}
    return {**row, **other}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "val", "test"):
        write(tmp_path / f"{split}.jsonl", [claim(f"{split}-{n}") for n in range(2)])
    write(tmp_path / "corpus.jsonl", [{"title": "Mill", "sentences": ["It grinds."]}])
    return tmp_path


def test_labels_of_other_spellings_and_titles_from_supporting_facts(folder: Path) -> None:
    facts = [["Mill", 0], ["Barn", 1], ["Mill", 2]]
    row = claim("x", label="not supported", supporting_facts=facts, gold_titles=None)
    write(folder / "test.jsonl", [row])
    task = load_hover(folder)
    example = task.dataset.test[0]
    assert example.target == "NOT_SUPPORTED"
    assert score.gold_titles(example) == ("Mill", "Barn")
    assert example.fields["supporting_facts"] == facts
    assert "1 of the 5 claims need pages whose titles the corpus lacks" in task.description


def test_claims_without_text_join_once_the_corpus_holds_their_pages(folder: Path) -> None:
    spare = [claim("s1", split="val"), claim("s2", split="test", gold_titles=["Mill", "Barn"])]
    write(folder / "claims_without_text.jsonl", spare)
    dataset = load_hover(folder).dataset
    assert [e.id for e in dataset.val] == ["val-0", "val-1", "s1"]
    assert len(dataset.test) == 2
    write(folder / "claims_without_text.jsonl", [claim("s", split="later")])
    with pytest.raises(DataError, match=r"claims_without_text\.jsonl:1: unknown split 'later'"):
        load_hover(folder)


# The program: three hops, five modules, and what reaches the reward.


MILL = Example("c1", "The mill stands by the river that rises on the hill.", "SUPPORTED")


REPLIES: tuple[Scripted, ...] = (
    "reasoning: read\nsummary: the mill is old",
    "reasoning: river next\nquery: river of the mill",
    "reasoning: read on\nsummary: the river is long",
    "reasoning: hill last\nquery: hill of the river",
    "reasoning: all there\nlabel: not supported",
)


async def run(replies: Sequence[Scripted], search: SearchFunction) -> tuple[Output, ScriptedLM]:
    lm = ScriptedLM().enqueue(*replies)
    chat = BoundChat(lm, lambda purpose: len(purpose))
    return await HoverProgram(search)(Prompt("Take care."), MILL, chat), lm


async def test_the_hops_ask_for_7_7_and_10_passages_and_every_stage_is_in_the_trace() -> None:
    shelf = Shelf()
    output, lm = await run(REPLIES, shelf)
    assert shelf.asked == [(MILL.input, 7), ("river of the mill", 7), ("hill of the river", 10)]
    assert output.text == "NOT_SUPPORTED"
    retrieved = retrieved_titles(output)
    assert [len(hop) for hop in retrieved] == [7, 7, 10]
    assert retrieved[0][0] == "Page 1.0" and retrieved[-1][-1] == "Page 3.9"
    assert tuple(stage.name for stage in output.trace) == HoverProgram.stages
    assert all(MILL.input in stage.input for stage in output.trace)
    given = {stage.name: stage.input for stage in output.trace}
    assert "Page 1.6 | text 6 of hop 1" in given["summarize1"]
    assert "the mill is old" in given["query2"] and "Page" not in given["query2"]
    assert "the mill is old" in given["summarize2"] and "Page 2.0" in given["summarize2"]
    assert "the mill is old" in given["query3"] and "the river is long" in given["query3"]
    assert "the river is long" in given["verify"] and "Page 3.9" in given["verify"]
    assert [request.role for request in lm.history] == ["executor"] * 5


async def test_over_an_empty_corpus_the_label_alone_is_left_as_written_where_unreadable() -> None:
    async def bare(query: str, k: int) -> Sequence[str]:
        return ()

    output, _ = await run((*REPLIES[:4], "reasoning: hm\nlabel: undecided"), bare)
    assert (output.text, output.fields) == ("undecided", {"retrieved": [[], [], []]})


# HoVer arranged from what its public homes hold.


SOURCE = source_of("hover")


def claims(count: int, *titles: str) -> Rows:
    return [
        {
            "uid": f"{titles[-1]}-{n}",
            "claim": f"Claim {n} on {titles[-1]}.",
            "label": "SUPPORTED" if n % 2 else "NOT_SUPPORTED",
            "num_hops": len(titles),
            "supporting_facts": [[title, n] for title in titles],
            "hpqa_id": "h",
        }
        for n in range(count)
    ]


def questions(*titles: str) -> Rows:
    return [
        {"context": {"title": [title, "Other"], "sentences": [[f"On {title}."], ["Else."]]}}
        for title in titles
    ]


def test_three_page_claims_whose_pages_are_there_in_the_paper_s_split() -> None:
    pool = [*claims(100, "A", "B", "Zo\u00eb"), *claims(9, "A", "B"), *claims(9, "A", "B", "Lost")]
    made = SOURCE.arrange([pool, questions("B", "A"), questions("Zoe\u0308", "A")])
    assert [len(rows) for rows in made.values()] == [20, 40, 40, 4]
    row = made["test"][0]
    # The title as the corpus spells it, so that the page can be found by it.
    assert row["gold_titles"] == ["A", "B", "Zoe\u0308"]
    assert {"uid", "claim", "label", "num_hops", "supporting_facts", "hpqa_id"} <= set(row)
    assert made["corpus"][0] == {"title": "A", "sentences": ["On A."]}
