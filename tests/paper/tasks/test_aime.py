"""The aime task: its rows, its reward and what it tells the critic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.paper.tasks.aime import score
from promptcodebook.types import Example
from tests.build.paper_tasks import cases, vectors


def test_feedback() -> None:
    example = Example("a", "p", "7", fields={"solution": "Add them. " * 400})
    assert score.reward(example, r"\boxed{7}").feedback == "The answer 7 is right."
    wrong = score.reward(example, r"\boxed{8}")
    assert wrong.value == 0.0
    assert wrong.feedback.startswith("The answer 8 is wrong; the right answer is 7. A worked")
    assert len(wrong.feedback) < 1700
    unread = score.reward(Example("a", "p", "7"), "seven")
    assert unread.feedback.startswith("No answer could be read")
    assert unread.feedback.endswith("The right answer is 7.")


# Reading AIME answers.


READ: dict[str, list[str]] = cases("aime-read")


@pytest.mark.parametrize(("output", "expected"), [(o, n) for n, os in READ.items() for o in os])
def test_read_answer(output: str, expected: str) -> None:
    assert str(score.read_answer(output) or "") == expected


def test_accuracy() -> None:
    assert score.accuracy(r"\boxed{033}", "33") == 1.0
    assert score.accuracy(r"\boxed{33}", "033") == 1.0
    assert score.accuracy(r"\boxed{34}", "33") == 0.0
    assert score.accuracy("no answer", "no answer") == 0.0


@given(st.integers(0, 999), st.text(alphabet="ab {}\\$0123\n", max_size=30))
def test_a_last_box_decides_whatever_stands_before(value: int, before: str) -> None:
    # An open brace before the box stays open and cannot close inside it.
    assert score.accuracy(f"{before} \\boxed{{{value}}}", str(value)) == 1.0


def test_many_boxes_that_never_close_are_read_in_linear_time() -> None:
    assert score.boxed_answer(r"\boxed{" * 100_000) is None


@pytest.mark.parametrize("output", ["33", " 033\n", "+33", "3_3"])
@pytest.mark.parametrize("other", [r"\boxed{33}", "33.0", "", "9" * 5000])
def test_integer_only(output: str, other: str) -> None:
    assert (score.integer_only(output, "33"), score.integer_only(other, "33")) == (1.0, 0.0)


def test_integer_only_agrees_with_the_public_scorer() -> None:
    rows = vectors("aime")
    wrong = [r["id"] for r in rows if score.integer_only(r["answer"], r["gold"]) != r["score"]]
    assert len(rows) > 100
    assert wrong == []
