"""A ranking at work, against its own definition worked out the long way."""

from __future__ import annotations

import math
import random
import sys
import zlib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from promptcodebook.errors import MissingExtra, PolicyError
from promptcodebook.routing.ranking import (
    BUCKETS,
    Features,
    Imitated,
    Ranker,
    Vocabulary,
    chosen,
    distil,
    dot,
    packed,
    unpacked,
)
from promptcodebook.types import Expected, Ranking

TEXTS = ("where is my parcel", "my parcel is late", "reset my password", "Ärger mit dem Paket")
HALF = BUCKETS // 2


def known(ranking: Ranking) -> Vocabulary:
    return Vocabulary(ranking.rarity, ranking.center, ranking.spread, ranking.words)


def word(text: str) -> int:
    return zlib.crc32(text.encode()) % HALF


def letters(text: str) -> set[int]:
    """Every run of four and of five letters, the blanks around a word among them."""
    padded = f" {text} "
    runs = {padded[i : i + n] for n in (4, 5) for i in range(len(padded)) if i + n <= len(padded)}
    return {HALF + word(run) for run in runs}


def share(features: Features, low: int, high: int) -> float:
    """Of the squared length, what the buckets from `low` to `high` have."""
    return sum(v * v for bucket, v in features.items() if low <= bucket < high)


def test_words_and_their_letters_have_half_of_the_length_each() -> None:
    vocabulary = Vocabulary.of(TEXTS)
    for text in (*TEXTS, "nothing of it was seen", "x"):
        features = vocabulary.features(text)
        assert share(features, 0, HALF) == pytest.approx(0.5 if len(text) > 1 else 1.0)
        assert share(features, 0, BUCKETS) == pytest.approx(1.0)
    assert vocabulary.features("?!") == {} and vocabulary.width == BUCKETS
    # What few inputs have tells more: ln((1 + n) / (1 + n_b)) + 1, to three digits.
    for token, count in (("my", 3), ("is", 2), ("where", 1), ("unseen", 0)):
        assert vocabulary.rarity[word(token)] == round(math.log(5 / (1 + count)) + 1, 3)
    features = vocabulary.features("my where")
    ratio = vocabulary.rarity[word("where")] / vocabulary.rarity[word("my")]
    assert features[word("where")] / features[word("my")] == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["ab", "abc", "abcd", "parcel", "my parcel is late"])
def test_an_input_is_its_words_and_the_runs_of_letters_in_them(text: str) -> None:
    expected = {word(w) for w in text.split()}.union(*(letters(w) for w in text.split()))
    features = Vocabulary.of(TEXTS).features(text)
    assert set(features) == expected
    assert features == Vocabulary.of(TEXTS).features(f"{text} {text}"), "how often does not count"


def test_of_a_long_input_the_middle_is_left_out() -> None:
    vocabulary = Vocabulary.of(TEXTS)
    head, tail = [f"head{i}" for i in range(100)], [f"tail{i}" for i in range(100)]
    whole = vocabulary.features(" ".join([*head, *tail]))
    assert {word(w) for w in (*head, *tail)} <= set(whole), "two hundred words are all read"
    longer = vocabulary.features(" ".join([*head, "middle", *["amid"] * 40, *tail]))
    assert longer == whole


VECTORS = ((1.0, 5.0, 2.0), (3.0, 5.0, -4.0), (2.0, 5.0, 0.123456789), (8.0, 5.0, 1.0))


def test_embeddings_are_centred_and_scaled_by_the_training_inputs() -> None:
    """Words may count for nothing beside them."""
    vocabulary = Vocabulary.of(TEXTS).with_vectors(VECTORS, 0.25)
    assert vocabulary.center == (3.5, 5.0, float(f"{(2 - 4 + 0.123456789 + 1) / 4:.5g}"))
    assert vocabulary.spread[:2] == (float(f"{math.sqrt(29 / 4):.5g}"), 0.0)
    assert (vocabulary.width, vocabulary.words) == (BUCKETS + 3, 0.25)
    features = vocabulary.features("my parcel", (6.0, 7.0, 2.0))
    assert share(features, 0, BUCKETS) == pytest.approx(0.25)
    assert share(features, BUCKETS, BUCKETS + 3) == pytest.approx(0.75)
    assert features[BUCKETS + 1] == 0.0, "what is the same in all inputs tells nothing"
    scaled = [
        (6.0 - 3.5) / vocabulary.spread[0],
        (2.0 - vocabulary.center[2]) / vocabulary.spread[2],
    ]
    assert features[BUCKETS] / features[BUCKETS + 2] == pytest.approx(scaled[0] / scaled[1])
    vocabulary = Vocabulary.of(TEXTS).with_vectors(VECTORS, 0.0)
    assert set(vocabulary.features("my parcel", (6.0, 7.0, 2.0))) == {BUCKETS + i for i in range(3)}
    center = vocabulary.features("my parcel", vocabulary.center)
    assert center == {BUCKETS + i: 0.0 for i in range(3)}, "the middle of all has no direction"
    with pytest.raises(PolicyError, match="embeddings of 3 numbers, and this model makes 2") as odd:
        vocabulary.features("my parcel", (1.0, 2.0))
    assert odd.value.hint == "name the model that made them in roles.encoder.model"
    kept = unpacked(packed((-1 / 3, 7e4)))
    assert kept == pytest.approx((-1 / 3, 65504.0), rel=1e-3), "half precision, and never an error"


def a_ranking(seed: int, size: int = 4, likeness: float = 0.3, dimensions: int = 0) -> Ranking:
    draw = random.Random(seed)
    vocabulary = Vocabulary.of(TEXTS)
    if dimensions:
        vocabulary = vocabulary.with_vectors(VECTORS, 0.5)
    weights = [[draw.randint(-100, 100) for _ in range(vocabulary.width)] for _ in range(size + 1)]
    return Ranking(
        rarity=vocabulary.rarity,
        unit=0.013,
        weights=tuple(map(tuple, weights)),
        bias=tuple(draw.uniform(-0.5, 0.5) for _ in range(size + 1)),
        likeness=likeness,
        more=draw.uniform(-0.2, 0.0),
        center=vocabulary.center,
        spread=vocabulary.spread,
        words=vocabulary.words,
    )


@pytest.mark.parametrize("likeness", [0.0, 0.3])
@pytest.mark.parametrize("vector", [(), (6.0, 7.0, 2.0)])
def test_what_an_input_promises_is_linear_in_it(likeness: float, vector: Sequence[float]) -> None:
    ranking = a_ranking(1, likeness=likeness, dimensions=len(vector))
    vocabulary, ranker = known(ranking), Ranker(ranking, TEXTS)
    for text in ("my parcel", "pack this", "", "Paket"):
        features = vocabulary.features(text, vector)
        found = ranker.expected(text, vector)
        for row, value in enumerate((found.nothing, *found.marginal)):
            linear = sum(ranking.weights[row][bucket] * v for bucket, v in features.items())
            alike = dot(features, vocabulary.spelled(TEXTS[row - 1])) if row else 0.0
            expected = ranking.bias[row] + 0.013 * linear + likeness * alike
            assert value == pytest.approx(expected, abs=1e-9), (text, row)
        assert found.more == ranking.more


def test_a_set_earns_what_its_members_add_and_a_crowd_its_own() -> None:
    expected = Expected(0.25, (0.5, -0.125, 0.0625), more=-0.5)
    assert expected.of(()) == expected.nothing == 0.25
    assert expected.of((1,)) == expected.alone(1) == 0.125
    assert expected.of((0, 2)) == 0.25 + 0.5 + 0.0625 - 0.5
    assert expected.of((0, 1, 2)) == 0.25 + 0.4375 - 2 * 0.5


@pytest.mark.parametrize("least", [0, 1, 3])
def test_no_set_of_the_allowed_sizes_promises_more_than_the_chosen(least: int) -> None:
    draw = random.Random(least)
    for _ in range(300):
        size, select = draw.randint(3, 6), draw.randint(max(1, least), 3)
        expected = Expected(
            0.0, tuple(draw.choice((-0.3, -0.1, 0.0, 0.1, 0.2, 0.5)) for _ in range(size)),
            draw.choice((0.5, 0.0, -0.1, -0.3)),
        )  # fmt: skip
        route = chosen(expected.marginal, expected.more, select, least)
        sets = [z for n in range(least, select + 1) for z in combinations(range(size), n)]
        assert route in sets
        assert expected.of(route) == pytest.approx(max(map(expected.of, sets)))
    assert chosen((0.0, 0.0, 0.0), 0.0, 2) == (), "none that adds nothing"
    assert chosen((0.1, 0.2, 0.1, 0.1), 0.0, 2) == (0, 1), "of equals the first"
    assert chosen((0.1, 0.2, 0.1), -0.1, 3) == (1,)
    assert chosen((-0.2, -0.1, -0.1), 0.0, 3, 2) == (1, 2)


# The imitation of an encoder's routes, against refits that leave out one example after another.

THREE = ("one", "two", "three")
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
    ranker, size = (Ranker(ranking, THREE), max(abs(w) for row in ranking.weights for w in row))
    assert size == 1000 and ranking.unit > 0.0
    for text in (own[0].input, own[-1].input, "red and blue", ""):
        found = ranker.expected(text)
        near = 0.51 * ranking.unit * sum(known(ranking).features(text).values())
        assert np.abs(np.array(found.marginal) - score(own, text)).max() < near + 2e-4
        assert found.nothing == 0.0 and found.more == 0.0


def test_a_ranking_says_what_it_is() -> None:
    ranking = distil(routes(1, 12, 0.0), 4, 2)
    assert (ranking.kind, ranking.least, ranking.outcomes) == ("distilled", 2, 12)
    assert len(ranking.weights) == len(ranking.bias) == 5
    assert ranking.weights[0] == (0,) * BUCKETS and ranking.likeness == 0.0
    assert set(ranking.weights[4]) == {0} and ranking.bias[4] == 0.0, "never chosen"
    alike = [Imitated(f"x{i}", f"n{i}", (0, 2)) for i in range(10)]
    ranking = distil(alike, 3, 2)
    assert ranking.unit == 0.0 and not any(map(any, ranking.weights))
    assert ranking.bias == (0.0, 1.0, 0.0, 1.0)


def test_an_example_s_routes_share_its_place_by_their_weights() -> None:
    """Two routes of one example: c_0 by 1, c_1 by 0.25, of 1.25; its own weight is the greater."""
    others = [Imitated(f"x{i}", f"n{i}", (2,)) for i in range(9)]
    both = [Imitated("y", "red", (0,), 1.0), Imitated("y", "red", (1,), 0.25)]
    marginal = np.array(distil([*others, *both], 3, 1).bias[1:])
    features = Ranker(distil([*others, *both], 3, 1), THREE).expected("red").marginal
    assert marginal.shape == (3,)
    assert features[0] == pytest.approx(4 * features[1], rel=0.02, abs=2e-3)
    assert sum(features) == pytest.approx(1.0, abs=5e-3)


@pytest.mark.parametrize("missing", ["numpy", "threadpoolctl"])
def test_what_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match="a distilled router") as error:
        distil(routes(1, 12, 0.0), 3, 2)
    assert "promptcodebook[router]" in error.value.hint
