"""What outcomes teach: sets of instincts, blame, rewritten texts, and routes by upper bounds."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import threadpoolctl

from promptcodebook.base.intervals import mean_interval
from promptcodebook.routing.outcomes import FOLDS, OutcomeModel, RouteLimits, off_policy
from promptcodebook.routing.ranking import BUCKETS, Features, Ranker, dot
from promptcodebook.types import Expected, Outcome, Ranking

TEXTS = ("apple", "pear", "plum", "fig")
INPUTS = {f"x{i}": f"a question number {i}" for i in range(30)}


@cache
def model() -> OutcomeModel:
    return OutcomeModel(INPUTS)


def outcome(name: str, indices: tuple[int, ...], reward: float, version: int = 0) -> Outcome:
    n = len(indices)
    return Outcome(name, indices, (version,) * n, (0.0,) * n, reward, propensity=0.2)


def learned(outcomes: list[Outcome], versions: tuple[int, ...] = (0, 0, 0, 0)) -> Expected:
    ranking = model().fit(outcomes, versions).ranking()
    return Ranker(ranking, TEXTS).expected("a question number 77")


def sets(reward: Any, count: int = 240) -> list[Outcome]:
    """Outcomes of sets of none to two instincts, drawn alike, with the reward that a set earns."""
    draw = random.Random(5)
    made: list[Outcome] = []
    for _ in range(count):
        indices = tuple(sorted(draw.sample(range(4), draw.randint(0, 2))))
        made.append(outcome(draw.choice(list(INPUTS)), indices, reward(set(indices))))
    return made


# --- the model itself, worked out pair by pair ---

SOME = {"a": "a red apple", "b": "a green apple pie", "c": "blue plums, two of them", "d": "figs"}


class Pairwise:
    """The same Gaussian model as its docstring has it: a covariance for every pair of quantities,
    one after the other, and the textbook's posterior (Rasmussen and Williams, eqs. 2.23-2.24)."""

    def __init__(self, made: OutcomeModel, outcomes: list[Outcome], versions: Sequence[int]):
        self.features, self.versions = made.features, versions
        weights = [o.weight for o in outcomes if not o.part]
        rewards = [o.reward for o in outcomes if not o.part]
        self.mean = float(np.average(rewards, weights=weights)) if weights else 0.5
        self.seen = [
            Quantity(
                float(not o.part), made.features(o.example_id),
                dict(zip(o.indices, o.versions, strict=True)), sum(o.likeness),
                0.0 if o.part else max(0.0, len(o.indices) - 1.0),
            )
            for o in outcomes
        ]  # fmt: skip
        noise = np.diag([0.35**2 / o.weight for o in outcomes])
        self.inverse = np.linalg.inv(self.table(self.seen, self.seen) + noise)
        self.y = np.array([o.reward - self.mean * (not o.part) for o in outcomes])

    def table(self, some: Sequence[Quantity], others: Sequence[Quantity]) -> Any:
        return np.array([[a.covariance(b) for b in others] for a in some])

    def of(self, asked: Sequence[Quantity]) -> tuple[Any, Any]:
        """Means and covariances of these quantities, given the outcomes."""
        cross = self.table(asked, self.seen)
        prior = self.table(asked, asked)
        return cross @ self.inverse @ self.y, prior - cross @ self.inverse @ cross.T

    def parts(self, features: Features, likeness: Sequence[float]) -> list[Quantity]:
        """What each instinct adds as it reads now, and what any further one does."""
        own = [
            Quantity(0.0, features, {k: version}, alike, 0.0)
            for k, (version, alike) in enumerate(zip(self.versions, likeness, strict=True))
        ]
        return [*own, Quantity(0.0, {}, {}, 0.0, 1.0)]


@dataclass
class Quantity:
    """What is unknown of a reward or a part: is μ + s in it, which instincts in which version, how
    like the input they are, and how many beyond the first."""

    whole: float
    features: Features
    instincts: dict[int, int]
    likeness: float
    crowd: float

    def covariance(self, other: Quantity) -> float:
        alike = dot(self.features, other.features)
        shared = [
            (v, other.instincts[k]) for k, v in self.instincts.items() if k in other.instincts
        ]
        return (
            self.whole * other.whole * (0.5**2 + 0.3**2 * alike)
            + sum(0.5 ** abs(v - w) * (0.2**2 + 0.5**2 * alike) for v, w in shared)
            + 0.5**2 * self.likeness * other.likeness
            + 0.1**2 * self.crowd * other.crowd
        )


def any_outcomes(seed: int, count: int, newest: int) -> list[Outcome]:
    draw = random.Random(seed)
    made: list[Outcome] = []
    for _ in range(count):
        part = draw.random() < 0.3
        indices = tuple(sorted(draw.sample(range(4), 1 if part else draw.randint(0, 3))))
        made.append(
            Outcome(
                draw.choice(list(SOME)), indices,
                tuple(draw.randint(0, newest) for _ in indices),
                tuple(round(draw.random(), 3) for _ in indices),
                -draw.random() if part else draw.random(), draw.choice((0.25, 1.0, 2.0)), part,
            )
        )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("seed", "count", "newest"), [(1, 12, 0), (2, 15, 2), (3, 1, 1), (4, 25, 1)]
)
def test_what_is_known_is_the_posterior_of_the_stated_model(seed: int, count: int, newest: int):
    """Rewards and blame, weights, versions, likeness and crowds, all at once."""
    made, versions = OutcomeModel(SOME), (newest, newest, newest, newest + 1)
    outcomes = any_outcomes(seed, count, newest)
    exact, posterior = Pairwise(made, outcomes, versions), made.fit(outcomes, versions)
    likeness = (0.4, 0.0, 0.1, 0.7)
    for features in (made.features("b"), made.vocabulary.features("a plum of another colour")):
        adding = posterior.at(features, likeness)
        mean, covariance = exact.of(exact.parts(features, likeness))
        own, more = adding.means
        assert [*own, more] == pytest.approx(list(mean), abs=1e-9)
        drawn = np.array([[*parts, more] for parts, more in adding.draws(4000, 7, 0.5)])
        assert np.abs(drawn.mean(axis=0) - mean).max() < 0.05
        assert np.abs(np.cov(drawn.T) - 0.25 * covariance).max() < 0.02
        assert adding.draws(3, 7, 0.0) == [(own, more)] * 3


@pytest.mark.parametrize(("seed", "newest"), [(5, 0), (6, 2)])
def test_the_ranking_promises_what_is_known(seed: int, newest: int):
    """Plain numbers, weights to a hundredth of the greatest: as near as that lets it be."""
    made, versions = OutcomeModel(SOME), (newest,) * 4
    outcomes = any_outcomes(seed, 20, newest)
    exact, ranking = Pairwise(made, outcomes, versions), made.fit(outcomes, versions).ranking(1)
    assert (ranking.least, ranking.outcomes, ranking.kind) == (1, 20, "outcomes")
    assert max(abs(w) for row in ranking.weights for w in row) == 100
    ranker = Ranker(ranking, TEXTS)
    for text in (*SOME.values(), "a fig and a pear", ""):
        features = made.vocabulary.features(text)
        alike = [dot(features, made.vocabulary.spelled(own)) for own in TEXTS]
        parts = exact.parts(features, alike)
        mean, _ = exact.of([Quantity(1.0, features, {}, 0.0, 0.0), *parts])
        found = ranker.expected(text)
        near = 0.51 * ranking.unit * sum(features.values()) + 3e-4
        assert abs(found.nothing - exact.mean - mean[0]) < near
        for k in range(4):
            assert abs(found.marginal[k] - mean[1 + k]) < near, (text, k)
        assert abs(found.more - mean[5]) < 1e-5


def test_before_any_reward_nothing_is_promised() -> None:
    posterior = model().fit([], (0,) * 4)
    ranking = posterior.ranking()
    assert ranking.bias == (0.5, 0.0, 0.0, 0.0, 0.0) and not any(map(any, ranking.weights))
    assert (ranking.unit, ranking.likeness, ranking.more, ranking.outcomes) == (0.0, 0.0, 0.0, 0)
    features = model().features("x1")
    own, more = posterior.at(features, (0.0,) * 4).means
    assert (own, more) == ([0.0] * 4, 0.0)
    drawn = np.array([[*k, m] for k, m in posterior.at(features, (0.0,) * 4).draws(4000, 7, 1.0)])
    spread = [math.sqrt(0.2**2 + 0.5**2)] * 4
    assert drawn.std(axis=0) == pytest.approx([*spread, 0.1], rel=0.05)
    blamed = [Outcome("x1", (0,), (0,), (0.0,), -0.4, 0.25, part=True)]
    ranking = model().fit(blamed, (0,) * 4).ranking()
    assert ranking.bias[0] == 0.5 and ranking.bias[1] < 0.0


def test_of_very_many_outcomes_the_latest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = sets(lambda z: float(0 in z), 50)
    latest, one_more = learned(outcomes[-30:]), learned(outcomes[-31:])
    monkeypatch.setattr("promptcodebook.routing.outcomes.MOST", 30)
    assert learned(outcomes) == latest != one_more


@pytest.mark.slow
def test_rows_without_outcomes_take_no_memory() -> None:
    many = {f"x{i}": f"a question number {i}" for i in range(3000)}
    outcomes = [outcome(f"x{i}", (i % 4,), float(i % 3 == 0)) for i in range(0, 3000, 100)]
    tracemalloc.start()
    try:
        made = OutcomeModel(many)
        ranking = made.fit(outcomes, (0,) * 4).ranking()
        assert off_policy(made, TEXTS, outcomes, (0,) * 4, ONE) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ranking.outcomes == 30
    assert peak < 20e6, "as a table of all rows by all others took 170 MB"


def test_sums_run_in_one_thread_whatever_the_number_of_cores() -> None:
    with model().one_thread():
        pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
        assert pools and {pool["num_threads"] for pool in pools} == {1}


# What routes are worth by logged outcomes, judged by nothing that they were chosen on.

TEXTS_OFFPOLICY = ("one", "two", "three")
ONE = RouteLimits(1, 0)
INPUTS_OFFPOLICY = {f"x{i:02}": f"question {i}" for i in range(25)}
NOTHING, ADDS = 0.3, (0.1, 0.4, -0.2)


@dataclass
class Forecast:
    """A model that always forecasts the same, and remembers what it was fitted to."""

    inputs = INPUTS_OFFPOLICY
    adds: tuple[float, ...] = ADDS
    fitted: list[tuple[set[str], int, tuple[int, ...]]] = field(default_factory=list[Any])

    def fit(self, outcomes: Sequence[Outcome], versions: Sequence[int]) -> Forecast:
        self.fitted.append(({o.example_id for o in outcomes}, len(outcomes), tuple(versions)))
        return self

    def ranking(self, least: int = 0) -> Ranking:
        weights = ((0,) * BUCKETS,) * (len(self.adds) + 1)
        return Ranking((1.0,) * BUCKETS, 1.0, weights, (NOTHING, *self.adds), least=least)

    def features(self, example_id: str) -> Features:
        return {}

    @property
    def mean(self) -> Features:
        read = [self.features(name) for name in self.inputs]
        return {k: sum(f.get(k, 0.0) for f in read) / len(read) for f in read for k in f}


def seen(i: int, indices: tuple[int, ...], reward: float, chance: float | None = 0.5) -> Outcome:
    n = len(indices)
    return Outcome(f"x{i:02}", indices, (0,) * n, (0.0,) * n, reward, propensity=chance)


def estimate(
    outcomes: Sequence[Outcome], terms: RouteLimits = ONE, forecast: Forecast | None = None
) -> Any:
    made = cast("OutcomeModel", forecast or Forecast())
    return off_policy(made, TEXTS_OFFPOLICY, outcomes, (0, 0, 0), terms)


def test_a_route_that_was_the_policys_corrects_the_forecast_by_its_chance() -> None:
    found = estimate([seen(i, (2,), 1.0) for i in range(25)])
    assert found.value.mean == pytest.approx(0.7), "nothing, and what c_1 adds"
    assert found.over_single.mean == pytest.approx(0.0), "c_1 is the best for all as well"
    assert found.over_none.mean == pytest.approx(0.4)
    widest = mean_interval([0.4] * 25, (-1.0, 1.0))
    assert found.over_none.low == pytest.approx(widest.low)
    assert found.over_none.high == pytest.approx(widest.high)
    assert (found.value.n, found.rollouts) == (25, 25)
    found = estimate([seen(i, (1,), 1.0, 0.25) for i in range(25)])
    assert found.value.mean == pytest.approx(0.7 + (1.0 - 0.7) / 0.25)
    assert found.over_single.mean == pytest.approx(0.0)
    assert found.over_none.mean == pytest.approx(0.4 + (1.0 - 0.7) / 0.25)
    none = estimate([seen(i, (), 1.0, 0.5) for i in range(25)])
    assert none.value.mean == pytest.approx(0.7)
    assert none.over_none.mean == pytest.approx(0.7 - (0.3 + (1.0 - 0.3) / 0.5))
    assert estimate([seen(i, (1,), 0.8, 0.001) for i in range(25)]).value.mean == pytest.approx(2.7)
    assert estimate([seen(i, (1,), 0.8, 0.05) for i in range(25)]).value.mean == pytest.approx(2.7)
    assert estimate([seen(i, (1,), 0.8, 0.1) for i in range(25)]).value.mean == pytest.approx(1.7)


def test_every_example_counts_once_however_often_it_was_visited() -> None:
    """The mean of its own rollouts; differences may be negative."""
    often = [seen(0, (1,), reward, 1.0) for reward in (0.0, 1.0, 0.5, 0.5)]
    rest = [seen(i, (1,), float(i % 2), 1.0) for i in range(1, 25)]
    terms = RouteLimits(1, 0)
    found = estimate([*often, *rest], terms)
    means = [0.5, *(float(i % 2) for i in range(1, 25))]
    assert found.value == mean_interval(means)
    assert found.over_none == mean_interval([m - 0.3 for m in means], (-1.0, 1.0))
    assert found.over_single == mean_interval([0.0] * 25, (-1.0, 1.0))
    assert found.rollouts == 28


def test_nothing_is_judged_by_what_it_was_chosen_on() -> None:
    """Each of five folds by a fit to the others, which cover all the rest."""
    forecast = Forecast()
    outcomes = [seen(i, (k,), 0.5) for i in range(25) for k in range(2)]
    assert estimate(outcomes, forecast=forecast) is not None
    held_out = [set(INPUTS_OFFPOLICY) - names for names, _, _ in forecast.fitted]
    assert len(held_out) == FOLDS == 5 and {len(names) for names in held_out} == {5}
    assert set.union(*held_out) == set(INPUTS_OFFPOLICY)
    assert all(n == 40 and versions == (0, 0, 0) for _, n, versions in forecast.fitted)


def test_what_a_policy_may_take_bounds_its_routes() -> None:
    pair = [seen(i, (0, 1), 1.0, 1.0) for i in range(25)]
    assert estimate(pair, RouteLimits(1, 0)).value.mean == pytest.approx(0.7)
    assert estimate(pair, RouteLimits(2, 0)).value.mean == pytest.approx(1.0)
    assert estimate(pair, RouteLimits(2, 0)).over_single.mean == pytest.approx(1.0 - 0.7)
    assert estimate(pair, RouteLimits(3, 3)).value.mean == pytest.approx(0.3 + 0.1 + 0.4 - 0.2)


def test_only_first_visits_of_present_texts_with_a_known_chance_judge() -> None:
    first = [seen(i, (1,), 0.5, 1.0) for i in range(25)]
    blame = [replace(seen(i, (1,), -0.4), part=True) for i in range(25)]
    later = [seen(i, (1,), 0.0, 1.0) for i in range(0, 25, 2)]
    found = estimate([*blame, *first, *later], RouteLimits(1, 0, first_visits=True))
    assert (found.value.mean, found.rollouts) == (pytest.approx(0.5), 25)
    whole = estimate([*blame, *first, *later])
    assert (whole.value.mean, whole.rollouts) == (pytest.approx(0.5 - 13 * 0.25 / 25), 38)
    good = [seen(i, (1,), 0.5, 1.0) for i in range(20)]
    stale = [replace(seen(i, (1,), 0.0, 1.0), versions=(1,)) for i in range(20, 25)]
    part = [replace(seen(i, (1,), -1.0, 1.0), part=True) for i in range(20, 25)]
    unknown = [seen(i, (1,), 0.0, None) for i in range(20, 25)]
    found = estimate([*good, *stale, *part, *unknown])
    assert (found.value.mean, found.value.n, found.rollouts) == (pytest.approx(0.5), 20, 20)
    half = [replace(seen(i, (0, 1), 0.0, 1.0), versions=(0, 1)) for i in range(20, 25)]
    assert estimate([*good, *half]).value.n == 20


def test_below_twenty_examples_there_is_no_estimate() -> None:
    assert estimate([seen(i, (1,), 0.5) for i in range(19)]) is None
    assert estimate([seen(i % 19, (1,), 0.5) for i in range(60)]) is None
    assert estimate([seen(0, (1,), 0.5)]) is None and estimate([]) is None
    assert estimate([seen(i, (1,), 0.5) for i in range(20)]) is not None


def test_the_best_single_is_the_best_for_all_together() -> None:
    """Not the best of any one input: here by forecasts that differ between inputs."""

    class Differing(Forecast):
        def ranking(self, least: int = 0) -> Ranking:
            rows = [[0] * BUCKETS for _ in range(4)]
            rows[1][7] = 30  # c_0 where the input has bucket 7
            made = super().ranking(least)
            weights = tuple(map(tuple, rows))
            return replace(made, weights=weights, unit=0.01, bias=(0.3, 0.0, 0.2, -0.5))

        def features(self, example_id: str) -> Features:
            return {7: 1.0} if example_id < "x10" else {}

    outcomes = [seen(i, (1,), 0.6, 1.0) for i in range(25)]
    found = estimate(outcomes, forecast=Differing())
    learned = 0.6  # forecast where c_0 is taken, 0.3 + 0.3, and else the reward
    assert found.value.mean == pytest.approx(learned)
    assert found.over_single.mean == pytest.approx(learned - 0.6)
    assert found.over_none.mean == pytest.approx(learned - 0.3)
    worse = estimate([seen(i, (0,), 0.9, 1.0) for i in range(25)], forecast=Differing())
    assert worse.over_single.mean == pytest.approx((10 * 0.9 + 15 * 0.5) / 25 - 0.5)
    assert worse.over_none.mean == pytest.approx((10 * 0.9 + 15 * 0.5) / 25 - 0.3)
