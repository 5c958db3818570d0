"""Routes drawn among the untried: logged chances are exact, and solved inputs step back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations

import pytest

from promptcodebook.config import RouterSettings
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.randomness import Randomness
from promptcodebook.routing.outcomes import OutcomeModel, Terms, off_policy
from promptcodebook.routing.router import OutcomeRouter
from promptcodebook.types import Codebook, Example, Instinct, Outcome, Parameters

EXAMPLES = tuple(
    Example(f"x{i}", f"message {i} about {'a parcel' if i % 2 else 'money'}") for i in range(24)
)
BOOK = Codebook(
    tuple(Instinct(text) for text in ("about a parcel", "about money", "be kind", "no"))
)
SETS = [(), *((k,) for k in range(4)), *combinations(range(4), 2)]


def _router(select: int = 2, repeats: bool = False) -> OutcomeRouter:
    model = OutcomeModel({e.id: e.input for e in EXAMPLES})
    return OutcomeRouter(RouterSettings(kind="outcomes"), select, model, repeats)


def _outcome(name: str, route: tuple[int, ...], reward: float, version: int = 0) -> Outcome:
    zeros = (0.0,) * len(route)
    return Outcome(name, route, (version,) * len(route), zeros, reward, propensity=0.25)


def _state(router: OutcomeRouter, *outcomes: Outcome) -> State:
    first = State(0, Parameters("", "", BOOK, critic=""), RoutingStatistics.fresh(4))
    return replace(router.begin(first), outcomes=outcomes)


def _weighed(router: OutcomeRouter, state: State, tries: int) -> dict[tuple[int, ...], float]:
    """For each route the mean of its draws over their logged chances: 1 where these are true."""
    seen = dict.fromkeys(SETS, 0.0)
    for step in range(tries):
        draws = Randomness(3).at(step, "x0")
        route, _ = asyncio.run(router.route(EXAMPLES[0], state, 0.0, draws))
        assert route.propensity is not None and 0.0 < route.propensity <= 1.0
        seen[route.indices] += 1.0 / route.propensity / tries
    return seen


def test_a_first_visit_is_drawn_uniformly() -> None:
    """None as often as any one of the four; pairs as often as singles."""
    router = _router()
    route, _ = asyncio.run(
        router.route(EXAMPLES[0], _state(router), 0.0, Randomness(0).at(0, "x0"))
    )
    assert route.propensity == pytest.approx(
        {0: 1 / 5, 1: 4 / 5 / 2 / 4, 2: 4 / 5 / 2 / 6}[len(route.indices)], abs=1e-8
    )
    seen = _weighed(router, _state(router), 400)
    assert all(abs(share - 1.0) < 0.8 for share in seen.values()), seen


def test_chances_are_exact_and_no_tried_route_is_drawn() -> None:
    router = _router()
    router = OutcomeRouter(
        RouterSettings(kind="outcomes", floor=0.5, scale=1.0), 2, router.model, repeats=False
    )
    tried = [(0,), (), (1, 2)]
    state = _state(
        router,
        *(_outcome("x0", route, 0.0) for route in tried),
        _outcome("x2", (1,), 1.0),
        _outcome("x4", (1, 3), 1.0),
    )
    seen = _weighed(router, state, 400)
    assert {route for route, share in seen.items() if share == 0.0} == set(tried)
    assert all(abs(seen[route] - 1.0) < 0.8 for route in SETS if route not in tried), seen


def test_where_every_route_was_tried_any_is_drawn() -> None:
    router = _router(select=1)
    state = _state(router, *(_outcome("x0", route, 0.0) for route in SETS[:5]))
    route, _ = asyncio.run(router.route(EXAMPLES[0], state, 0.0, Randomness(0).at(0, "x0")))
    assert route.indices in SETS[:5] and route.propensity


def test_a_rewritten_instinct_is_untried_and_its_inputs_unsolved() -> None:
    router = _router(select=1)
    state = _state(router, *(_outcome("x0", route, 1.0) for route in SETS[:4]))
    state = replace(state, versions=(0, 1, 0, 0))
    drawn = [
        asyncio.run(router.route(EXAMPLES[0], state, 0.0, Randomness(0).at(step, "x0")))[0].indices
        for step in range(20)
    ]
    assert set(drawn) <= {(1,), (3,)} and (1,) in drawn
    only = replace(state, outcomes=(_outcome("x0", (1,), 1.0),))
    batch = router.attend(EXAMPLES[:2], EXAMPLES, only, Randomness(0).at(0, "batch"))
    assert tuple(batch) == EXAMPLES[:2]


def test_solved_inputs_give_their_places_to_unsolved_ones() -> None:
    router = _router()
    state = _state(router, *(_outcome(f"x{i}", (0,), 1.0) for i in range(20)))
    draws = Randomness(0).at(0, "batch")
    batch = router.attend(EXAMPLES[18:22], EXAMPLES, state, draws)
    assert [e.id for e in batch[:2]] == ["x20", "x21"]
    assert {e.id for e in batch} == {"x20", "x21", "x22", "x23"}
    assert router.attend(EXAMPLES[18:22], EXAMPLES, state, draws) == batch
    few = router.attend(EXAMPLES[:8], EXAMPLES, state, draws)
    assert len(few) == 8 and len({e.id for e in few}) == 8
    assert {"x20", "x21", "x22", "x23"} < {e.id for e in few}
    assert _router(repeats=True).attend(EXAMPLES[:8], EXAMPLES, state, draws) == EXAMPLES[:8]


def test_later_visits_do_not_move_what_first_visits_say() -> None:
    """Their rewards are good only because the inputs were visited until they were solved."""
    router = _router(select=1)
    firsts = [_outcome(e.id, (i % 4,), 0.0) for i, e in enumerate(EXAMPLES)]
    later = [_outcome(e.id, ((i + 1) % 4,), 1.0) for i, e in enumerate(EXAMPLES)]
    inputs = {e.id: e.input for e in EXAMPLES}
    rollouts = {
        first: estimate.rollouts
        for first in (True, False)
        if (
            estimate := off_policy(
                router.model,
                inputs,
                BOOK.texts,
                [*firsts, *later],
                (0,) * 4,
                Terms(1, 0, first_visits=first),
            )
        )
    }
    assert rollouts == {True: 24, False: 48}
