from __future__ import annotations

import math

import pytest

from promptcodebook.units import bytes_text, count_text, duration, money, number


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
