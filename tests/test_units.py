from __future__ import annotations

import math

import pytest

from promptcodebook.calls import Limits, Usage
from promptcodebook.units import (
    bytes_text,
    count_text,
    duration,
    lost_text,
    money,
    number,
    spent_parts,
)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "unknown"),
        (0.0, "$0"),
        (1234.5, "$1,234.50"),
        (0.1, "$0.10"),
        (0.0523, "$0.052"),
        (0.00005, "$0.00005"),
        (0.0000123, "$0.000012"),
    ],
)
def test_money(usd: float | None, text: str) -> None:
    assert money(usd) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.25, "250 ms"),
        (0.96, "1.0 s"),
        (9.97, "10 s"),
        (59.6, "1 min"),
        (65, "1 min 05 s"),
        (640, "10 min 40 s"),
        (3600, "1 h 00 min"),
        (7199, "1 h 59 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1k"), (1234567, "1.23M"), (999_600, "1M"), (12_300, "12.3k")],
)
def test_counts_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (1000, "1.0 kB"), (1_540_000, "1.5 MB"), (2 * 10**9, "2.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_a_number_that_is_none_is_a_dash() -> None:
    assert number(0.1234) == "0.123"
    assert number(0.1234, signed=True) == "+0.123"
    assert number(0.0, 1) == "0.0"
    assert [number(value) for value in (None, math.nan, math.inf)] == ["-", "-", "-"]
    assert number(None, missing="none") == "none"


def test_what_was_lost_and_what_was_spent_of_a_budget() -> None:
    assert lost_text(Usage(1, 1000, 200)) == "lost to failures: 1 call, up to 1.2k tokens"
    assert lost_text(Usage(3, 1000, 200, 0, 0.5)).endswith("3 calls, up to 1.2k tokens and $0.50")
    spent = Usage(372, 1000, 200, 0, 0.25)
    assert spent_parts(spent, Limits()) == ("372 calls", "1.2k tokens", "$0.25")
    limits = Limits(400, 2_000_000, 5.0)
    all_limits = ("372 of 400 calls", "1.2k of 2M tokens", "$0.25 of $5.00")
    assert spent_parts(spent, limits) == all_limits
    unknown = Usage(1, cost=None)
    assert spent_parts(unknown, Limits()) == ("1 call", "0 tokens", "cost unknown")
