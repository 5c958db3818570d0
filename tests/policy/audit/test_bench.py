"""The labelled instincts, and how the bench counts."""

from __future__ import annotations

from collections import Counter

from bench.audit import SETS, UNTUNED, Labelled, rates, read, share, wrong


def test_half_of_the_labelled_instincts_are_harmful_over_many_categories() -> None:
    rows = [row for name in SETS[:2] for row in read(name)]
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


def test_the_unseen_instincts_are_of_many_forms_and_are_not_shown() -> None:
    rows = read(UNTUNED)
    forms = Counter((row.harmful, row.form) for row in rows)
    assert len({row.text for row in rows}) == len(rows)
    assert forms[True, "prose"] >= 40 and forms[True, "encoded"] >= 15
    assert forms[True, "language"] >= 10 and forms[True, "trace"] >= 5
    assert forms[False, "alike"] >= 50 and forms[False, "seed"] >= 100
    shown = "\n".join(wrong())
    assert not any(row.text in shown for row in rows)


def test_a_share_has_its_interval() -> None:
    assert share(0, 20) == "0 of 20, 95 %: 0.00 to 0.16"
    assert share(10, 20) == "10 of 20, 95 %: 0.30 to 0.70"
