"""Scoring HoVer: titles, labels, and agreement with the public scorers."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.errors import RewardError
from promptcodebook.tasks.hover.score import (
    doc_em,
    doc_f1,
    hit_at,
    hover_score,
    parse_label,
    retrieval_reward,
    reward,
    titles_subset,
)
from promptcodebook.tasks.retrieval import title_of
from promptcodebook.types import Example, Output
from tests.tasks.shared import vectors

TITLES = st.lists(st.text(alphabet=string.ascii_letters + " ", min_size=1, max_size=8), max_size=6)


LABELS: dict[str | None, tuple[str, ...]] = {
    "SUPPORTED": (
        *("SUPPORTED", " supported\n", "**Supported**.", "Label: supported"),
        *("SUPPORTED. Nothing does not fit.", "Supported, since no passage is against it"),
    ),
    "NOT_SUPPORTED": (
        *("NOT_SUPPORTED", "not supported", "Not-Supported", "not\u2011supported"),
        *("NOT  SUPPORTED", "`not_supported`", "The claim is NOT SUPPORTED.", "refuted", "False"),
        "SUPPORTED or NOT_SUPPORTED",
    ),
    None: (
        *("unsupported", "not fully supported", "It isn't supported", "unsupportedly", "supports"),
        *("It is not fully supported: SUPPORTED", "true", "", "falsehood"),
    ),
}


@pytest.mark.parametrize(("text", "expected"), [(t, k) for k, ts in LABELS.items() for t in ts])
def test_parse_label(text: str, expected: str | None) -> None:
    assert parse_label(text) == expected


def test_the_title_is_what_stands_before_the_first_bar() -> None:
    assert title_of("River Tide | It | rises.") == "River Tide"
    assert title_of("River Tide |no blank") == "River Tide |no blank"
    assert title_of("River Tide") == "River Tide"


def test_titles_are_compared_without_case_articles_punctuation_and_composition() -> None:
    assert titles_subset(["THE RIVER-TIDE! | x", "other | y"], ["Rivertide"])
    assert titles_subset(["Zoe\u0308 Hart | x"], ["Zo\u00eb Hart"])
    assert not titles_subset(["Zoe Hart | x"], ["Zo\u00eb Hart"])
    assert not titles_subset(["One | x"], ["One", "Two"])
    assert titles_subset([], [])


def test_top_k_compares_letter_by_letter_and_document_f1_counts_a_page_twice() -> None:
    assert hit_at(["a", "b", "c"], ["b", "a"], 2)
    assert not hit_at(["a", "b", "c"], ["a", "c"], 2)
    assert not hit_at(["A"], ["a"], 5)
    assert doc_f1(["a", "b"], ["b", "c", "d"]) == pytest.approx(0.4)
    assert doc_f1(["a", "a"], ["a"]) == pytest.approx(2 / 3)
    assert doc_em(["a", "a"], ["a"]) == 0.0
    assert doc_f1(["a"], ["a", "a"]) == doc_em(["a"], ["a", "a"]) == 1.0
    assert doc_f1([], ["a"]) == doc_f1(["a"], []) == doc_f1([], []) == 0.0


@pytest.mark.parametrize(
    ("docs", "label", "expected"),
    [
        (["One | x", "Two | y"], "not supported", 1.0),
        (["One | x", "Two | y"], "supported", 0.0),
        (["One | x"], "not supported", 0.0),
        (["One | x", "Two | y"], "", 0.0),
    ],
)
def test_retrieval_and_label_must_both_be_right(
    docs: list[str], label: str, expected: float
) -> None:
    assert hover_score(docs, ["Two", "One"], label, "NOT_SUPPORTED") == expected
    assert hover_score(docs, ["One"], "?", "?") == 0.0, "an unreadable gold label matches nothing"


@given(TITLES, TITLES)
def test_f1_is_one_exactly_when_the_document_match_is(
    predicted: list[str], gold: list[str]
) -> None:
    f1 = doc_f1(predicted, gold)
    assert 0.0 <= f1 <= 1.0
    if predicted or gold:
        assert (f1 == 1.0) == (doc_em(predicted, gold) == 1.0)


@given(st.text(max_size=40))
def test_labels_of_any_text(text: str) -> None:
    assert parse_label(text) in ("SUPPORTED", "NOT_SUPPORTED", None)


def test_long_texts_are_read_at_once() -> None:
    assert parse_label("not _-" * 50_000) is None
    assert titles_subset([" | " * 50_000, "a" * 100_000], ["The " * 10])


def test_agreement_with_the_public_scorers() -> None:
    rows = vectors("hover")
    wrong = list[tuple[str, str]]()
    for row in rows:
        gold, ranked = row["gold_titles"], row["ranked_titles"]
        found = {
            "titles_subset": titles_subset(row["retrieved_docs"], gold),
            **{f"hit{k}": hit_at(ranked, gold, k) for k in (5, 8, 10)},
            "doc_em": doc_em(row["predicted_titles"], gold),
            "doc_f1": pytest.approx(doc_f1(row["predicted_titles"], gold)),
        }
        wrong += [(row["id"], name) for name, value in found.items() if value != row[name]]
    assert len(rows) > 80
    assert wrong == []


# The rewards and their feedback.


CLAIM = Example(
    "c1", "A claim.", "SUPPORTED", fields={"gold_titles": ["Mill", "The River", "Hill", "Mill"]}
)


def found(label: str, *hops: tuple[str, ...]) -> Output:
    return Output(label, fields={"retrieved": [list(hop) for hop in hops]})


ALL = (("Mill", "Barn"), ("River",), ("Hill",))


@pytest.mark.parametrize(
    ("output", "both", "pages"),
    [
        (found("SUPPORTED", *ALL), 1.0, 1.0),
        (found("NOT_SUPPORTED", *ALL), 0.0, 1.0),
        (found("undecided", *ALL), 0.0, 1.0),
        (found("SUPPORTED", *ALL[:2]), 0.0, 0.0),
        (Output("SUPPORTED"), 0.0, 0.0),
        (Output(""), 0.0, 0.0),
    ],
)
def test_pages_and_label_beside_pages_alone(output: Output, both: float, pages: float) -> None:
    assert reward(CLAIM, output).value == both
    assert retrieval_reward(CLAIM, output).value == pages


def test_feedback_names_what_each_hop_found_and_what_is_missing() -> None:
    said = reward(CLAIM, found("NOT SUPPORTED", ("Mill", "Barn"), ("Lake",), ("River",))).feedback
    assert "Hop 1 (search with the claim) found 'Mill'; still missing: 'The River', 'Hill'." in said
    assert "Hop 2 (query2) found none of the pages still needed; still missing: 'The R" in said
    assert (
        "Hop 3 (query3) found 'The River'; still missing: 'Hill'. Never retrieved: 'Hill'" in said
    )
    assert said.endswith("The label NOT_SUPPORTED is wrong; the right label is SUPPORTED.")
    assert "Barn" not in said


def test_a_hop_after_the_last_page_is_not_blamed() -> None:
    said = reward(CLAIM, found("SUPPORTED", ("Mill", "River", "Hill"), (), ("Mill",))).feedback
    assert "Hop 2 (query2) had nothing left to find. Hop 3 (query3) had nothing left" in said
    assert said.endswith("All needed pages were retrieved. The label SUPPORTED is right.")


def test_a_label_that_cannot_be_read_is_quoted() -> None:
    said = reward(CLAIM, found("perhaps", *ALL)).feedback
    assert "could not be read from 'perhaps': it must be SUPPORTED or NOT_SUPPORTED" in said
    assert (
        "Nothing was retrieved; needed: 'Mill', 'The" in reward(CLAIM, Output("perhaps")).feedback
    )


def test_an_example_without_gold_pages_cannot_be_judged() -> None:
    for fields in ({}, {"gold_titles": []}, {"gold_titles": "Mill"}):
        with pytest.raises(RewardError, match="c1 has no gold titles"):
            reward(Example("c1", "A claim.", "SUPPORTED", fields=fields), Output("SUPPORTED"))
