"""Routes that are drawn, what of a trace becomes an outcome, and rankings learned from outcomes."""

import math
import random
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest

from promptcodebook import types
from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Reply
from promptcodebook.config.schema import RouterSettings
from promptcodebook.errors import MissingExtra, PolicyError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.routing.outcome_router import OutcomeRouter, outcomes_of
from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import (
    BUCKETS,
    UNSEEN,
    Embedder,
    Features,
    Imitated,
    RankedRoutes,
    Ranker,
    Vocabulary,
    buckets_of,
    chosen,
    distil,
    dot,
    packed,
    unpacked,
)

TEXTS = ("name the fruit", "name its colour", "be brief", "count them")
INPUTS = {f"x{i}": f"{what} number {i}" for i, what in enumerate(("a red apple", "a fig") * 6)}
EXAMPLES = [types.Example(name, text) for name, text in INPUTS.items()]
BEGUN = State.first(
    types.Parameters("", "phi", types.Codebook(tuple(map(types.Instinct, TEXTS))), "psi")
)


@cache
def model() -> OutcomeModel:
    return OutcomeModel(INPUTS)


def router(select: int = 2, repeats: bool = True, **settings: Any) -> OutcomeRouter:
    return OutcomeRouter(RouterSettings(kind="outcomes", **settings), select, model(), repeats)


def uniform(select: int, repeats: bool = True, least: int = 0) -> OutcomeRouter:
    return router(select, repeats, floor=1.0, least=least)


def seen(name: str, indices: tuple[int, ...], reward: float) -> types.Outcome:
    n = len(indices)
    return types.Outcome(name, indices, (0,) * n, (0.1,) * n, reward)


def after(*outcomes: types.Outcome, versions: tuple[int, ...] = (0, 0, 0, 0)) -> State:
    return replace(BEGUN, outcomes=outcomes, versions=versions)


def sets(least: int, select: int, size: int = 4) -> list[tuple[int, ...]]:
    return [z for n in range(least, select + 1) for z in combinations(range(size), n)]


async def drawn(by: OutcomeRouter, state: State, count: int, name: str = "x0") -> list[types.Route]:
    example = types.Example(name, INPUTS[name])
    return [(await by.route(example, state, 0.0, Draws(0, i, name)))[0] for i in range(count)]


# --- chances ---


@pytest.mark.parametrize(("least", "select"), [(0, 1), (0, 2), (1, 2), (2, 2), (1, 3)])
async def test_a_uniform_route_has_its_size_first_and_none_as_often_as_one(least: int, select: int):
    """Of K = 4: none 1/5, else a size of those allowed, then any set of that size."""
    routes = await drawn(uniform(select, least=least), after(), 200)
    some = 4 / 5 if least == 0 else 1.0
    sizes = select - max(1, least) + 1
    chances = {z: some / sizes / comb(4, len(z)) if z else 1 / 5 for z in sets(least, select)}
    assert sum(chances.values()) == pytest.approx(1.0)
    counts = Counter(route.indices for route in routes)
    assert set(counts) == set(chances)
    for z, chance in chances.items():
        assert abs(counts[z] / 200 - chance) < 0.12, z


async def test_what_was_tried_is_not_drawn() -> None:
    tried = [(0,), (2,), (0, 1), ()]
    state = after(*(seen("x0", z, 0.5) for z in tried), seen("x1", (3,), 0.5))
    routes = await drawn(uniform(2, repeats=False), state, 120)
    assert {route.indices for route in routes} == set(sets(0, 2)) - set(tried)
    state = after(*(seen("x0", z, 0.5) for z in sets(1, 1)))
    routes = await drawn(uniform(1, repeats=False, least=1), state, 60)
    assert {route.indices for route in routes} == set(sets(1, 1)), "all were tried: any again"


async def test_without_repeats_a_first_visit_is_uniform_and_a_later_one_is_not() -> None:
    once = router(1, repeats=False, floor=0.0, scale=0.0)
    state = after(*(seen(f"x{i}", (0,), 0.9) for i in range(1, 12)), seen("x11", (), 0.1))
    first = await drawn(once, state, 60)
    assert len({route.indices for route in first}) == 5
    blamed = replace(seen("x0", (1,), -0.5), part=True)
    later = await drawn(once, after(*state.outcomes, blamed), 5)
    assert {route.indices for route in later} == {(0,)}


async def test_without_repeats_draws_are_a_fifth_as_wide_unless_said() -> None:
    """The same bits of noise: draws of a fifth of the width, said or not, make the same routes."""
    known = [seen(f"x{i}", (k,), 0.4 + 0.1 * k) for i in range(1, 12) for k in range(4)]
    state = after(*known, replace(seen("x0", (0,), -0.1), part=True))

    async def by(repeats: bool, scale: float | None) -> list[types.Route]:
        return await drawn(router(1, repeats, scale=scale, floor=0.0), state, 25)

    assert await by(True, None) == await by(True, 1.0) != await by(True, 0.2)
    assert await by(False, None) == await by(False, 0.2) != await by(False, 1.0)


async def test_a_route_that_is_not_the_best_by_what_is_known_is_explored() -> None:
    by = router(2, floor=0.6)
    worth = {(0,): 0.9, (1,): 0.1, (2,): 0.7, (3,): 0.2, (): 0.4}
    state = after(*(seen(f"x{i}", z, reward) for i in range(12) for z, reward in worth.items()))
    best = max(sets(0, 2), key=promise(by, state).of)
    routes = await drawn(by, state, 80)
    assert routes == await drawn(router(2, floor=0.6), state, 80), "by its key alone"
    assert len({route.indices for route in routes}) > 3
    assert all(route.explored == (route.indices != best) for route in routes)


# --- nothing twice ---


def promise(by: OutcomeRouter, state: State, name: str = "x0") -> types.Expected:
    """What is known of an input, by the model itself."""
    features = by.model.features(name)
    like = [round(dot(features, by.model.vocabulary.spelled(t)), 5) for t in TEXTS]
    own, more = by.model.fit(state.outcomes, state.versions).at(features, like).means
    return types.Expected(0.0, tuple(own), more)


@pytest.mark.parametrize(("least", "select"), [(0, 1), (0, 2), (1, 2), (2, 3)])
async def test_each_further_visit_takes_the_best_route_near_the_best_that_was_not_tried(
    least: int, select: int
) -> None:
    by = router(select, repeats=False, floor=0.0, scale=0.0, least=least)
    outcomes = [
        seen(f"x{i}", z, (0.3 + 0.3 * (0 in z) + 0.2 * (3 in z) + 0.1 * (1 in z)))
        for i in range(1, 12)
        for z in sets(least, select)
    ]
    outcomes.append(seen("x0", (0, 1, 2)[: max(1, least)], 0.5))
    for _ in range(6):
        state = after(*outcomes)
        expected = promise(by, state)
        allowed = sets(least, select)
        best = max(allowed, key=expected.of)
        tried = {o.indices for o in outcomes if o.example_id == "x0"}
        # By an instinct more, less, or another.
        near = [z for z in allowed if max(len({*z} - {*best}), len({*best} - {*z})) <= 1]
        fresh = [z for z in near if z not in tried]
        [route] = {route.indices for route in await drawn(by, state, 3)}
        if best not in tried:
            assert route == best
        elif fresh:
            assert expected.of(route) == pytest.approx(max(map(expected.of, fresh)))
            assert route in fresh
        else:
            assert route == best
        outcomes.append(seen("x0", route, 0.5))


async def test_a_rewritten_instinct_may_be_tried_again() -> None:
    by = router(1, repeats=False, floor=0.0, scale=0.0)
    known = [seen(f"x{i}", (0,), 0.9) for i in range(12)] + [
        seen(f"x{i}", (), 0.1) for i in range(6)
    ]
    [again] = {route.indices for route in await drawn(by, after(*known), 3)}
    assert again != (0,)
    rewritten = after(*known, versions=(1, 0, 0, 0))
    [route] = {route.indices for route in await drawn(by, rewritten, 3)}
    assert route == (0,)


# --- whom a batch visits ---


def names(batch: Sequence[types.Example]) -> list[str]:
    return [example.id for example in batch]


def test_an_unsolved_example_comes_in_a_solved_one_s_place() -> None:
    """After those of the batch that are not solved, in their order; none twice."""
    by = router(repeats=False)
    state = after(seen("x0", (0,), 1.0), seen("x2", (1,), 1.0), seen("x5", (0,), 1.0),
                  seen("x1", (0,), 0.99), replace(seen("x3", (0,), 1.0), part=True))  # fmt: skip
    came: Counter[str] = Counter()
    for step in range(40):
        batch = names(by.attend(EXAMPLES[:4], EXAMPLES, state, Draws(0, step, "batch")))
        assert batch[:2] == ["x1", "x3"] and len(set(batch)) == 4
        came.update(batch[2:])
    assert set(came) == {"x4", *(f"x{i}" for i in range(6, 12))}
    # Where too few are unsolved the solved keep their places.
    draws = Draws(0, 0, "batch")
    some = after(*(seen(f"x{i}", (0,), 1.0) for i in range(11)))
    assert names(by.attend(EXAMPLES[:4], EXAMPLES, some, draws)) == ["x11", "x0", "x1", "x2"]
    whole = after(*(seen(f"x{i}", (0,), 1.0) for i in range(12)))
    assert names(by.attend(EXAMPLES[:4], EXAMPLES, whole, draws)) == ["x0", "x1", "x2", "x3"]
    stale = replace(whole, versions=(1, 0, 0, 0))
    assert names(by.attend(EXAMPLES[2:5], EXAMPLES, stale, draws)) == ["x2", "x3", "x4"]
    assert router().attend(EXAMPLES[:4], EXAMPLES, state, draws) == EXAMPLES[:4]


# --- what a trace teaches ---


def trace(
    indices: tuple[int, ...] | None,
    unit: float | None = 0.6,
    blamed: dict[int, str] | None = None,
    penalty: float = 0.4,
    severity: dict[types.Channel, float] | None = None,
) -> types.Trace:
    route = None if indices is None else types.Route(indices)
    gradients = types.Gradients(codebook=blamed or {}, severity=severity or {})
    return types.Trace(
        types.Rollout("x1", route, reward=unit), unit, penalty=penalty, gradients=gradients
    )


def test_a_reward_is_an_outcome_of_its_route_as_the_texts_were() -> None:
    state = replace(BEGUN, versions=(3, 1, 4, 1))
    [outcome] = outcomes_of(model(), state, [trace((1, 2))])
    like = [round(dot(model().features("x1"), model().vocabulary.spelled(t)), 5) for t in TEXTS]
    assert outcome == types.Outcome("x1", (1, 2), (1, 4), (like[1], like[2]), 0.6)
    assert outcomes_of(model(), state, [trace((1,), unit=None), trace(None)]) == []
    with_failures = [trace((1,), unit=None), trace((2,)), trace(None), trace((0,))]
    assert [o.indices for o in outcomes_of(model(), state, with_failures)] == [(2,), (0,)]


@pytest.mark.parametrize(("given", "parts"), [
    ({"blamed": {1: "vague"}}, {(1,): -0.4}),
    ({"blamed": {2: "long", 1: "vague"}}, {(1,): -0.2, (2,): -0.2}),
    ({"blamed": {1: "vague", 2: ""}}, {(1,): -0.4}),
    ({"blamed": {1: "vague"}, "severity": {"codebook": 0.3, "encoder": 0.1}}, {(1,): -0.3}),
    ({"blamed": {1: "vague"}, "severity": {"encoder": 0.1}}, {(1,): -0.4}),
    ({"blamed": {1: "vague"}, "severity": {"codebook": 0.0}}, {}),
    ({"blamed": {1: "vague"}, "penalty": 0.0}, {}), ({"blamed": {1: ""}}, {}), ({}, {}),
])  # fmt: skip
def test_blame_is_shared_among_those_who_have_it(given: Any, parts: Any) -> None:
    state = replace(BEGUN, versions=(0, 7, 0, 0))
    whole, *blamed = outcomes_of(model(), state, [trace((1, 2), **given)])
    assert {o.indices: o.reward for o in blamed} == pytest.approx(parts)
    assert [o.indices for o in blamed] == sorted(o.indices for o in blamed)
    for o in blamed:
        [k] = o.indices
        assert o.versions == (state.versions[k],) and o.part and o.weight == 0.25
        assert o.likeness == (whole.likeness[whole.indices.index(k)],)


def rewritten(state: State, **texts: str) -> State:
    book = [texts.get(f"c{k}", text) for k, text in enumerate(state.parameters.codebook.texts)]
    codebook = types.Codebook(tuple(map(types.Instinct, book)))
    return replace(state, parameters=replace(state.parameters, codebook=codebook))


def test_learning_keeps_all_outcomes_and_counts_rewrites() -> None:
    by = router(least=1)
    one = by.learn(BEGUN, [trace((0,), 0.9)], rewritten(BEGUN, c2="count twice"))
    assert one.versions == (0, 0, 1, 0) and [o.indices for o in one.outcomes] == [(0,)]
    two = by.learn(one, [trace((1,), 0.2), trace((2,))], rewritten(one, c2="thrice", c0="say it"))
    assert two.versions == (1, 0, 2, 0)
    assert [(o.indices, o.versions) for o in two.outcomes] == [
        ((0,), (0,)), ((1,), (0,)), ((2,), (1,)),
    ]  # fmt: skip
    ranking = two.statistics.ranking
    assert ranking == model().fit(two.outcomes, two.versions).ranking(1)
    again = by.learn(two, [], rewritten(two, c1="other"))
    assert again.statistics.ranking != ranking, "what was known of a rewritten text counts less"


def test_stored_steps_are_recalled_as_training_left_them() -> None:
    by, state = router(), BEGUN
    steps: list[types.Step] = []
    for index, text in enumerate(("one", "two")):
        now = replace(rewritten(state, c1=text), step=index + 1)
        traces = (trace((index,)), trace((2,), blamed={2: "vague"}))
        state = by.learn(state, traces, now)
        own = state.statistics
        steps.append(
            types.Step(
                index=index, epoch=0, epsilon=0.0, traces=traces, rewrites=(),
                parameters=state.parameters, ema=own.ema, success=own.success,
                selected=own.selected, evidence=own.evidence, ranking=own.ranking,
            )
        )  # fmt: skip
    assert router().recall(BEGUN, BEGUN, steps) == state
    assert isinstance(state.statistics, RoutingStatistics) and len(state.outcomes) == 6
    assert router().recall(state, state, []).outcomes == ()


# --- embeddings ---


@pytest.mark.parametrize(("features", "words"), [("embeddings", 0.0), ("both", 0.5)])
async def test_inputs_are_embedded_once_where_that_is_what_tells_them(features: Any, words: float):
    lm = ScriptedLM()
    lm.enqueue(*(Reply("", vector=(len(t), i, 1.0)) for i, t in enumerate(INPUTS.values())))
    settings = RouterSettings(kind="outcomes", features=features)
    by = OutcomeRouter(settings, 1, model(), embedder=Embedder(lm))
    await by.prepare()
    await by.prepare()
    assert [request.messages[0].content for request in lm.history] == list(INPUTS.values())
    vocabulary = by.model.vocabulary
    assert vocabulary.words == words and len(vocabulary.center) == 3
    last = list(INPUTS)[-1]
    assert by.model.features(last) == vocabulary.features(
        INPUTS[last], (len(INPUTS[last]), 11.0, 1.0)
    )


# A ranking at work, against its own definition worked out the long way.

PARCELS = ("where is my parcel", "my parcel is late", "reset my password", "Ärger mit dem Paket")
HALF = BUCKETS // 2


def known(ranking: types.Ranking) -> Vocabulary:
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
    vocabulary = Vocabulary.of(PARCELS)
    for text in (*PARCELS, "nothing of it was seen", "x"):
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
    features = Vocabulary.of(PARCELS).features(text)
    assert set(features) == expected
    assert features == Vocabulary.of(PARCELS).features(f"{text} {text}"), "how often does not count"


def test_of_a_long_input_the_middle_is_left_out() -> None:
    vocabulary = Vocabulary.of(PARCELS)
    head, tail = [f"head{i}" for i in range(100)], [f"tail{i}" for i in range(100)]
    whole = vocabulary.features(" ".join([*head, *tail]))
    assert {word(w) for w in (*head, *tail)} <= set(whole), "two hundred words are all read"
    longer = vocabulary.features(" ".join([*head, "middle", *["amid"] * 40, *tail]))
    assert longer == whole


VECTORS = ((1.0, 5.0, 2.0), (3.0, 5.0, -4.0), (2.0, 5.0, 0.123456789), (8.0, 5.0, 1.0))


def test_embeddings_are_centred_and_scaled_by_the_training_inputs() -> None:
    """Words may count for nothing beside them."""
    vocabulary = Vocabulary.of(PARCELS).with_vectors(VECTORS, 0.25)
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
    vocabulary = Vocabulary.of(PARCELS).with_vectors(VECTORS, 0.0)
    assert set(vocabulary.features("my parcel", (6.0, 7.0, 2.0))) == {BUCKETS + i for i in range(3)}
    center = vocabulary.features("my parcel", vocabulary.center)
    assert center == {BUCKETS + i: 0.0 for i in range(3)}, "the middle of all has no direction"
    with pytest.raises(PolicyError, match="embeddings of length 3, but this") as odd:
        vocabulary.features("my parcel", (1.0, 2.0))
    assert odd.value.hint == "set roles.encoder.model to the model that made them"
    kept = unpacked(packed((-1 / 3, 7e4)))
    assert kept == pytest.approx((-1 / 3, 65504.0), rel=1e-3), "half precision, and never an error"


def a_ranking(
    seed: int, size: int = 4, likeness: float = 0.3, dimensions: int = 0
) -> types.Ranking:
    draw = random.Random(seed)
    vocabulary = Vocabulary.of(PARCELS)
    if dimensions:
        vocabulary = vocabulary.with_vectors(VECTORS, 0.5)
    weights = [[draw.randint(-100, 100) for _ in range(vocabulary.width)] for _ in range(size + 1)]
    return types.Ranking(
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
    vocabulary, ranker = known(ranking), Ranker(ranking, PARCELS)
    for text in ("my parcel", "pack this", "", "Paket"):
        features = vocabulary.features(text, vector)
        found = ranker.expected(text, vector)
        for row, value in enumerate((found.nothing, *found.marginal)):
            linear = sum(ranking.weights[row][bucket] * v for bucket, v in features.items())
            alike = dot(features, vocabulary.spelled(PARCELS[row - 1])) if row else 0.0
            expected = ranking.bias[row] + 0.013 * linear + likeness * alike
            assert value == pytest.approx(expected, abs=1e-9), (text, row)
        assert found.more == ranking.more


KNOWN = ("Where is my parcel?", "My parcel is late.", "I want to return these shoes.") * 4
FOREIGN = "Wann bekomme ich mein Geld wieder?"


@pytest.mark.parametrize("text", ["is my parcel lost?", "I return my shoes", "parcels??", "?", ""])
async def test_only_an_input_of_unseen_words_gets_the_route_of_no_words(text: str) -> None:
    vocabulary = Vocabulary.of(KNOWN)
    weights = [[1] * BUCKETS, *([5 * k] * BUCKETS for k in range(4))]
    for bucket in buckets_of(FOREIGN):  # what training never saw has no weight
        if vocabulary.rarity[bucket] == max(vocabulary.rarity):
            for row in weights:
                row[bucket] = 0
    rows = tuple(map(tuple, weights))
    ranking = types.Ranking(vocabulary.rarity, 0.1, rows, (0.2, 0.3, 0.1, -0.1, -0.2))
    book = types.Codebook(tuple(map(types.Instinct, TEXTS)))
    routes, foreign = RankedRoutes(select=1), types.Example("f", FOREIGN)
    route, scores, _ = await routes.rank(book, ranking, foreign)
    assert route == types.Route((0,), fault=UNSEEN) and scores.marginal == ranking.bias[1:]
    assert scores.features, "drift and feedback read them"
    route, scores, _ = await routes.rank(book, ranking, types.Example("k", text))
    assert not route.fault and (not text.strip("?") or route.indices == (3,))
    # What feedback taught of these words is heard.
    taught = tuple(tuple([1] * BUCKETS) for _ in range(5))
    route, _, _ = await routes.rank(book, replace(ranking, weights=taught), foreign)
    assert not route.fault


def test_a_set_earns_what_its_members_add_and_a_crowd_its_own() -> None:
    expected = types.Expected(0.25, (0.5, -0.125, 0.0625), more=-0.5)
    assert expected.of(()) == expected.nothing == 0.25
    assert expected.of((1,)) == expected.alone(1) == 0.125
    assert expected.of((0, 2)) == 0.25 + 0.5 + 0.0625 - 0.5
    assert expected.of((0, 1, 2)) == 0.25 + 0.4375 - 2 * 0.5


@pytest.mark.parametrize("least", [0, 1, 3])
def test_no_set_of_the_allowed_sizes_promises_more_than_the_chosen(least: int) -> None:
    draw = random.Random(least)
    for _ in range(300):
        size, select = draw.randint(3, 6), draw.randint(max(1, least), 3)
        expected = types.Expected(
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
    left out in turn, and the rest is fitted again."""
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


def test_a_distilled_route_is_as_long_as_those_that_it_imitates() -> None:
    """Where an encoder took one or three of three by the input, S = 3 is a maximum."""
    said = {"red": (0,), "blue": (0, 1, 2)}
    own = [Imitated(f"{w}{i}", f"{w} {i}", said[w]) for i in range(20) for w in said]
    ranker = Ranker(distil(own, 3, 1), THREE)
    assert ranker.choose("blue one", 3) == (0, 1, 2)
    few = [Imitated(f"x{i}", f"red {i}", (0, 1) if i % 4 == 0 else (0,)) for i in range(20)]
    assert Ranker(distil(few, 3, 1), THREE).choose("red", 3) == (0,)
