"""Intervals of means that hold at every moment at once, however often one looks.

Betting, after Waudby-Smith and Ramdas (JRSS-B 86, 2024). Somebody who doubts that a mean is at most
m starts with a capital of 1 and stakes fixed fractions f of it: a value x turns such a part into
1 - f + f x / m of itself. If the mean is at most m no bet gains on average, so the capital ever
reaches 1 / alpha with a chance of at most alpha (Ville's inequality). Then m is ruled out.

Three things differ from the paper's hedged capital:

- The fractions are fixed and their capitals are added; the paper's follow the variance seen so far.
  So the order of values has no effect: a `ValueCounts` is all the state, and servers add theirs up.
  Beside the paper's, 95 % intervals of 0/1 rewards have 1.09, 0.95 and 0.82 of the width after 50,
  200 and 1,000 values; those of other rewards may be a fifth wider up to 200 (`bench/canary.py`).
- A value between two of 61 knots counts in part at each. As the logarithm is concave, the capital
  that a tally shows is never above the true one.
- A pair of means is ruled out by the product of both arms' capitals, which no true pair lets grow
  on average. A union bound of two intervals needs 1.4 to 1.7 times as many values.

The mean of an arm must not move while it is watched. `bench/canary.py` has worlds in which both
arms move together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from promptcodebook.errors import DataError, import_extra

KNOTS = 60
MEANS = 500  # intervals end at multiples of 1 / MEANS, rounded outwards
_FRACTIONS = tuple(0.9 / 1.7**k for k in range(10))
_CENTRE, _SPREAD, _KEPT = 0.2, 1.0, 0.1
"""Most is staked on fractions near `_CENTRE`, which serve 50 to 5,000 values. `_KEPT` is never
staked, so that an arm that is wrong about its bets costs the other one no more than that."""

Ends = tuple[float, float]


@cache
def _numpy() -> Any:
    return import_extra("numpy", "judging canaries and drift", "serve")


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Values from 0 to 1, counted at KNOTS + 1 even knots. Tallies add up."""

    counts: tuple[float, ...] = (0.0,) * (KNOTS + 1)

    @classmethod
    def of(cls, values: Iterable[float]) -> ValueCounts:
        """Raises DataError for NaN and values outside 0 to 1."""
        np = _numpy()
        given = np.asarray(list(values), dtype=float)
        wrong = given[~((given >= 0) & (given <= 1))]
        if wrong.size:
            message = f"{wrong[0]} is not a value from 0 to 1"
            raise DataError(message, hint="scale the values, and leave out NaN")
        below = np.minimum((given * KNOTS).astype(int), KNOTS - 1)
        part = given * KNOTS - below
        counts = np.bincount(below, 1 - part, KNOTS + 1) + np.bincount(below + 1, part, KNOTS + 1)
        return cls(tuple(counts.tolist()))

    @classmethod
    def share(cls, count: float, among: float) -> ValueCounts:
        """Ones among zeros and ones."""
        return cls((among - count, *(0.0,) * (KNOTS - 1), count))

    @classmethod
    def counted(cls, rows: Iterable[tuple[int, int, float]]) -> ValueCounts:
        """From the sums of values by the knot below each: knot, count, sum."""
        counts = [0.0] * (KNOTS + 2)
        for knot, count, total in rows:
            part = total * KNOTS - knot * count
            counts[knot] += count - part
            counts[knot + 1] += part
        return cls(tuple(counts[: KNOTS + 1]))

    def times(self, weight: float) -> ValueCounts:
        return ValueCounts(tuple(count * weight for count in self.counts))

    def __add__(self, other: ValueCounts) -> ValueCounts:
        return ValueCounts(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def n(self) -> int:
        return round(math.fsum(self.counts))

    @property
    def mean(self) -> float | None:
        """None without values."""
        total = math.fsum(i * count for i, count in enumerate(self.counts)) / KNOTS
        return total / self.n if self.n else None


def interval(tally: ValueCounts, alpha: float = 0.05) -> Ends:
    """Of one mean. At any number of looks each end errs in at most alpha / 2 of cases."""
    need, (rises, falls) = math.log(2 / alpha), _doubts(tally)
    return float((rises >= need).sum()) / MEANS, 1 - float((falls >= need).sum()) / MEANS


def difference(a: ValueCounts, b: ValueCounts, alpha: float = 0.05) -> Ends:
    """Of mean a - mean b; each end errs in at most alpha / 2 of cases, at any number of looks."""
    low, high, _ = contrast(a, b, alpha)
    return low, high


def contrast(a: ValueCounts, b: ValueCounts, alpha: float = 0.05) -> tuple[float, float, float]:
    """The ends of `difference`, and a factor: the least odds of mean a, m / (1 - m), over those of
    mean b that it leaves. The factor is 1 where the lower end is 0, and above 1 where that is above
    0.

    It says how unequally users may answer until nothing is left of a gain. Let content users (1)
    answer g times as often as the others (0) of the same arm, with g = s of arm a and t of arm b.
    Of 0/1 rewards with mean m, the answers then have odds of g m / (1 - m). So the odds of all are
    those of the answers over g, and a is better than b if and only if s / t is below the ratio of
    their odds. Chances that are equal in both arms cancel out.

    With graded rewards it is a lower bound where the chance to answer is linear in the reward r,
    1 + (g - 1) r times that of r = 0. The mean m of all has E[(r - m) / (1 + (g - 1) r)] = 0 over
    the answers. That function of r is concave for g > 1 and convex for g < 1. Thus among answers of
    one mean those at 0 and 1 move m furthest."""
    (a_rises, a_falls), (b_rises, b_falls) = _doubts(a), _doubts(b)
    mean, partner = _left(a_rises, b_falls, alpha)
    theirs, ours = _left(b_rises, a_falls, alpha)
    low, high = float((mean - partner).min()) / MEANS, -float((theirs - ours).min()) / MEANS
    odds = mean * (MEANS - partner) / ((MEANS - mean) * partner)
    return low, high, float(odds.min())


def rate_ratio(ours: float, theirs: float, share: float, alpha: float = 0.05) -> Ends:
    """How many times as often something happens at a request of one arm as at one of the other.

    - `ours`, `theirs`: how often it happened in each; what has a value from 0 to 1 counts in part.
    - `share`: the first arm's share of the requests.

    Where it happens equally often, each time it is the first arm's with a chance of `share`. Rare
    events are no harder than frequent ones. The larger arm is thinned to twice the smaller one, as
    the intervals are evenly fine: a part of a count never raises a capital above its mean."""
    odds = share / (1 - share)
    a, b = ours * min(1, 2 / odds), theirs * min(1, 2 * odds)
    low, high = interval(ValueCounts.share(a, a + b), alpha)
    equal = odds * min(1, 2 / odds) / min(1, 2 * odds)
    return low / (1 - low) / equal, high / (1 - high) / equal if high < 1 else math.inf


def _left(rises: Any, falls: Any, alpha: float) -> tuple[Any, Any]:
    """The pairs of means at the border of those left, times MEANS. In the cell of means from
    i / MEANS on, all partners from first / MEANS on are ruled out: the capital of `falls` grows
    with the mean it doubts."""
    np = _numpy()
    first = np.searchsorted(falls, math.log(2 / alpha) - rises)
    left = np.flatnonzero(first)  # cells with a partner below
    return left, first[left]


def log_capital(counts: Any, means: Any = slice(None), knots: Any = slice(None)) -> Any:
    """Of who doubts that a mean is at most (i + 1) / MEANS, for each i of `means`: one row each. A
    column of `counts` is one moment; its rows are those of `knots`, where all others are 0."""
    np, (factors, stakes) = _numpy(), _bets()
    logs = factors[means][..., knots] @ counts + stakes[:, None]
    most = logs.max(axis=1)  # so that no part overflows
    return most + np.log(np.exp(logs - most[:, None]).sum(axis=1))


def _doubts(tally: ValueCounts) -> tuple[Any, Any]:
    """Log capital against "at most (i + 1) / MEANS", and against "at least i / MEANS"."""
    counts = _numpy().array(tally.counts)[:, None]
    return log_capital(counts)[:, 0], log_capital(counts[::-1])[::-1, 0]


@cache
def _bets() -> tuple[Any, Any]:
    """The log of what a value does to each part of the capital, by mean, fraction and knot; and the
    log of each part at the start."""
    np = _numpy()
    fractions = np.array((0.0, *_FRACTIONS))[:, None]
    means = np.arange(1, MEANS + 1)[:, None, None] / MEANS
    shape = np.exp(-0.5 * (np.log(np.array(_FRACTIONS) / _CENTRE) / _SPREAD) ** 2)
    stakes = np.array([_KEPT, *(1 - _KEPT) * shape / shape.sum()])
    knots = np.arange(KNOTS + 1) / KNOTS
    return np.log(1 - fractions + fractions * knots / means), np.log(stakes)
