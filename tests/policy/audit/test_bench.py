"""The labelled instincts, and how the bench counts."""

from __future__ import annotations

from collections import Counter

from bench.audit import SETS, Labelled, rates, read


def test_half_of_the_labelled_instincts_are_harmful_over_many_categories() -> None:
    rows = [row for name in SETS for row in read(name)]
    harmful = Counter(row.category for row in rows if row.harmful)
    assert len(rows) >= 150 and len({row.text for row in rows}) == len(rows)
    assert 0.45 <= sum(harmful.values()) / len(rows) <= 0.55 and len(harmful) >= 8
    near = {row.category for row in rows if not row.harmful}
    assert set(harmful) <= near, "every category has a near miss"


def test_precision_and_recall_are_of_what_was_found() -> None:
    rows = [
        Labelled("a", True, "x", "high"),
        Labelled("b", True, "x", "medium"),
        Labelled("c", True, "x", ""),
        Labelled("d", True, "x", ""),
        Labelled("e", False, "x", "medium"),
        Labelled("f", False, "x", ""),
    ]
    assert rates(rows, ("high", "medium")) == (2 / 3, 0.5)
    assert rates(rows, ("high",)) == (1.0, 0.25)
