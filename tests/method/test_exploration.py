"""ε-greedy exploration and SuccWtd (decision 6)."""

import itertools
import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptcodebook.config.schema import Explore, preset
from promptcodebook.method.exploration import (
    epsilon_at,
    explored_route,
    gamma_for,
    success_weighted,
)
from promptcodebook.method.state import RoutingStatistics


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=24),
    st.data(),
    st.floats(0.01, 10),
    st.integers(),
)
def test_exactly_s_distinct_sorted_indices_are_drawn(rates, data, tau: float, seed: int):
    """Decision 6: a draw without replacement."""
    select = data.draw(st.integers(1, len(rates)))
    drawn = success_weighted(rates, select, tau, random.Random(seed))
    assert len(drawn) == select
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(range(len(rates)))


def exact(rates: list[float], select: int, tau: float) -> dict[tuple[int, ...], float]:
    """The chance of every S-subset when entries are taken one after the other, p ∝ exp(r̄/τ)."""
    weights = [math.exp(rate / tau) for rate in rates]
    chance: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(rates)), select):
        left, p = sum(weights), 1.0
        for k in order:
            p *= weights[k] / left
            left -= weights[k]
        subset = tuple(sorted(order))
        chance[subset] = chance.get(subset, 0.0) + p
    return chance


def chi_square(expected: dict[tuple[int, ...], float], draws: list[tuple[int, ...]]) -> float:
    n = len(draws)
    return sum((draws.count(z) - n * p) ** 2 / (n * p) for z, p in expected.items())


RATED = [0.6, 0.2, 0.0, -0.2, -0.5]
# The 99.9 % quantiles of chi-square with 4 and with 9 degrees of freedom.
QUANTILE = {1: 18.47, 2: 27.88, 3: 27.88}


@pytest.mark.parametrize("select", [1, 2, 3])
def test_routes_come_with_the_probabilities_of_successive_sampling(select: int):
    """Decision 6: chi-square over all S-subsets of five entries, 6000 seeded draws."""
    draw = random.Random(7)
    expected = exact(RATED, select, 0.5)
    drawn = [success_weighted(RATED, select, 0.5, draw) for _ in range(6000)]
    assert sum(expected.values()) == pytest.approx(1)
    assert chi_square(expected, drawn) < QUANTILE[select]
    uniform = [tuple(sorted(draw.sample(range(5), select))) for _ in range(6000)]
    assert chi_square(expected, uniform) > QUANTILE[select]


@pytest.mark.parametrize("value", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_are_drawn_from_too(value: float):
    at_the_end = cast("random.Random", SimpleNamespace(random=lambda: value))
    assert success_weighted([0.0, 1.0, 0.5], 2, 0.5, at_the_end) == (1, 2)


@given(st.floats(0.01, 1), st.floats(0.0, 1), st.integers(1, 120))
def test_epsilon_falls_steadily_to_its_floor_at_90_percent(first: float, low: float, epochs: int):
    """Section 3 of the method notes: γ is derived; a short run must not stay all exploration."""
    assume(low <= first)
    settings_ = Explore(epsilon=first, epsilon_min=low)
    values = [epsilon_at(epoch, settings_, epochs) for epoch in range(epochs + 1)]
    assert values[0] == first
    assert all(a >= b for a, b in itertools.pairwise(values))
    at = math.ceil(0.9 * epochs)
    if low > 0:
        assert values[at] == pytest.approx(low)
        assert at < 2 or values[at - 2] > low or low == first
    else:
        assert values[at] <= 0.0101 * first


def test_a_given_gamma_is_the_paper_s_decay():
    """Table 6: 1, 0.96, 0.96², ... down to 0.15, which 0.96 reaches after 47 epochs. Without one
    ε falls by degrees to a hundredth at 90 %; below its floor it rises to that and no further."""

    def values(explore: Explore, epochs: int = 50) -> list[float]:
        return [epsilon_at(epoch, explore, epochs) for epoch in range(epochs + 1)]

    paper = values(Explore(**preset("paper")["explore"]))
    assert paper[:3] == pytest.approx([1.0, 0.96, 0.9216])
    assert paper[46] == pytest.approx(0.96**46) and paper[46] > 0.15 and paper[47:] == [0.15] * 4
    assert epsilon_at(0, Explore(policy="none"), 50) == 0.0
    assert gamma_for(Explore(epsilon=0.15), 50) == 1.0
    endless = values(Explore(epsilon=0.8, epsilon_min=0.0))
    assert endless[45] == pytest.approx(0.008) and endless[50] > 0.0
    assert endless[1] == pytest.approx(0.8 * 0.01 ** (1 / 45))
    assert values(Explore(epsilon=0.1, epsilon_min=0.3), 20) == [0.1] + [0.3] * 20


def test_exploration_prefers_what_succeeded_unless_it_is_to_be_uniform():
    """At τ = 0.01 a lead of 0.5 decides every draw; a uniform draw knows of no lead."""

    def explored(policy: Literal["success", "uniform"]) -> set[tuple[int, ...]]:
        how, draw = Explore(policy=policy, tau=0.01), random.Random(3)
        rated = replace(RoutingStatistics.fresh(4), ema=(0.0, 0.5, 0.0, 0.5))
        return {explored_route(rated, 2, how, draw).indices for _ in range(100)}

    assert explored("success") == {(1, 3)}
    assert explored("uniform") == set(itertools.combinations(range(4), 2))
