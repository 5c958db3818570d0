"""Intervals of means at every look, against confseq 0.0.11 (MIT) and by their own promises.

confseq is not installed by `make`: its wheel needs Boost and a compiler, and its code an old numpy.
(The package `expectation` needs Python 3.12 and is GPL-3.) The figures below were recorded so:

    pip download --no-binary :all: --no-deps confseq==0.0.11, its src/confseq on PYTHONPATH,
    with numpy<2, scipy, matplotlib and multiprocess:
    hedged_cs(stream(kind), alpha=0.05, breaks=500)          at 50, 200, 1,000 and 5,000 values
    log(diversified_betting_mart(stream("quarters")[:200], m, [f / m of 0 and each of _FRACTIONS],
        lambdas_weights=the stakes, theta=1, trunc_scale=1))
"""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.deploy.online.sequences import (
    MEANS,
    ValueCounts,
    difference,
    interval,
    log_capital,
)
from promptcodebook.errors import DataError

SPANS = (50, 200, 1_000, 5_000)
HEDGED = {
    "0/1": ((0.612, 0.908), (0.636, 0.842), (0.654, 0.776), (0.676, 0.742)),
    "rare": ((0.0, 0.232), (0.02, 0.118), (0.03, 0.074), (0.036, 0.06)),
    "quarters": ((0.624, 0.822), (0.666, 0.772), (0.676, 0.734), (0.688, 0.718)),
    "graded": ((0.708, 0.868), (0.788, 0.848), (0.818, 0.842), (0.826, 0.84)),
}
CAPITAL = {
    0.5: 52.02220113783524,
    0.6: 18.89646192356325,
    0.64: 7.9005908731934555,
    0.8: -1.6888239434980554,
    0.9: -2.035070387184158,
}
ROOTS = (2**0.5 - 1, 3**0.5 - 1, 5**0.5 - 2, 7**0.5 - 2)
batches = st.lists(st.lists(st.floats(0, 1), max_size=12), max_size=8)


def stream(kind: str, n: int = 5_000) -> list[float]:
    """The same values wherever they are made: i² times a root, less its whole part."""
    spread = [[i * i * root % 1 for root in ROOTS] for i in range(1, n + 1)]
    if kind == "0/1":
        return [float(u[0] < 0.7) for u in spread]
    if kind == "rare":
        return [float(u[0] < 0.05) for u in spread]
    if kind == "quarters":
        return [sum(each < 0.7 for each in u) / 4 for u in spread]
    return [(u[0] ** 0.5 + 1) / 2 for u in spread]


@pytest.mark.parametrize("mean", CAPITAL)
def test_the_capital_of_the_bets_is_confseqs(mean: float) -> None:
    counts = np.array(ValueCounts.of(stream("quarters", 200)).counts)[:, None]
    ours = log_capital(counts, [round(mean * MEANS) - 1])[0, 0]
    assert ours == pytest.approx(CAPITAL[mean], abs=1e-9)


@pytest.mark.parametrize("kind", HEDGED)
def test_intervals_agree_with_confseqs_and_are_about_as_tight(kind: str) -> None:
    """Wider by at most a third, and from 1,000 values on by at most a step of the grid."""
    values = stream(kind)
    for span, (low, high) in zip(SPANS, HEDGED[kind], strict=True):
        ours = interval(ValueCounts.of(values[:span]))
        assert ours[0] < high and low < ours[1]
        most = 4 / 3 * (high - low) if span < 1_000 else high - low + 2 / MEANS
        assert ours[1] - ours[0] <= most + 1e-9


@given(batches, st.randoms(use_true_random=False))
def test_neither_order_nor_batches_change_a_tally(
    given_batches: list[list[float]], draw: random.Random
) -> None:
    whole = ValueCounts.of([value for batch in given_batches for value in batch])
    draw.shuffle(given_batches)
    added = sum((ValueCounts.of(reversed(batch)) for batch in given_batches), ValueCounts())
    assert added.counts == pytest.approx(whole.counts, abs=1e-9)
    assert interval(added) == pytest.approx(interval(whole), abs=1 / MEANS + 1e-9)


@given(st.floats(0, 1), st.integers(1, 2_000))
def test_the_mean_of_equal_values_lies_inside(value: float, n: int) -> None:
    tally = ValueCounts.of([value] * n)
    low, high = interval(tally)
    assert low <= value + 1e-9 and value - 1e-9 <= high
    assert tally.n == n and tally.mean == pytest.approx(value)


@pytest.mark.parametrize("wrong", [math.nan, -0.01, 1.01, math.inf])
def test_what_is_no_value_from_0_to_1_is_refused(wrong: float) -> None:
    with pytest.raises(DataError, match="no value from 0 to 1"):
        ValueCounts.of([0.5, wrong])


def test_a_hundred_thousand_values_take_less_than_a_second() -> None:
    values, start = stream("0/1", 100_000), time.process_time()
    low, high = interval(ValueCounts.of(values))
    assert time.process_time() - start < 1 and 0.69 < low < high < 0.71


def test_a_difference_is_bounded_more_tightly_than_by_two_intervals() -> None:
    a, b = ValueCounts.share(60, 100), ValueCounts.share(630, 900)
    low, high = difference(a, b)
    (a_low, a_high), (b_low, b_high) = interval(a, 0.025), interval(b, 0.025)
    assert low < -0.1 < high and -high == pytest.approx(difference(b, a)[0])
    assert high - low < 0.9 * ((a_high - b_low) - (a_low - b_high))


def test_no_values_bound_a_difference_by_what_the_other_arm_may_be() -> None:
    assert difference(ValueCounts(), ValueCounts()) == (-1, 1)
    low, high = difference(ValueCounts(), ValueCounts.share(900, 900))
    assert low == -1 and 0 < high < 0.05


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.7, 0.98])
def test_looking_at_every_value_rules_out_the_truth_in_few_worlds(mean: float) -> None:
    """Each of 200 worlds is looked at 1,000 times. At alpha = 20 % no more than 20 % of them may
    rule out the truth; 30 % would be 3.5 standard errors more."""
    draw = np.random.default_rng(7)
    false = 0
    for _ in range(200):
        ones = (draw.random(1_000) < mean).cumsum()
        counts = np.zeros((61, 1_000))
        counts[0], counts[-1] = np.arange(1, 1_001) - ones, ones
        row = round(mean * MEANS)
        up = log_capital(counts, [row - 1])[0]
        down = log_capital(counts[::-1], [MEANS - row - 1])[0]
        false += max(up.max(), down.max()) >= math.log(2 / 0.2)
    assert false <= 0.3 * 200
