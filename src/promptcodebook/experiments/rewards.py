"""Rewards of several runs over the same examples: their mean, and what one has over another.

Differences are paired by example; where several seeds took part, the interval covers other seeds as
well (`intervals.py::crossed_interval`).
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.intervals import Interval, crossed_interval, crossed_ratio

Rewards = Sequence[Sequence[float]]
"""By run, then by example."""


def score(runs: Rewards) -> Interval:
    """The mean reward."""
    return crossed_interval(runs)


def difference(a: Rewards, b: Rewards) -> Interval:
    """The mean of a - b; where only one of the two has several runs, the other stands beside each
    of them."""
    runs = max(len(a), len(b))
    wide_a, wide_b = (list(x) * runs if len(x) == 1 else x for x in (a, b))
    return crossed_interval(
        [_minus(one, other) for one, other in zip(wide_a, wide_b, strict=True)],
        bounds=(-1.0, 1.0),
    )


def share(a: Rewards, whole: Rewards, floor: Rewards) -> Interval:
    """(a - floor) / (whole - floor): how much of the whole gain a has."""
    won = [_minus(x, y) for x, y in zip(a, floor, strict=True)]
    right = [_minus(x, y) for x, y in zip(whole, floor, strict=True)]
    return crossed_ratio(won, right)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [round(x - y, 12) for x, y in zip(a, b, strict=True)]
