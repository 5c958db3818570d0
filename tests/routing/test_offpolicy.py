"""What routes are worth by logged outcomes, judged by nothing that they were chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from promptcodebook.intervals import mean_interval
from promptcodebook.method.policy import OffPolicy
from promptcodebook.routing.outcomes import FOLDS, OutcomeModel, Terms, off_policy
from promptcodebook.routing.ranking import BUCKETS, Features
from promptcodebook.types import Outcome, Ranking

TEXTS = ("one", "two", "three")
ONE = Terms(1, 0)
INPUTS = {f"x{i:02}": f"question {i}" for i in range(25)}
NOTHING, ADDS = 0.3, (0.1, 0.4, -0.2)


@dataclass
class Forecast:
    """A model that always forecasts the same, and remembers what it was fitted to."""

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


def seen(i: int, indices: tuple[int, ...], reward: float, chance: float | None = 0.5) -> Outcome:
    n = len(indices)
    return Outcome(f"x{i:02}", indices, (0,) * n, (0.0,) * n, reward, propensity=chance)


def estimate(
    outcomes: Sequence[Outcome], terms: Terms = ONE, forecast: Forecast | None = None
) -> OffPolicy | None:
    made = cast("OutcomeModel", forecast or Forecast())
    return off_policy(made, INPUTS, TEXTS, outcomes, (0, 0, 0), terms)


def judged(outcomes: Sequence[Outcome], terms: Terms = ONE) -> OffPolicy:
    found = estimate(outcomes, terms)
    assert found is not None
    return found


def test_where_no_logged_route_is_the_policys_the_forecast_stands() -> None:
    found = judged([seen(i, (2,), 1.0) for i in range(25)])
    assert found.value.mean == pytest.approx(0.7), "nothing, and what c_1 adds"
    assert found.over_single.mean == pytest.approx(0.0), "c_1 is the best for all as well"
    assert found.over_none.mean == pytest.approx(0.4)
    widest = mean_interval([0.4] * 25, 0, (-1.0, 1.0))
    assert found.over_none.low == pytest.approx(widest.low)
    assert found.over_none.high == pytest.approx(widest.high)
    assert (found.value.n, found.rollouts) == (25, 25)


def test_a_route_that_was_the_policys_corrects_it_by_its_chance() -> None:
    found = judged([seen(i, (1,), 1.0, 0.25) for i in range(25)])
    assert found.value.mean == pytest.approx(0.7 + (1.0 - 0.7) / 0.25)
    assert found.over_single.mean == pytest.approx(0.0)
    assert found.over_none.mean == pytest.approx(0.4 + (1.0 - 0.7) / 0.25)
    none = judged([seen(i, (), 1.0, 0.5) for i in range(25)])
    assert none.value.mean == pytest.approx(0.7)
    assert none.over_none.mean == pytest.approx(0.7 - (0.3 + (1.0 - 0.3) / 0.5))


def test_a_rare_route_weighs_twenty_at_the_most() -> None:
    assert judged([seen(i, (1,), 0.8, 0.001) for i in range(25)]).value.mean == pytest.approx(2.7)
    assert judged([seen(i, (1,), 0.8, 0.05) for i in range(25)]).value.mean == pytest.approx(2.7)
    assert judged([seen(i, (1,), 0.8, 0.1) for i in range(25)]).value.mean == pytest.approx(1.7)


def test_every_example_counts_once_however_often_it_was_visited() -> None:
    """The mean of its own rollouts; differences may be negative."""
    often = [seen(0, (1,), reward, 1.0) for reward in (0.0, 1.0, 0.5, 0.5)]
    rest = [seen(i, (1,), float(i % 2), 1.0) for i in range(1, 25)]
    terms = Terms(1, 0, seed=3)
    found = judged([*often, *rest], terms)
    means = [0.5, *(float(i % 2) for i in range(1, 25))]
    assert found.value == mean_interval(means, 3)
    assert found.over_none == mean_interval([m - 0.3 for m in means], 3, (-1.0, 1.0))
    assert found.over_single == mean_interval([0.0] * 25, 3, (-1.0, 1.0))
    assert found.rollouts == 28


def test_nothing_is_judged_by_what_it_was_chosen_on() -> None:
    """Each of five folds by a fit to the others, which cover all the rest."""
    forecast = Forecast()
    outcomes = [seen(i, (k,), 0.5) for i in range(25) for k in range(2)]
    assert estimate(outcomes, forecast=forecast) is not None
    held_out = [set(INPUTS) - names for names, _, _ in forecast.fitted]
    assert len(held_out) == FOLDS == 5 and {len(names) for names in held_out} == {5}
    assert set.union(*held_out) == set(INPUTS)
    assert all(n == 40 and versions == (0, 0, 0) for _, n, versions in forecast.fitted)


class Split(Forecast):
    """Forecasts by what it was fitted to: c_0 seems best unless x00 was among it."""

    def fit(self, outcomes: Sequence[Outcome], versions: Sequence[int]) -> Forecast:
        return Forecast(
            (0.1, 0.4, 0.0) if "x00" in {o.example_id for o in outcomes} else (0.5, 0.0, 0.0)
        )


def test_a_fold_is_judged_under_its_own_policy() -> None:
    outcomes = [seen(i, (0,), 1.0, 1.0) for i in range(25)]
    found = estimate(outcomes, forecast=Split())
    assert found is not None
    assert found.value.mean == pytest.approx((5 * 1.0 + 20 * 0.7) / 25)


def test_what_a_policy_may_take_bounds_its_routes() -> None:
    pair = [seen(i, (0, 1), 1.0, 1.0) for i in range(25)]
    assert judged(pair, Terms(1, 0)).value.mean == pytest.approx(0.7)
    assert judged(pair, Terms(2, 0)).value.mean == pytest.approx(1.0)
    assert judged(pair, Terms(2, 0)).over_single.mean == pytest.approx(1.0 - 0.7)
    assert judged(pair, Terms(3, 3)).value.mean == pytest.approx(0.3 + 0.1 + 0.4 - 0.2)


def test_where_solved_examples_were_left_out_first_visits_alone_count() -> None:
    first = [seen(i, (1,), 0.5, 1.0) for i in range(25)]
    blame = [replace(seen(i, (1,), -0.4), part=True) for i in range(25)]
    later = [seen(i, (1,), 0.0, 1.0) for i in range(0, 25, 2)]
    found = judged([*blame, *first, *later], Terms(1, 0, first_visits=True))
    assert (found.value.mean, found.rollouts) == (pytest.approx(0.5), 25)
    whole = judged([*blame, *first, *later])
    assert (whole.value.mean, whole.rollouts) == (pytest.approx(0.5 - 13 * 0.25 / 25), 38)


def test_outcomes_of_other_texts_of_blame_or_without_a_chance_judge_nothing() -> None:
    good = [seen(i, (1,), 0.5, 1.0) for i in range(20)]
    stale = [replace(seen(i, (1,), 0.0, 1.0), versions=(1,)) for i in range(20, 25)]
    part = [replace(seen(i, (1,), -1.0, 1.0), part=True) for i in range(20, 25)]
    unknown = [seen(i, (1,), 0.0, None) for i in range(20, 25)]
    found = judged([*good, *stale, *part, *unknown])
    assert (found.value.mean, found.value.n, found.rollouts) == (pytest.approx(0.5), 20, 20)
    half = [replace(seen(i, (0, 1), 0.0, 1.0), versions=(0, 1)) for i in range(20, 25)]
    assert judged([*good, *half]).value.n == 20


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
    assert found is not None
    learned = 0.6  # forecast where c_0 is taken, 0.3 + 0.3, and else the reward
    assert found.value.mean == pytest.approx(learned)
    assert found.over_single.mean == pytest.approx(learned - 0.6)
    assert found.over_none.mean == pytest.approx(learned - 0.3)
    worse = estimate([seen(i, (0,), 0.9, 1.0) for i in range(25)], forecast=Differing())
    assert worse is not None, "c_1 is forecast at 0.5 for all of them"
    assert worse.over_single.mean == pytest.approx((10 * 0.9 + 15 * 0.5) / 25 - 0.5)
    assert worse.over_none.mean == pytest.approx((10 * 0.9 + 15 * 0.5) / 25 - 0.3)
