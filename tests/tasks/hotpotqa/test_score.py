"""Exact match and F1 of answers."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.tasks.hotpotqa.score import exact_match, f1, reward
from promptcodebook.types import Example, Output, Score
from tests.tasks.shared import vectors


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


def test_f1_counts_repeated_words() -> None:
    score, precision, recall = f1("pier pier north", "the north pier")
    assert (precision, recall) == (2 / 3, 1.0)
    assert score == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("prediction", "gold"), [("yes it is", "yes"), ("no", "no man"), ("noanswer", "x"), ("x", "y")]
)
def test_f1_is_zero(prediction: str, gold: str) -> None:
    assert f1(prediction, gold) == (0.0, 0.0, 0.0)


@given(st.text(), st.text())
def test_any_texts_have_a_score(prediction: str, gold: str) -> None:
    score, precision, recall = f1(prediction, gold)
    assert 0 <= min(precision, recall) <= score <= max(precision, recall) <= 1
    if exact_match(prediction, gold):
        assert score in (0.0, 1.0)


def test_a_long_answer_is_scored_at_once() -> None:
    begun = time.process_time()
    f1("the a-n, " * 12_000, "an " * 30_000)
    exact_match("the " * 30_000, "a" * 100_000)
    assert time.process_time() - begun < 2


def test_agrees_with_the_public_scorer() -> None:
    rows = vectors("hotpotqa")
    assert len(rows) > 100
    differing = [
        row["id"]
        for row in rows
        if exact_match(row["prediction"], row["gold"]) != row["em"]
        or exact_match(row["prediction"], row["gold"], nfd=True) != row["em_nfd"]
        or f1(row["prediction"], row["gold"])
        != pytest.approx((row["f1"], row["precision"], row["recall"]), abs=1e-12)
    ]
    assert differing == []


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


def test_feedback_on_a_near_miss_gives_the_overlap() -> None:
    assert "F1 0.50" in reward(Example("q", "x", "the long red barge"), Output("red")).feedback


def test_an_output_without_titles_is_scored_as_the_answer() -> None:
    assert reward(EXAMPLE, Output("barge")).value == 1.0
    assert "Hop" not in reward(EXAMPLE, Output("barge")).feedback


def test_composed_and_decomposed_letters_are_equal() -> None:
    assert reward(Example("q", "x", "Caf\u00e9"), Output("Cafe\u0301")).value == 1.0


def test_feedback_is_bounded() -> None:
    long = ["x" * 5000] * 50
    example = Example("q", "x", "y" * 5000, fields={"gold_titles": ["t" * 90] * 50, "facts": long})
    said = reward(example, answered("z" * 5000, ("a",), ("b",)))
    assert len(said.feedback) < 6000
    assert "…" in said.feedback


@given(st.text(), st.text())
def test_any_output_is_scored(output: str, gold: str) -> None:
    assert reward(Example("q", "x", gold), Output(output)).value in (0.0, 1.0)
