"""A canary is promoted, rolled back or left alone."""

from __future__ import annotations

import pytest

from bench.canary import ALLOWED, HARM, Job, at, counted, ended, world
from promptcodebook.deploy.online.decisions import FULL, GUARD_ALPHA, decide
from promptcodebook.deploy.online.sequences import ValueCounts, difference
from promptcodebook.errors import ConfigError

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
        (BAD, 0.0, "roll back", "lower by"),
        (BAD, 0.05, "roll back", "lower by"),
        (BAD, -0.05, "roll back", "lower by"),
        (BAD, -0.12, "wait", "anything from"),  # worse, but perhaps by less than is granted
        (ValueCounts.share(700, 1_000), 0.0, "wait", "anything from"),
        (ValueCounts.share(700, 1_000), -0.1, "promote", "above the margin of -0.1"),
    ],
)
def test_what_rewards_decide(canary: ValueCounts, margin: float, action: str, why: str) -> None:
    decision = decide(canary, FAIR, {}, margin)
    assert decision.action == action and why in decision.why


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
        ("seconds", [9.0], [3.5], [3.0], "seconds more"),
        ("tokens", [4_000], [1_300], [1_000], "tokens more"),
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
    with pytest.raises(ConfigError, match=r"a margin of 2 .*") as failure:
        decide(GOOD, FAIR, {}, 2.0)
    assert "--margin" in failure.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "action"),
    [
        (Job("0/1", 0.5, -HARM, horizon=3_000), "roll back"),
        (Job("graded", 0.5, HARM, horizon=2_000), "promote"),
        (Job("seconds", 0.5, 4 * ALLOWED, horizon=1_000), "roll back"),
    ],
)
def test_the_bench_passes_over_no_moment_at_which_a_canary_ends(job: Job, action: str) -> None:
    """It asks only where a decision is possible at all; here each moment is asked."""
    chosen, values = world(job, 1)
    canary, control = counted(values, chosen), counted(values, ~chosen)
    decisions = (at(job, canary[:, each], control[:, each]) for each in range(job.horizon))
    first = next(each for each, action in enumerate(decisions, 1) if action != "wait")
    assert ended(job, 1) == (action, first)
