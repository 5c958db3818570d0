"""Bootstrap intervals, paired where two policies saw the same examples. Seeded, pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.randomness import keyed_random

__all__ = ["Interval", "clustered_interval", "mean_interval", "paired_interval"]

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % percentile interval over n values."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean of the values, resampled with replacement; a single value has no width."""
    n = len(values)
    if n == 0:
        raise ValueError("no values to take an interval of")
    mean = sum(values) / n
    if n == 1 or min(values) == max(values):
        return Interval(mean, mean, mean, n)
    draw = keyed_random(seed, "bootstrap", n)
    means = sorted(sum(draw.choices(values, k=n)) / n for _ in range(RESAMPLES))
    return Interval(mean, means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1], n)


def paired_interval(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Interval:
    """The mean of a - b over the same examples in the same order, with its interval."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)], seed)


def clustered_interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The mean over groups (worlds, runs) of equal weight: groups are drawn with replacement, then
    values within each, so that the interval covers another draw of groups as well."""
    if not groups or not all(groups):
        raise ValueError("no values to take an interval of")
    draw = keyed_random(seed, "clustered", len(groups))

    def resampled() -> float:
        chosen = draw.choices(groups, k=len(groups))
        return sum(sum(draw.choices(g, k=len(g))) / len(g) for g in chosen) / len(groups)

    mean = sum(sum(g) / len(g) for g in groups) / len(groups)
    means = sorted(resampled() for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return Interval(mean, low, high, sum(map(len, groups)))
