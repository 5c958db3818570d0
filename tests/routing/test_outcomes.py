"""What outcomes teach: sets of instincts, blame, rewritten texts, and routes by upper bounds."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import Features, Ranker, dot, leading_words
from promptcodebook.types import Expected, Outcome

TEXTS = ("apple", "pear", "plum", "fig")
INPUTS = {f"x{i}": f"a question number {i}" for i in range(30)}


@cache
def model() -> OutcomeModel:
    return OutcomeModel(INPUTS)


def outcome(name: str, indices: tuple[int, ...], reward: float, version: int = 0) -> Outcome:
    n = len(indices)
    return Outcome(name, indices, (version,) * n, (0.0,) * n, reward)


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
def test_the_words_that_lead_to_an_instinct_are_those_of_the_inputs_that_it_helps() -> None:
    """Not those of all inputs, nor one that a single input has."""
    topics = ("refund money", "parcel courier", "password login", "invoice total")
    inputs = {f"x{i}": f"please help with my {topics[i % 4]} only{i}" for i in range(32)}
    outcomes = [
        outcome(name, (k,), float(k == int(name[1:]) % 4)) for name in inputs for k in range(4)
    ]
    ranking = OutcomeModel(inputs).fit(outcomes, (0, 0, 0, 0)).ranking()
    led = leading_words(ranking, TEXTS, inputs.values())
    assert [set(words[:2]) for words in led] == [set(topic.split()) for topic in topics]
    assert not {f"only{i}" for i in range(32)} & {word for words in led for word in words}
    assert leading_words(replace(ranking, words=0.0), TEXTS, inputs.values()) == [[], [], [], []]


def test_rows_without_outcomes_take_no_memory() -> None:
    many = {f"x{i}": f"a question number {i}" for i in range(3000)}
    outcomes = [outcome(f"x{i}", (i % 4,), float(i % 3 == 0)) for i in range(0, 3000, 100)]
    tracemalloc.start()
    try:
        made = OutcomeModel(many)
        ranking = made.fit(outcomes, (0,) * 4).ranking()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ranking.outcomes == 30
    assert peak < 20e6, "as a table of all rows by all others took 170 MB"


def test_sums_run_in_one_thread_whatever_the_number_of_cores() -> None:
    with model().one_thread():
        pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
        assert pools and {pool["num_threads"] for pool in pools} == {1}
