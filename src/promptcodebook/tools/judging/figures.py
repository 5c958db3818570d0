"""What labelled answers say about a judge: its agreement; and about a difference of means.
Agreement is Cohen's κ (1960), with quadratic weights where labels are ordered (Cohen 1968). Its
interval is that of the disagreement, with the agreement by chance taken as known. `rectified` is
prediction-powered inference (Angelopoulos and others 2023) with the power tuning of PPI++ (2024):
the judge's mean over the answers without labels, plus people's mean less the judge's over those
with labels. It assumes labels on a random choice of answers.

How often a 95 % interval misses, by the judge alone and with labels (1,000 worlds of numbers each,
measured once in November 2026: 200 test inputs, 60 labelled, sensitivity 0.9, specificity 0.7).
Even judge: true gain 0, 5.0 and 5.0 %; 0.15, 23.9 and 4.2 %. One that likes the policy (specificity
0.4): 0, 91.5 and 5.1 %; 0.15, 29.9 and 5.1 %. One that dislikes it (sensitivity 0.6): 0, 86.4 and
3.9 %; 0.15, 99.7 and 4.8 %. Intervals are 6 to 12 % narrower than by the labels alone, and the gain
of 0.15 is seen in 49 to 53 % of worlds instead of 45 to 46 %."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean

from promptcodebook.base.intervals import DIGITS, SIDE, Bounds, Interval, mean_interval

ENOUGH = 20  # labelled answers (or pairs of rollouts) below which nothing is said about the judge
# κ that "use it" needs, what its lower end must reach, and below what it is not trusted.
ALMOST_PERFECT, CLEARLY_GOOD, FAIR = 0.8, 0.6, 0.4
# The share of rows without a judgement that "use it" allows.
FEW = 0.05
MANY = 0.2  # the share of rows without a judgement above which a judge is not trusted


def cohen_kappa(
    rated: Sequence[tuple[Sequence[int], int]], levels: int, side: float = SIDE
) -> Interval | None:
    """κ between people and judge over answers, each with the levels (from 0) that people gave it
    and the judge's; quadratic weights beyond two levels. None where chance alone agrees in full."""

    def apart(a: int, b: int) -> float:
        return ((a - b) / max(1, levels - 1)) ** 2

    seen = [fmean(apart(a, judged) for a in people) for people, judged in rated]
    people, judges = defaultdict[int, float](float), Counter(judged for _, judged in rated)
    for given, _ in rated:
        for level in given:
            people[level] += 1 / len(given)
    chance = sum(people[a] * judges[b] * apart(a, b) for a in people for b in judges)
    chance /= len(rated) ** 2
    if not chance:
        return None
    found = mean_interval(seen, side=side)
    low, high = (max(-1.0, 1 - end / chance) for end in (found.high, found.low))
    return Interval(1 - found.mean / chance, low, high, found.n)


def rectified(
    labelled: Sequence[tuple[float, float]],
    others: Sequence[float],
    bounds: Bounds,
    side: float = SIDE,
    groups: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Interval:
    """The mean that people would give to all, from (label, judge's value) of a random choice and
    the judge's values of the `others`; `groups` are of both. Raises ValueError without labels."""
    n, mean = len(labelled), fmean(j for _, j in labelled)
    spread = math.fsum((j - mean) ** 2 for _, j in labelled)
    weight = 0.0
    if spread and others:
        shared = math.fsum(p * (j - mean) for p, j in labelled)
        weight = min(1.0, max(0.0, shared / spread / (1 + n / len(others))))
    low, high = (weight * end for end in bounds)
    left = [round(p - weight * j, DIGITS) for p, j in labelled]
    error = mean_interval(left, (bounds[0] - high, bounds[1] - low), side, groups[0])
    if not weight:
        return error
    rest = mean_interval([weight * each for each in others], (low, high), side, groups[1])
    # The two are independent: their widths add in squares (Zou and Donner 2008).
    middle = error.mean + rest.mean
    below = math.hypot(error.mean - error.low, rest.mean - rest.low)
    above = math.hypot(error.high - error.mean, rest.high - rest.mean)
    ends = max(bounds[0], middle - below), min(bounds[1], middle + above)
    return Interval(middle, round(ends[0], DIGITS), round(ends[1], DIGITS), error.n + rest.n)
