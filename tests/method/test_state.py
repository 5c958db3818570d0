from __future__ import annotations

import pytest

from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Failure, Rollout, Route, Step, Trace
from tests.method.build import parameters


def trace(unit: float | None, rho: float, *indices: int) -> Trace:
    failure = Failure("execute", "E", "m") if unit is None else None
    return Trace(Rollout("x", Route(indices), reward=unit, failure=failure), unit, penalty=rho)


def test_it_begins_with_r_bar_zero():
    assert State.first(parameters()).statistics == RoutingStatistics(
        (0.0,) * 4, (0.0,) * 4, (0,) * 4
    )


def test_two_averages_are_kept():
    """Decision 5: r̄ of r - ρ may be negative, success of r may not. α = 0.3 from 0."""
    state = State.first(parameters()).advance(parameters(), [trace(0.2, 0.7, 0, 3)], 0.3)
    assert state.statistics.ema == pytest.approx((-0.15, 0, 0, -0.15))
    assert state.statistics.success == pytest.approx((0.06, 0, 0, 0.06))
    assert state.statistics.selected == (1, 0, 0, 1) and state.step == 1


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
    step = Step(4, 1, 0.5, (), (), parameters(), (0.1,) * 4, (0.2,) * 4, (1,) * 4)
    assert State.after(step) == State(
        5, parameters(), RoutingStatistics((0.1,) * 4, (0.2,) * 4, (1,) * 4)
    )
