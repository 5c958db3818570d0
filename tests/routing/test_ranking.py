"""A ranking at work, against its own definition worked out the long way."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from promptcodebook.errors import PolicyError
from promptcodebook.routing.ranking import BUCKETS, Features, Ranker, Vocabulary, chosen, dot
from promptcodebook.types import Expected, Ranking

TEXTS = ("where is my parcel", "my parcel is late", "reset my password", "Ärger mit dem Paket")
HALF = BUCKETS // 2


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


@pytest.mark.parametrize("text", ["ab", "abc", "abcd", "parcel", "my parcel is late"])
def test_an_input_is_its_words_and_the_runs_of_letters_in_them(text: str) -> None:
    expected = {word(w) for w in text.split()}.union(*(letters(w) for w in text.split()))
    features = Vocabulary.of(TEXTS).features(text)
    assert set(features) == expected
    assert features == Vocabulary.of(TEXTS).features(f"{text} {text}"), "how often does not count"


def test_what_few_inputs_have_tells_more() -> None:
    """ln((1 + n) / (1 + n_b)) + 1, to three digits."""
    vocabulary = Vocabulary.of(TEXTS)
    for token, count in (("my", 3), ("is", 2), ("where", 1), ("unseen", 0)):
        assert vocabulary.rarity[word(token)] == round(math.log(5 / (1 + count)) + 1, 3)
    features = vocabulary.features("my where")
    assert features[word("where")] / features[word("my")] == pytest.approx(
        vocabulary.rarity[word("where")] / vocabulary.rarity[word("my")]
    )


def test_of_a_long_input_the_middle_is_left_out() -> None:
    vocabulary = Vocabulary.of(TEXTS)
    head, tail = [f"head{i}" for i in range(100)], [f"tail{i}" for i in range(100)]
    whole = vocabulary.features(" ".join([*head, *tail]))
    assert {word(w) for w in (*head, *tail)} <= set(whole), "two hundred words are all read"
    longer = vocabulary.features(" ".join([*head, "middle", *["amid"] * 40, *tail]))
    assert longer == whole


VECTORS = ((1.0, 5.0, 2.0), (3.0, 5.0, -4.0), (2.0, 5.0, 0.123456789), (8.0, 5.0, 1.0))


def test_embeddings_are_centred_and_scaled_by_the_training_inputs() -> None:
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


def test_words_may_count_for_nothing_beside_an_embedding() -> None:
    vocabulary = Vocabulary.of(TEXTS).with_vectors(VECTORS, 0.0)
    assert set(vocabulary.features("my parcel", (6.0, 7.0, 2.0))) == {BUCKETS + i for i in range(3)}
    center = vocabulary.features("my parcel", vocabulary.center)
    assert center == {BUCKETS + i: 0.0 for i in range(3)}, "the middle of all has no direction"
    with pytest.raises(PolicyError, match="embeddings of 3 numbers, and this model makes 2") as odd:
        vocabulary.features("my parcel", (1.0, 2.0))
    assert odd.value.hint == "name the model that made them in roles.encoder.model"


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
    vocabulary, ranker = Vocabulary.of_ranking(ranking), Ranker(ranking, TEXTS)
    for text in ("my parcel", "pack this", "", "Paket"):
        features = vocabulary.features(text, vector)
        found = ranker.expected(text, vector)
        for row, value in enumerate((found.nothing, *found.marginal)):
            linear = sum(ranking.weights[row][bucket] * v for bucket, v in features.items())
            alike = dot(features, vocabulary.spelled(TEXTS[row - 1])) if row else 0.0
            expected = ranking.bias[row] + 0.013 * linear + likeness * alike
            assert value == pytest.approx(expected, abs=1e-9), (text, row)
        assert found.more == ranking.more


def test_products_run_over_what_both_have() -> None:
    assert dot({1: 2.0, 2: 3.0, 4: 5.0}, {2: 7.0, 3: 11.0, 4: 1.0}) == 26.0
    assert dot({1: 2.0}, {}) == 0.0


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


def test_of_equals_the_first_is_chosen_and_none_that_adds_nothing() -> None:
    assert chosen((0.0, 0.0, 0.0), 0.0, 2) == ()
    assert chosen((0.1, 0.2, 0.1, 0.1), 0.0, 2) == (0, 1)
    assert chosen((0.1, 0.2, 0.1), -0.1, 3) == (1,)
    assert chosen((-0.2, -0.1, -0.1), 0.0, 3, 2) == (1, 2)


def test_a_ranker_routes_by_what_it_promises_within_its_bounds() -> None:
    for least in (0, 2):
        ranker = Ranker(replace(a_ranking(3), least=least), TEXTS)
        for text in TEXTS:
            found = ranker.expected(text)
            assert ranker.choose(text, 3) == chosen(found.marginal, found.more, 3, least)
            assert least <= len(ranker.choose(text, 3)) <= 3
