from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.method.policy import repair_route
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Failure, Rollout, Route, Step, Trace
from tests.method.build import parameters


def trace(unit: float | None, rho: float, *indices: int) -> Trace:
    failure = Failure("execute", "E", "m") if unit is None else None
    return Trace(Rollout("x", Route(indices), reward=unit, failure=failure), unit, penalty=rho)


def test_it_begins_with_r_bar_zero():
    assert State.first(parameters()).statistics == RoutingStatistics(
        (0.0,) * 4, (0.0,) * 4, (0,) * 4, (0.0,) * 4
    )


def test_two_averages_are_kept():
    """Decision 5: r̄ of r - ρ may be negative, success of r may not. α = 0.3 from 0; success is
    divided by its weight, 0.3 (decision 25)."""
    state = State.first(parameters()).advance(parameters(), [trace(0.2, 0.7, 0, 3)], 0.3)
    assert state.statistics.ema == pytest.approx((-0.15, 0, 0, -0.15))
    assert state.statistics.success == pytest.approx((0.2, 0, 0, 0.2))
    assert state.statistics.evidence == pytest.approx((0.3, 0, 0, 0.3))
    assert state.statistics.selected == (1, 0, 0, 1) and state.step == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_success_is_the_ema_of_r_without_the_weight_of_its_start(
    rewards: list[float], alpha: float
):
    """Decision 25: an EMA from 0 has the weight 1 - (1 - α)^n after n trials; failures are none."""
    state, plain = State.first(parameters()), 0.0
    for k, reward in enumerate(rewards):
        state = state.advance(parameters(), [trace(reward, 0.0, 0), trace(None, 0.0, 0)], alpha)
        plain += alpha * (reward - plain)
        weight = 1 - (1 - alpha) ** (k + 1)
        assert state.statistics.success[0] == pytest.approx(plain / weight)
        assert state.statistics.known[0] == pytest.approx(weight)
    assert min(rewards) - 1e-9 <= state.statistics.success[0] <= max(rewards) + 1e-9


def test_what_was_known_of_an_instinct_counts_half_once_it_is_rewritten():
    """Decision 25: the next trial weighs 0.3 / 0.405 instead of 0.3 / 0.51."""
    tried = State.first(parameters()).advance(parameters(), [trace(0.2, 0.0, 0, 1)], 0.3)
    new = replace(parameters(), codebook=parameters().codebook.reword(0, "reworded"))
    rewritten = tried.advance(new, [], 0.3)
    assert rewritten.statistics.success == tried.statistics.success
    assert rewritten.statistics.evidence == pytest.approx((0.15, 0.3, 0, 0))
    after = rewritten.advance(new, [trace(1.0, 0.0, 0, 1)], 0.3).statistics
    assert after.success[0] == pytest.approx((0.2 * 0.15 * 0.7 + 0.3) / 0.405)
    assert after.success[1] == pytest.approx((0.2 * 0.3 * 0.7 + 0.3) / 0.51)
    assert after.ema[0] == after.ema[1], "r̄ stays the paper's"


def test_the_average_of_a_run_of_version_01_goes_on_as_it_was():
    old = RoutingStatistics((0.1, 0, 0, 0), (0.4, 0, 0, 0), (2, 0, 0, 0))
    after = State(3, parameters(), old).advance(parameters(), [trace(1.0, 0.0, 0, 1)], 0.3)
    assert after.statistics.success[:2] == pytest.approx((0.4 + 0.3 * 0.6, 1.0))


def test_entries_of_version_01_can_be_picked_and_are_known_by_their_selections():
    old = RoutingStatistics((0.1, 0.2), (0.4, 0.5), (2, 3)).pick([1, None])
    assert old == RoutingStatistics((0.2, 0.0), (0.5, 0.0), (3, 0))
    assert old.known == (1.0, 0.0)
    new = RoutingStatistics((0.1, 0.2), (0.4, 0.5), (2, 3), (0.3, 0.6)).pick([1, None])
    assert new.known == (0.6, 0.0)


def test_an_untried_entry_stands_at_the_mean_of_the_tried():
    """Nothing is known of it: it neither loses to all that gained nor wins over all that lost."""
    good = RoutingStatistics((0.2, 0.4, 0.0, 0.0), (0.0,) * 4, (1, 3, 0, 0))
    assert good.standing == pytest.approx((0.2, 0.4, 0.3, 0.3))
    bad = RoutingStatistics((-0.2, -0.4, 0.0, 0.0), (0.0,) * 4, (1, 3, 0, 0))
    assert repair_route((), bad.standing, 2) == (0, 2)
    assert RoutingStatistics.fresh(2).standing == (0.0, 0.0)


def test_r_minus_rho_stays_within_minus_one_and_one():
    """Decision 5: Theorem 3 assumes [0, 1]; as the algorithm runs, the range is wider."""
    low = high = State.first(parameters())
    for _ in range(60):
        low = low.advance(parameters(), [trace(0.0, 1.0, 0, 1)], 0.3)
        high = high.advance(parameters(), [trace(1.0, 0.0, 0, 1)], 0.3)
    assert -1 <= low.statistics.ema[0] < -0.99 and 0.99 < high.statistics.ema[0] <= 1


def test_a_failed_rollout_joins_no_average():
    """Decision 15."""
    state = State.first(parameters()).advance(parameters(), [trace(None, 0.0, 0, 1)], 0.3)
    assert state.statistics == State.first(parameters()).statistics and state.step == 1


def test_a_stored_step_holds_the_state_after_it():
    step = Step(4, 1, 0.5, (), (), parameters(), (0.1,) * 4, (0.2,) * 4, (1,) * 4,
                evidence=(0.3,) * 4)  # fmt: skip
    assert State.after(step) == State(
        5, parameters(), RoutingStatistics((0.1,) * 4, (0.2,) * 4, (1,) * 4, (0.3,) * 4)
    )
