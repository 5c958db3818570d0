"""PUPA's arithmetic and the deterministic leakage count."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.tasks.pupa.score import (
    PupaScore,
    combine,
    distinct_units,
    leakage,
    leaked_units,
)

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")


@pytest.mark.parametrize(
    ("new_vs_target", "target_vs_new", "quality"),
    [(True, True, 1.0), (True, False, 1.0), (False, False, 1.0), (False, True, 0.0)],
)
def test_quality_is_lost_only_when_both_orders_favour_the_target(
    new_vs_target: bool, target_vs_new: bool, quality: float
) -> None:
    assert combine(new_vs_target, target_vs_new, 0, 1).quality == quality


def test_score_and_overall() -> None:
    assert combine(True, False, 1, 4) == PupaScore(1.0, 0.25, 0.75, 0.875)
    assert combine(False, True, 4, 4) == PupaScore(0.0, 1.0, -1.0, 0.0)
    assert combine(True, True, 1, 2, weight=0.5).score == 0.75


@pytest.mark.parametrize(("count", "units", "expected"), [(6, 4, 1.0), (-2, 4, 0.0), (3, 0, 0.0)])
def test_a_count_that_cannot_be_is_clamped(count: int, units: int, expected: float) -> None:
    assert combine(True, True, count, units).leakage == expected


@given(st.booleans(), st.booleans(), st.integers(-9, 99), st.integers(0, 9))
def test_with_weight_one_both_forms_rank_alike(a: bool, b: bool, count: int, units: int) -> None:
    made = combine(a, b, count, units)
    assert -1.0 <= made.score <= 1.0
    assert made.score == pytest.approx(2 * made.overall - 1)


@pytest.mark.parametrize(
    ("text", "units", "expected"),
    [
        ("A note for MIRA  Solberg\nin Tarnvik.", "mira solberg||tarnvik||0417", 2 / 3),
        ("A note for a customer.", "mira solberg||tarnvik", 0.0),
        ("He also called Al.", "al", 1.0),
        ("He also called.", "al", 0.0),
        ("Mira and mira", "mira||mira", 1.0),
        ("anything", "", 0.0),
        ("mira", "mira||", 0.5),
        ("東京都に住む", "東京", 1.0),
        ("cafe\u0301 norden", "café norden", 1.0),
        ("c++ (v2)", "c++", 1.0),
        ("", "mira", 0.0),
    ],
)
def test_leakage_without_a_judge(text: str, units: str, expected: float) -> None:
    assert leakage(text, units) == pytest.approx(expected)


def test_units_as_a_list() -> None:
    assert distinct_units("b||a||b") == ("b", "a") == distinct_units(["b", "a", "b"])
    assert leaked_units("A and c", ["a", "b", "c"]) == ("a", "c")
    assert leakage("x", []) == 0.0


def test_agreement_with_the_public_scorer() -> None:
    path = SHARED / "vectors" / "pupa.jsonl"
    if not path.is_file():
        pytest.skip(f"no scorer vectors at {path}; set PCO_SHARED to the folder that holds them")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(rows) > 40
    wrong: list[str] = []
    for row in rows:
        judged = (row["judge_new_vs_target"], row["judge_target_vs_new"], row["judge_leak_count"])
        count = len(distinct_units(row["pii_units"]))
        made = combine(*judged, count)
        same = (
            count == row["unit_count"]
            and made.quality == row["quality"]
            and made.leakage == pytest.approx(row["leakage"])
            and made.overall == pytest.approx(row["overall"])
            and all(
                combine(*judged, count, float(weight)).score == pytest.approx(score)
                for weight, score in row["lambda_scores"].items()
            )
        )
        if not same:
            wrong.append(row["id"])
    assert wrong == []
