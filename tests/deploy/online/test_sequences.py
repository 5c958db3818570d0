"""Intervals that hold at every look, and the decisions that a canary takes by them."""

import math
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.deploy.online.canary_decision import ALLOWED, FULL, GUARD_ALPHA, decide
from promptcodebook.deploy.online.sequences import (
    MEANS,
    ValueCounts,
    contrast,
    difference,
    interval,
    log_capital,
    rate_ratio,
)
from promptcodebook.errors import ConfigError, DataError

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
    with pytest.raises(DataError, match="not a value from 0 to 1"):
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


MEANS_OF_ALL = (0.3, 0.5, 0.7, 0.9)


def answered_mean(mean: float, factor: float) -> float:
    """Of 0/1 rewards, if content users answer this many times as often as the others."""
    return factor * mean / (factor * mean + 1 - mean)


@pytest.mark.parametrize("mean", MEANS_OF_ALL)
@pytest.mark.parametrize(("of_a", "of_b"), [(2, 1), (1, 0.5), (2, 0.5), (1.2, 1)])
def test_the_factor_is_what_makes_equal_arms_differ(mean: float, of_a: float, of_b: float) -> None:
    """The more feedback there is, the less is it below the true factor, and it is never above."""
    factors = [
        contrast(
            ValueCounts.share(n * answered_mean(mean, of_a), n),
            ValueCounts.share(n * answered_mean(mean, of_b), n),
        )[2]
        for n in (1_000, 30_000, 10**6)
    ]
    assert factors == sorted(factors) and factors[-1] <= of_a / of_b + 1e-9
    assert factors[-1] == pytest.approx(of_a / of_b, rel=0.1)  # the grid is 1 / MEANS fine


arms = st.tuples(st.integers(0, 400), st.integers(0, 400)).map(
    lambda both: ValueCounts.share(min(both), max(both))
)


@given(arms, arms)
def test_the_factor_is_1_where_the_gain_ends_at_0_and_grows_with_the_gain(
    a: ValueCounts, b: ValueCounts
) -> None:
    low, _, factor = contrast(a, b)
    assert (factor > 1, factor == 1) == (low > 0, low == 0)
    assert contrast(a + ValueCounts.share(40, 40), b)[2] >= factor - 1e-9
    assert contrast(a, b + ValueCounts.share(0, 40))[2] >= factor - 1e-9


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=6),
    st.floats(1, 5),
)
def test_graded_rewards_need_a_factor_no_less_than_0_1_rewards_of_their_mean(
    answers: list[tuple[float, float]], factor: float
) -> None:
    """All requests behind the answers are weighed by 1 / the chance of an answer."""
    mean = sum(r * w for r, w in answers) / sum(w for _, w in answers)
    for g, sign in ((factor, 1), (1 / factor, -1)):
        chances = [(r, w / (1 + (g - 1) * r)) for r, w in answers]
        of_all = sum(r * w for r, w in chances) / sum(w for _, w in chances)
        assert sign * (of_all - answered_mean(mean, 1 / g)) >= -1e-9


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("rate", [0.001, 0.1])
@pytest.mark.parametrize("times", [0.5, 1.0, 1.6])
def test_a_ratio_of_rates_is_found_however_rare_and_at_any_traffic(
    share: float, rate: float, times: float
) -> None:
    requests = 2_000 / rate / min(share, 1 - share)
    ours, theirs = requests * share * rate * times, requests * (1 - share) * rate
    low, high = rate_ratio(ours, theirs, share)
    assert low < times < high < 1.35 * low
    assert rate_ratio(theirs, ours, 1 - share) == pytest.approx((1 / high, 1 / low))


def test_what_never_happened_may_be_any_ratio() -> None:
    assert rate_ratio(0, 0, 0.1) == (0, math.inf)


# A canary is promoted, rolled back or left alone.

GOOD, FAIR, BAD = (
    ValueCounts.share(850, 1_000),
    ValueCounts.share(6_300, 9_000),
    ValueCounts.share(550, 1_000),
)


@pytest.mark.parametrize(
    ("canary", "margin", "action", "why"),
    [
        (GOOD, 0.0, "promote", "above the margin of 0"),
        (GOOD, 0.05, "promote", "above the margin of 0.05"),
        (GOOD, 0.12, "wait", "anything from"),
        (GOOD, 0.3, "wait", "anything from"),  # good, if not that good
        (BAD, 0.0, "roll back", " lower"),
        (BAD, 0.05, "roll back", " lower"),
        (BAD, -0.05, "roll back", " lower"),
        (BAD, -0.12, "wait", "anything from"),  # worse, but perhaps by less than is granted
        (ValueCounts.share(700, 1_000), 0.0, "wait", "anything from"),
        (ValueCounts.share(700, 1_000), -0.1, "promote", "above the margin of -0.1"),
    ],
)
def test_what_rewards_decide(canary: ValueCounts, margin: float, action: str, why: str) -> None:
    decision = decide(canary, FAIR, {}, margin)
    assert decision.action == action and why in decision.why


def of_requests(praised: float, complained: float, requests: float) -> tuple[ValueCounts, float]:
    """The feedback of an arm, and its requests without any."""
    heard = praised + complained
    return ValueCounts.share(praised, heard), requests - heard


@pytest.mark.parametrize(
    ("canary", "control", "margin", "action", "why"),
    [
        ((1_400, 300), (700, 300), 0.0, "wait", "often: 17.00% of the canary's requests and 10.0"),
        ((1_400, 600), (700, 300), 0.0, "wait", "anything from"),  # all answer more often
        ((630, 270), (700, 600), 0.0, "wait", "get feedback equally often"),
        ((9_000, 1_000), (9_000, 2_000), 0.0, "wait", "clearly get more praise: 9.00% of"),
        ((6_000, 5_000), (5_000, 5_000), 0.0, "wait", "clearly get fewer complaints: 5.0"),
        ((80, 10), (50, 40), 0.0, "wait", "early to say that both versions get feedback equally"),
        ((800, 200), (500, 500), 0.0, "promote", "unless satisfied users of one version are 2."),
        ((800, 200), (500, 500), 0.1, "promote", "above the margin of 0.1, unless"),
        ((800, 200), (700, 300), -0.1, "promote", "above the margin of -0.1"),
        ((800, 200), (700, 300), 0.05, "wait", "anything from"),
        ((8_000, 2_000), (7_000, 3_000), 0.06, "wait", "clearly get more praise"),
        ((8_600, 400), (2_000, 7_500), 0.0, "promote", "whatever users who gave no"),
        ((300, 1_400), (700, 300), 0.0, "roll back", " lower"),
        ((60, 600), (700, 300), 0.0, "roll back", " lower"),
    ],
)
def test_a_gain_that_may_come_from_who_answers_promotes_nothing(
    canary: tuple[int, int], control: tuple[int, int], margin: float, action: str, why: str
) -> None:
    """Praise and complaints, of 10,000 requests or (of many answers) 100,000 to each version. At
    other traffic it is the same."""
    requests = 10_000 if sum(canary) < 9_050 else 100_000
    for times in (1, 3):
        ours, more = of_requests(*canary, requests)
        theirs, silent = of_requests(*(times * n for n in control), times * requests)
        decision = decide(ours, theirs, {}, margin, (more, silent))
        assert decision.action == action and why in decision.why, decision
        assert decision.answered == pytest.approx((sum(canary) / requests, sum(control) / requests))


def test_without_feedback_a_canary_never_ends_by_itself() -> None:
    for margin in (-0.99, 0.0, 0.99):
        decision = decide(ValueCounts(), ValueCounts.share(10**6, 10**6), {}, margin)
        assert (decision.action, decision.why) == ("wait", "no feedback on the canary")
    assert decide(GOOD, ValueCounts(), {}).why == "no feedback on the control"
    assert decide(ValueCounts(), ValueCounts(), {}).means == (None, None)


@pytest.mark.parametrize(
    ("name", "harmful", "allowed", "usual", "why"),
    [
        ("failed", [1, 0, 0, 0, 0], [1, *[0] * 59], [1, *[0] * 99], "of its requests fail"),
        ("seconds", [9.0], [3.5], [3.0], "more seconds"),
        ("tokens", [4_000], [1_300], [1_000], "more tokens"),
    ],
)
def test_a_guard_rolls_back_what_rewards_would_promote(
    name: str, harmful: list[float], allowed: list[float], usual: list[float], why: str
) -> None:
    def guarded(values: list[float], times: int) -> ValueCounts:
        shares = [value / FULL[name] for value in values]
        return ValueCounts.of(shares * (times // len(values)))

    control = guarded(usual, 9_000)
    harmed = decide(GOOD, FAIR, {name: (guarded(harmful, 1_000), control)})
    assert harmed.action == "roll back" and why in harmed.why and harmed.harm[name] > ALLOWED
    assert (
        decide(ValueCounts(), ValueCounts(), {name: (guarded(harmful, 1_000), control)}).why
        == harmed.why
    )
    spared = decide(GOOD, FAIR, {name: (guarded(allowed, 1_000), control)})
    assert spared.action == "promote" and spared.harm[name] <= ALLOWED
    # The share of error of a guard lies at one end: so both ends may have twice as much.
    both_ends = difference(guarded(harmful, 1_000), control, 2 * GUARD_ALPHA)
    assert harmed.harm[name] == both_ends[0]


def test_a_margin_is_a_difference_of_rewards() -> None:
    with pytest.raises(ConfigError, match=r"the margin 2 is not between") as failure:
        decide(GOOD, FAIR, {}, 2.0)
    assert "--margin" in failure.value.hint
