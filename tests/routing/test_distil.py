"""The imitation of an encoder's routes, against refits that leave out one example after another."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from promptcodebook.errors import MissingExtra
from promptcodebook.intervals import mean_interval
from promptcodebook.routing.distil import Imitated, agreement, cross_agreement, distil
from promptcodebook.routing.ranking import BUCKETS, Ranker, Vocabulary, dot

TEXTS = ("one", "two", "three")
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WORDS = ["red", "green", "blue", "black", "white"]


def routes(seed: int, count: int, noise: float) -> list[Imitated]:
    """The first word decides the route, but for some; some routes are older."""
    draw = random.Random(seed)
    made: list[Imitated] = []
    for i in range(count):
        first = draw.randrange(3)
        words = [WORDS[first], *draw.sample(WORDS, 2), f"n{i}"]
        k = draw.randrange(3) if draw.random() < noise else first
        indices = tuple(sorted({k, (k + 1) % 3}))
        made.append(Imitated(f"x{i}", " ".join(words), indices, draw.choice((0.25, 1.0, 1.0))))
    return made


def fitted(kernel: Any, y: Any, weights: Any, ridge: float) -> Any:
    return np.linalg.solve(kernel + ridge * np.diag(1.0 / weights), y)


def score(own: Sequence[Imitated], text: str) -> Any:
    """What a ridge regression with the penalty that errs least on left out examples gives: each
    left out in turn, and all the rest fitted anew."""
    vocabulary = Vocabulary.of([r.input for r in own])
    features = [vocabulary.features(r.input) for r in own]
    kernel = np.array([[1.0 + dot(a, b) for b in features] for a in features])
    weights = np.array([r.weight for r in own])
    y = np.array([[float(k in r.indices) for k in range(3)] for r in own])
    mean = (weights[:, None] * y).sum(axis=0) / weights.sum()
    errors: list[float] = []
    for ridge in RIDGES:
        error = 0.0
        for i in range(len(own)):
            rest = [j for j in range(len(own)) if j != i]
            dual = fitted(kernel[np.ix_(rest, rest)], (y - mean)[rest], weights[rest], ridge)
            error += weights[i] * float(((y[i] - mean - kernel[i, rest] @ dual) ** 2).sum())
        errors.append(error)
    dual = fitted(kernel, y - mean, weights, RIDGES[errors.index(min(errors))])
    return mean + np.array([1.0 + dot(vocabulary.features(text), f) for f in features]) @ dual


@pytest.mark.parametrize(("seed", "count", "noise"), [(1, 20, 0.0), (2, 20, 0.5), (3, 12, 1.0)])
def test_the_scores_are_those_of_the_penalty_that_errs_least(seed: int, count: int, noise: float):
    own = routes(seed, count, noise)
    ranking = distil(own, 3, 2)
    ranker, size = Ranker(ranking, TEXTS), max(abs(w) for row in ranking.weights for w in row)
    assert size == 1000 and ranking.unit > 0.0
    for text in (own[0].input, own[-1].input, "red and blue", ""):
        found = ranker.expected(text)
        near = 0.51 * ranking.unit * sum(Vocabulary.of_ranking(ranking).features(text).values())
        assert np.abs(np.array(found.marginal) - score(own, text)).max() < near + 2e-4
        assert found.nothing == 0.0 and found.more == 0.0


def test_a_ranking_says_what_it_is() -> None:
    ranking = distil(routes(1, 12, 0.0), 4, 2)
    assert (ranking.kind, ranking.least, ranking.outcomes) == ("distilled", 2, 12)
    assert len(ranking.weights) == len(ranking.bias) == 5
    assert ranking.weights[0] == (0,) * BUCKETS and ranking.likeness == 0.0
    assert set(ranking.weights[4]) == {0} and ranking.bias[4] == 0.0, "never chosen"


def test_routes_that_are_all_alike_need_no_words() -> None:
    alike = [Imitated(f"x{i}", f"n{i}", (0, 2)) for i in range(10)]
    ranking = distil(alike, 3, 2)
    assert ranking.unit == 0.0 and not any(map(any, ranking.weights))
    assert ranking.bias == (0.0, 1.0, 0.0, 1.0)


def test_an_example_s_routes_share_its_place_by_their_weights() -> None:
    """Two routes of one example: c_0 by 1, c_1 by 0.25, of 1.25; its own weight is the greater."""
    others = [Imitated(f"x{i}", f"n{i}", (2,)) for i in range(9)]
    both = [Imitated("y", "red", (0,), 1.0), Imitated("y", "red", (1,), 0.25)]
    marginal = np.array(distil([*others, *both], 3, 1).bias[1:])
    features = Ranker(distil([*others, *both], 3, 1), TEXTS).expected("red").marginal
    assert marginal.shape == (3,)
    assert features[0] == pytest.approx(4 * features[1], rel=0.02, abs=2e-3)
    assert sum(features) == pytest.approx(1.0, abs=5e-3)


def test_agreement_counts_sets_and_shares() -> None:
    found = agreement([(0, 1), (2,), (), (0, 1)], [(1, 0), (1, 2), (), (2, 3)], seed=4)
    assert found.exact == mean_interval([1.0, 0.0, 1.0, 0.0], 4)
    assert found.overlap == mean_interval([1.0, 0.5, 1.0, 0.0], 4)


def test_held_out_examples_are_compared_with_their_latest_route_of_most_weight() -> None:
    """Whatever is fitted to red and blue says (0,) and (1,); the examples' own routes differ."""
    plain = [
        Imitated(f"x{i:02}", f"{'red' if i % 2 else 'blue'} n{i}", (i % 2,)) for i in range(40)
    ]
    found = cross_agreement(plain, TEXTS, 1, seed=2)
    assert found is not None and found.exact == mean_interval([1.0] * 40, 2)
    odd = [Imitated(r.example_id, r.input, (2,), 0.25) for r in plain]
    assert cross_agreement([*odd, *plain, *odd], TEXTS, 1) == cross_agreement(plain, TEXTS, 1)
    late = [Imitated(plain[0].example_id, plain[0].input, (2,))]
    other = cross_agreement([*plain, *late], TEXTS, 1)
    assert other is not None and other.exact.mean == pytest.approx(39 / 40)
    assert cross_agreement(plain[:10], TEXTS, 1) is not None
    assert cross_agreement([*plain[:9], *plain[:9]], TEXTS, 1) is None


def test_no_example_is_compared_with_a_fit_to_its_own_route() -> None:
    """Inputs without a word in common: by their own routes all would agree, by others' none."""
    own = [Imitated(f"x{i:02}", chr(97 + i) * 9, (i // 10,)) for i in range(20)]
    ranker = Ranker(distil(own, 2, 1), TEXTS[:2])
    assert all(ranker.choose(r.input, 1) == r.indices for r in own)
    found = cross_agreement(own, TEXTS[:2], 1)
    assert found is not None and found.exact.n == 20 and found.exact.mean <= 0.5


def test_the_folds_go_by_name_so_that_every_process_has_the_same() -> None:
    """Every fifth name is red: with the fold left out, nobody has seen what red asks for."""
    red = [i % 5 == 0 for i in range(30)]
    own = [
        Imitated(f"x{i:02}", "red" if red[i] else f"blue n{i}", (0 if red[i] else 1,))
        for i in range(30)
    ]
    found = cross_agreement(own[::-1], TEXTS[:2], 1, seed=2)
    values = [0.0] * 6 + [1.0] * 24
    assert found is not None and found.exact == found.overlap == mean_interval(values, 2)


def test_of_names_only_their_order_counts() -> None:
    """An interval of few values hangs on their order; in that of a set of names every process
    would say something else."""

    def found(prefix: str) -> object:
        own = [
            Imitated(f"{prefix}{i:02}", f"n{i}", (0, 1, 2)[: 1 + i * i % 7 % 3]) for i in range(40)
        ]
        return cross_agreement(own, TEXTS, 1)

    assert len({found(prefix) for prefix in "abcdef"}) == 1


@pytest.mark.parametrize("missing", ["numpy", "threadpoolctl"])
def test_what_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match="a distilled router") as error:
        distil(routes(1, 12, 0.0), 3, 2)
    assert "promptcodebook[router]" in error.value.hint
