"""Exact match and F1 of answers."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.tasks.hotpotqa.score import exact_match, f1

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")


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
    path = SHARED / "vectors" / "hotpotqa.jsonl"
    if not path.is_file():
        pytest.skip(f"no vectors in {path.parent}")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
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
