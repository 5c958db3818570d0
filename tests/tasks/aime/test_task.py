"""The aime task: its rows, its reward and what it tells the critic."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.errors import DataError
from promptcodebook.tasks.aime.score import (
    accuracy,
    boxed_answer,
    integer_only,
    read_answer,
    reward,
)
from promptcodebook.tasks.aime.task import load_aime
from promptcodebook.types import Example
from tests.tasks.shared import vectors


def test_an_answer_out_of_range_is_named(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        row = {"id": split, "problem": "?", "answer": "1000" if split == "test" else "7"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=r"test\.jsonl:1: .*'1000' is not an integer from 0 to 999"):
        load_aime(tmp_path)


def test_our_own_problems_have_worked_solutions() -> None:
    assert all(e.fields["solution"] for _, part in load_aime().dataset.items() for e in part)


def test_feedback() -> None:
    example = Example("a", "p", "7", fields={"solution": "Add them. " * 400})
    assert reward(example, r"\boxed{7}").feedback == "The answer 7 is right."
    wrong = reward(example, r"\boxed{8}")
    assert wrong.value == 0.0
    assert wrong.feedback.startswith("The answer 8 is wrong; the right answer is 7. A worked")
    assert len(wrong.feedback) < 1700
    unread = reward(Example("a", "p", "7"), "seven")
    assert unread.feedback.startswith("No answer could be read")
    assert unread.feedback.endswith("The right answer is 7.")


# Reading AIME answers.


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (r"So \boxed{33}.", 33),
        (r"\boxed{033}", 33),
        (r"\boxed{12} and at last \boxed{34}", 34),
        (r"\boxed{12} then \fbox{34}", 34),
        (r"\fbox { 34 }", 34),
        (r"\boxed{$34$}", 34),
        (r"\boxed{\text{34}}", 34),
        (r"\boxed{\mathrm{34}}", 34),
        (r"\boxed{34\text{ cm}}", 34),
        (r"\boxed{336^\circ}", 336),
        (r"\boxed{336^{\circ}}", 336),
        (r"\boxed{336°}", 336),
        (r"\boxed{\boxed{7}}", 7),
        (r"\boxed{12} but \boxed{34", 12),
        (r"} \boxed{5}", 5),
        (r"{ \boxed{5}", 5),
        (r"\boxed{1,000}", None),
        (r"\boxed{1000}", None),
        (r"\boxed{-5}", None),
        (r"\boxed{5.0}", None),
        (r"\boxed{\frac{10}{2}}", None),
        (r"\boxed{2+3}", None),
        (r"\boxed{}", None),
        (r"\boxed{x}. The answer is 5.", None),
        ("The answer is 33.", 33),
        ("**Answer:** 33", 33),
        ("answer: $033$", 33),
        (r"Final answer: 336^\circ", 336),
        ("The answer is 12, or rather 13", 13),
        ("The answer is 33, as 3 + 30 shows", 30),
        ("The answer is 1,033", None),
        ("The answer is 3.5", None),
        ("The answer is 5/6", None),
        ("The answer is 2^{10}", None),
        ("The answer is -5", None),
        ("The answer is five", None),
        ("The answer is 3\nThe answer is 4\nBye 5", 4),
        ("I get 33", None),
        ("", None),
    ],
)
def test_read_answer(output: str, expected: int | None) -> None:
    assert read_answer(output) == expected


def test_accuracy() -> None:
    assert accuracy(r"\boxed{033}", "33") == 1.0
    assert accuracy(r"\boxed{33}", "033") == 1.0
    assert accuracy(r"\boxed{34}", "33") == 0.0
    assert accuracy("no answer", "no answer") == 0.0


@given(st.integers(0, 999), st.text(alphabet="ab {}\\$0123\n", max_size=30))
def test_a_last_box_decides_whatever_stands_before(value: int, before: str) -> None:
    # An open brace before the box stays open and cannot close inside it.
    assert accuracy(f"{before} \\boxed{{{value}}}", str(value)) == 1.0


def test_many_boxes_that_never_close_are_read_in_linear_time() -> None:
    assert boxed_answer(r"\boxed{" * 100_000) is None


@pytest.mark.parametrize(
    ("output", "gold", "expected"),
    [
        ("33", "33", 1.0),
        (" 033\n", "33", 1.0),
        ("+33", "33", 1.0),
        ("3_3", "33", 1.0),
        (r"\boxed{33}", "33", 0.0),
        ("33.0", "33", 0.0),
        ("", "33", 0.0),
        ("9" * 5000, "33", 0.0),
    ],
)
def test_integer_only(output: str, gold: str, expected: float) -> None:
    assert integer_only(output, gold) == expected


def test_integer_only_agrees_with_the_public_scorer() -> None:
    rows = vectors("aime")
    wrong = [r["id"] for r in rows if integer_only(r["answer"], r["gold"]) != r["score"]]
    assert len(rows) > 100
    assert wrong == []
