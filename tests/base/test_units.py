import math
from collections.abc import Callable

import pytest

from promptcodebook.base import units
from promptcodebook.calls import Limits, Usage


@pytest.mark.parametrize(("show", "values", "texts"), [
    (units.money, (None, 0.0, 1234.5, 0.1), "unknown|$0|$1,234.50|$0.10"),
    (units.money, (0.0523, 0.00005, 0.0000123), "$0.052|$0.00005|$0.000012"),
    (units.duration, (0.0, 0.25, 0.96, 9.97, 59.6), "0 ms|250 ms|1.0 s|10 s|1 min"),
    (units.duration, (65, 640, 3600, 7199), "1 min 05 s|10 min 40 s|1 h 00 min|1 h 59 min"),
    (units.count_text, (0, 999, 999.6, 1234567, 999_600, 12_300), "0|999|1k|1.23M|1M|12.3k"),
    (units.bytes_text, (999, 1000, 1_540_000, 2 * 10**9), "999 B|1.0 kB|1.5 MB|2.0 GB"),
    (units.number, (0.1234, None, math.nan, math.inf), "0.123|-|-|-"),
])  # fmt: skip
def test_amounts_as_people_read_them(
    show: Callable[..., str], values: tuple[float | None, ...], texts: str
) -> None:
    assert list(map(show, values)) == texts.split("|")


def test_the_plural_of_a_noun_with_of_is_at_its_head() -> None:
    assert [units.plural(n, "line of Python") for n in (1, 2)] == [
        "1 line of Python", "2 lines of Python",
    ]  # fmt: skip
    assert units.plural(0, "reply", "replies") == "0 replies"


def test_a_number_has_its_sign_and_digits_as_asked() -> None:
    assert units.number(0.1234, signed=True) == "+0.123"
    assert units.number(0.0, 1) == "0.0"
    assert units.number(None, missing="none") == "none"


def test_what_was_lost_and_what_was_spent_of_a_budget() -> None:
    assert units.lost_text(Usage(1, 1000, 200)) == "lost to failures: 1 call, up to 1.2k tokens"
    assert units.lost_text(Usage(3, 1000, 200, 0, 0.5)).endswith(
        "3 calls, up to 1.2k tokens and $0.50"
    )
    spent = Usage(372, 1000, 200, 0, 0.25)
    assert units.spent_parts(spent, Limits()) == ("372 calls", "1.2k tokens", "$0.25")
    limits = Limits(400, 2_000_000, 5.0)
    all_limits = ("372 of 400 calls", "1.2k of 2M tokens", "$0.25 of $5.00")
    assert units.spent_parts(spent, limits) == all_limits
    unknown = Usage(1, cost=None)
    assert units.spent_parts(unknown, Limits()) == ("1 call", "0 tokens", "cost unknown")
