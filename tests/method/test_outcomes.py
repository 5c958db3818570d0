"""What outcomes teach: sets of instincts, blame, rewritten texts, and routes by upper bounds."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

from promptcodebook.config import RouterSettings
from promptcodebook.method.outcomes import Outcome, OutcomeModel
from promptcodebook.method.ranking import Expected, Ranker
from promptcodebook.method.router import OutcomeRouter, outcomes_of
from promptcodebook.method.state import State
from promptcodebook.randomness import Draws
from promptcodebook.types import (
    Codebook,
    Example,
    Gradients,
    Instinct,
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
