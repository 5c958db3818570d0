"""The three levels, strict and loose, against figures worked out by hand."""

from __future__ import annotations

import pytest

from promptcodebook.errors import DataError
from promptcodebook.tasks.ifbench.score import Grade, accuracy


def test_prompt_level_instruction_level_and_mean_share() -> None:
    made = accuracy(
        [
            Grade([True], [True]),
            Grade([True, False], [True, True]),
            Grade([False, False, False], [True, False, False]),
        ]
    )
    assert made.n == 3
    assert made.strict.prompt == pytest.approx(1 / 3)  # the first alone
    assert made.strict.instruction == pytest.approx(2 / 6)  # pooled
    assert made.strict.share == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert made.loose.prompt == pytest.approx(2 / 3)
    assert made.loose.instruction == pytest.approx(4 / 6)
    assert made.loose.share == pytest.approx((1 + 1 + 1 / 3) / 3)


def test_nothing_graded_is_no_figure() -> None:
    with pytest.raises(DataError, match="no graded responses"):
        accuracy([])
