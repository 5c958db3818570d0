"""What outcomes teach: sets of instincts, blame, rewritten texts, and routes by upper bounds."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from promptcodebook.config import RouterSettings
from promptcodebook.errors import MissingExtra
from promptcodebook.method.state import State
from promptcodebook.randomness import Draws
from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import Features, Ranker, dot
from promptcodebook.routing.router import OutcomeRouter, outcomes_of
from promptcodebook.types import (
    Codebook,
    Example,
    Expected,
    Gradients,
    Instinct,
    Outcome,
    Parameters,
    Rollout,
    Route,
    Trace,
)

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


def test_a_sets_reward_is_laid_at_its_members() -> None:
    """Two that help add up, one that hurts is left out, and the set is chosen whole."""
    expected = learned(sets(lambda z: 0.3 + 0.3 * (0 in z) + 0.2 * (1 in z) - 0.3 * (2 in z)))
    assert abs(expected.of((0, 1)) - 0.8) < 0.1
    assert abs(expected.alone(2) - 0.0) < 0.1
    ranking = (
        model()
        .fit(sets(lambda z: 0.3 + 0.3 * (0 in z) + 0.2 * (1 in z) - 0.3 * (2 in z)), (0,) * 4)
        .ranking()
    )
    ranker = Ranker(ranking, TEXTS)
    assert set(ranker.choose("a question number 77", 2)) == {0, 1}
    assert set(ranker.choose("a question number 77", 1)) == {0}


def test_instincts_that_get_in_each_others_way_are_taken_alone() -> None:
    """The other side: any one is worth 0.5, and any two together no more than none."""
    outcomes = sets(lambda z: 0.5 * (len(z) == 1), 400)
    expected = learned(outcomes)
    assert expected.more < -0.15
    ranker = Ranker(model().fit(outcomes, (0,) * 4).ranking(), TEXTS)
    assert len(ranker.choose("a question number 77", 2)) == 1


def test_what_was_known_of_a_text_counts_less_with_each_rewrite() -> None:
    good = [outcome(name, (0,), 0.9) for name in INPUTS]
    good += [outcome(name, (), 0.1) for name in INPUTS]
    adds = [learned(good, (version, 0, 0, 0)).marginal[0] for version in range(4)]
    assert adds[0] > 0.5
    for before, after in pairwise(adds):
        assert abs(after - before / 2) < 0.02, adds
    others = [learned(good, (version, 0, 0, 0)).marginal[1] for version in range(4)]
    assert max(others) - min(others) < 0.02, "the others' texts are as they were"


def test_the_new_texts_own_outcomes_outweigh_the_old_ones() -> None:
    old = [outcome(name, (0,), 0.9) for name in INPUTS] + [outcome(n, (), 0.1) for n in INPUTS]
    new = [outcome(name, (0,), 0.0, version=1) for name in INPUTS]
    assert learned(old, (1, 0, 0, 0)).marginal[0] > 0.2
    assert learned([*old, *new], (1, 0, 0, 0)).marginal[0] < 0.0


BOOK = Codebook(tuple(map(Instinct, TEXTS)))


def begun(**settings: Any) -> tuple[OutcomeRouter, State]:
    router = OutcomeRouter(RouterSettings(kind="outcomes", **settings), 2, model())
    return router, router.begin(State.first(Parameters("", "phi", BOOK, "psi")))


def trace(name: str, indices: tuple[int, ...], reward: float, blamed: dict[int, str]) -> Trace:
    rollout = Rollout(name, Route(indices, propensity=0.1), "p", "y", reward=reward)
    return Trace(rollout, reward, penalty=0.4, gradients=Gradients(codebook=blamed))


def test_blame_is_an_outcome_of_the_instinct_alone() -> None:
    """Beside the reward, which both share: minus an even share of the penalty, at a fourth."""
    _, state = begun()
    whole, *parts = outcomes_of(model(), state, [trace("x1", (0, 1), 0.6, {1: "too vague"})])
    assert (whole.indices, whole.reward, whole.part) == ((0, 1), 0.6, False)
    [part] = parts
    assert (part.indices, part.reward, part.weight, part.part) == ((1,), -0.4, 0.25, True)
    both = outcomes_of(model(), state, [trace("x1", (0, 1), 0.6, {0: "a", 1: "b"})])
    assert [each.reward for each in both[1:]] == [-0.2, -0.2]


def test_a_blamed_instinct_falls_behind_one_that_earned_as_much() -> None:
    _, state = begun()
    alike = [trace(name, (0, 1), 0.6, {}) for name in INPUTS]
    blamed = [trace(name, (0, 1), 0.6, {1: "too vague"}) for name in INPUTS]
    fair = learned(outcomes_of(model(), state, alike))
    unfair = learned(outcomes_of(model(), state, blamed))
    assert abs(fair.marginal[0] - fair.marginal[1]) < 0.01
    assert unfair.marginal[0] > unfair.marginal[1] + 0.2


async def routes(router: OutcomeRouter, state: State, count: int = 60) -> list[Route]:
    example = Example("x1", INPUTS["x1"])
    return [(await router.route(example, state, 0.0, Draws(0, i, "x1")))[0] for i in range(count)]


async def test_upper_bounds_take_what_is_little_known() -> None:
    """Of two that seem worth the same, the one with fewer outcomes; without a scale, none."""
    known = [trace(name, (0,), 0.6, {}) for name in INPUTS]
    known += [trace(name, (k,), 0.2, {}) for k in (2, 3) for name in INPUTS]
    known += [trace(name, (), 0.5, {}) for name in INPUTS]
    for scale, expects in ((1.0, True), (0.0, False)):
        router, state = begun(explore="upper", scale=scale, floor=0.0)
        state = router.learn(state, known, state)
        [indices] = {route.indices for route in await routes(router, state)}
        assert (1 in indices) is expects, "nothing was seen of it"
        assert 0 in indices and not {2, 3} & set(indices)


async def test_the_chance_of_a_route_by_upper_bounds_is_its_share() -> None:
    """One route but for the floor: how often each comes is the chance that is logged with it."""
    router, state = begun(explore="upper", floor=0.4)
    made = await routes(router, state, 600)
    shares = Counter(route.indices for route in made)
    chances = {route.indices: route.propensity for route in made}
    for indices, chance in chances.items():
        assert chance is not None and abs(shares[indices] / 600 - chance) < 0.06, indices
    best = max(chances, key=lambda z: chances[z] or 0.0)
    assert (chances[best] or 0.0) > 0.6 and len(shares) > 6


async def test_a_set_has_as_many_instincts_as_promise_to_add() -> None:
    """With S = 2 and least = 0 or 2: one that helps alone, or filled up."""
    helps = [trace(name, (k,), 0.9 if k == 0 else 0.1, {}) for k in range(4) for name in INPUTS]
    helps += [trace(name, (), 0.4, {}) for name in INPUTS]
    for least, size in ((0, 1), (2, 2)):
        router, state = begun(scale=0.0, floor=0.0, least=least)
        state = router.learn(state, helps, state)
        [indices] = {route.indices for route in await routes(router, state, 5)}
        assert 0 in indices and len(indices) == size


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
        spread = np.sqrt(np.diag(covariance))
        high, most = adding.upper(2.0)
        assert [*high, most] == pytest.approx(list(mean + 2.0 * spread), abs=1e-7)
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


def test_before_any_outcome_nothing_is_promised() -> None:
    posterior = model().fit([], (0,) * 4)
    ranking = posterior.ranking()
    assert ranking.bias == (0.5, 0.0, 0.0, 0.0, 0.0) and not any(map(any, ranking.weights))
    assert (ranking.unit, ranking.likeness, ranking.more, ranking.outcomes) == (0.0, 0.0, 0.0, 0)
    features = model().features("x1")
    own, more = posterior.at(features, (0.0,) * 4).means
    assert (own, more) == ([0.0] * 4, 0.0)
    high, most = posterior.at(features, (0.0,) * 4).upper(1.0)
    assert high == pytest.approx([math.sqrt(0.2**2 + 0.5**2)] * 4) and most == pytest.approx(0.1)


def test_blame_alone_leaves_the_middle_of_the_range_as_the_mean() -> None:
    blamed = [Outcome("x1", (0,), (0,), (0.0,), -0.4, 0.25, part=True)]
    ranking = model().fit(blamed, (0,) * 4).ranking()
    assert ranking.bias[0] == 0.5 and ranking.bias[1] < 0.0


def test_of_very_many_outcomes_the_latest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = sets(lambda z: float(0 in z), 50)
    latest, one_more = learned(outcomes[-30:]), learned(outcomes[-31:])
    monkeypatch.setattr("promptcodebook.routing.outcomes.MOST", 30)
    assert learned(outcomes) == latest != one_more


def test_sums_run_in_one_thread_whatever_the_number_of_cores() -> None:
    with model().one_thread():
        pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
        assert pools and {pool["num_threads"] for pool in pools} == {1}


@pytest.mark.parametrize("missing", ["numpy", "threadpoolctl"])
def test_what_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match="a router that learns from outcomes") as error:
        OutcomeModel(INPUTS)
    assert "promptcodebook[router]" in error.value.hint
