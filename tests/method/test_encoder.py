"""E_θ: routing, its faults and their repair (decision 10), and the order of its prompt (14)."""

from __future__ import annotations

import itertools
import math
import random
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptcodebook.calls import Message, Reply
from promptcodebook.config.schema import Explore, preset
from promptcodebook.errors import LMError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.policy import (
    Explorer,
    epsilon_at,
    gamma_for,
    repair_route,
    route_fault,
    route_schema,
    success_weighted,
)
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import load_templates
from promptcodebook.randomness import Draws
from promptcodebook.routing.ranking import Embedder
from promptcodebook.types import Route
from tests.method.build import World, book, config, routed, said

GARBAGE = st.lists(st.integers(-(10**12), 10**12) | st.integers(-3, 20), max_size=40)
STANDING = RoutingStatistics((0.1, 0.4, 0.4, -0.2), (0.2, 0.5, 0.6, 0.0), (3, 2, 1, 0))


@given(GARBAGE, st.lists(st.floats(-1, 1), min_size=1, max_size=18), st.data())
def test_any_list_becomes_s_valid_distinct_sorted_indices(indices, rates, data):
    """Decision 10: whatever the model wrote."""
    select = data.draw(st.integers(1, len(rates)))
    route = repair_route(indices, rates, select)
    assert len(route) == select and list(route) == sorted(set(route))
    assert all(0 <= k < len(rates) for k in route)
    assert route_fault(route, len(rates), select) is None
    valid = [k for k in dict.fromkeys(indices) if 0 <= k < len(rates)]
    assert set(valid[:select]) <= set(route)


@given(GARBAGE, st.integers(1, 18), st.data())
def test_a_list_is_at_fault_exactly_when_it_is_no_route(indices, size: int, data):
    select = data.draw(st.integers(1, size))
    good = len(indices) == len(set(indices)) == select and all(0 <= k < size for k in indices)
    assert (route_fault(indices, size, select) is None) == good


def test_a_fault_says_what_is_wrong():
    """It names few indices, and says when there are more."""
    assert route_fault([0, 0, 7], 4, 2) == (
        "selected_indices: [7] lie outside 0..3; an index is named twice; "
        "1 valid indices instead of 2"
    )
    many, eight = route_fault(range(1000), 4, 2) or "", route_fault(range(4, 12), 4, 2) or ""
    assert len(many) < 120 and "10, 11] and more lie outside" in many
    assert "10, 11] lie outside" in eight


async def route(*replies: str | Reply | Exception, **tree) -> tuple[World, Route]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies))
    found, _ = await world.encoder.route("theta", book(), STANDING, "an input", Draws(0, 0, "x"))
    return world, found


async def test_a_good_route_is_sorted_and_keeps_its_reasons():
    """Decisions 2, 10: a route is sorted, indices run from 0; one re-ask quotes the fault."""
    _, found = await route(routed(3, 0))
    assert found == Route((0, 3), constraints=("c",), analysis="a")
    world, found = await route(routed(3, 3), routed(2, 3))
    assert found.indices == (2, 3) and found.repaired and not found.fallback
    assert "an index is named twice" in world.lm.history[1].messages[-1].content
    assert world.tally["route_repairs"] == 1 and world.tally["route_fallbacks"] == 0


def test_all_before_the_input_is_the_same_for_every_input():
    """Decision 14: a server's prefix cache serves all but the input, and nothing follows it."""
    messages = World(config()).encoder.messages
    first, second = (
        "\n".join(m.content for m in messages("theta", book(), STANDING, task))
        for task in ("abc {theta}", "xyz")
    )
    prefix = first.removesuffix("abc {theta}")
    assert first != prefix and second == prefix + "xyz"
    assert "[3] rule three (untried)" in prefix
    assert "2 different integers from 0 to 3" in prefix


async def test_the_reply_is_asked_for_by_schema():
    """S and K stand in it, and the decision before its reasons, as in the words of the request."""
    world, _ = await route(routed(0, 1))
    (request,) = world.lm.history
    assert request.schema is not None
    fields = request.schema.body["properties"]
    assert isinstance(fields, dict)
    assert list(fields) == ["selected_indices", "constraints", "analysis"]
    assert fields["selected_indices"] == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "uniqueItems": True,
        "items": {"type": "integer", "enum": [0, 1, 2, 3]},
    }
    demand = {"type": "string", "maxLength": 80}
    assert fields["constraints"] == {"type": "array", "maxItems": 5, "items": demand}
    assert request.schema.body["required"] == ["selected_indices"]
    assert said(request).endswith("an input")


@pytest.mark.parametrize(("template", "order"), [
    ('first "analysis", then "selected_indices"', ["analysis", "selected_indices", "constraints"]),
    (load_templates("paper").sources["encoder"], ["constraints", "selected_indices", "analysis"]),
])  # fmt: skip
def test_a_route_is_asked_for_in_the_order_of_the_template(template: str, order: list[str]):
    fields = route_schema(2, 4, template).body["properties"]
    assert isinstance(fields, dict) and list(fields) == order


@pytest.mark.parametrize(
    "indices", ['["c1", "[3]"]', '"1, 3"', '{"1": "why", "3": "why"}', '[{"index": 1}, 3.0, null]']
)
async def test_a_route_is_read_however_it_is_written(indices: str):
    odd = f'{{"selected_indices": {indices}, "constraints": null, "analysis": ["a", "b"]}}'
    world, found = await route(odd)
    assert found == Route((1, 3), analysis="a b") and len(world.lm.history) == 1


@pytest.mark.parametrize(("reply", "indices", "fault"), [
    (routed(3, 8), (1, 3), "[8] lie outside 0..3; 1 valid indices instead of 2"),
    (routed(3, 3), (1, 3), "an index is named twice; 1 valid indices instead of 2"),
    ('{"selected_indices": null}', (1, 2), "0 valid indices instead of 2"),
    ("no json", (1, 2), "it was not the JSON asked for"),
    (Reply('{"selected_indices": [1', finish="length"), (1, 2), "it was cut at its length limit"),
])  # fmt: skip
async def test_what_stays_wrong_keeps_its_valid_picks(
    reply: str | Reply, indices: tuple[int, ...], fault: str
):
    """Decision 10: 3 is valid; c1 and c2 have the highest r̄ (tied, lowest index first)."""
    world = World(config(), ScriptedLM().enqueue(reply, reply))
    found, usage = await world.encoder.route("t", book(), STANDING, "x", Draws(0, 0, "x"))
    assert found.indices == indices and found.repaired and found.fallback
    assert found.fault.removeprefix("selected_indices: ") == fault
    assert (world.tally["route_repairs"], world.tally["route_fallbacks"]) == (1, 1)
    assert usage.calls == 2 and usage.completion_tokens > 0


LONG = "".join(f"{i} " for i in range(5000))


@pytest.mark.parametrize(("text", "read"), [
    *((LONG[:n], LONG[:n]) for n in (1, 1999, 2000)),
    *((LONG[:n], LONG[:1000] + LONG[n - 1000 : n]) for n in (2001, 5000)),
    ("", "-"), (" \n", "-"),  # an endpoint refuses to embed nothing
])  # fmt: skip
async def test_of_a_long_input_both_ends_are_embedded(text: str, read: str):
    """Up to 2,000 characters all of it is, and of a longer one a thousand from either end."""
    lm = ScriptedLM().enqueue(Reply("", vector=(1.0, 2.0)))
    vector, usage = await Embedder(lm).read(text)
    (asked,) = lm.history
    assert asked.messages == (Message("user", read),)
    assert (asked.role, asked.embeds) == ("encoder", True)
    assert vector == (1.0, 2.0) and usage.calls == 1


async def test_a_text_where_an_embedding_was_asked_for_is_an_error_that_says_what_to_do():
    with pytest.raises(LMError, match=r"^the model answered a request for an embedding") as error:
        await Embedder(ScriptedLM().enqueue("as you like")).read("an input")
    assert error.value.hint.startswith("router.features = 'words'")
    assert "roles.encoder.model" in error.value.hint and error.value.role == "encoder"


# ε-greedy exploration and SuccWtd (decision 6).

RATES = st.lists(st.floats(-1, 1), min_size=1, max_size=24)


@given(RATES, st.data(), st.floats(0.01, 10), st.integers())
def test_exactly_s_distinct_sorted_indices_are_drawn(rates, data, tau: float, seed: int):
    """Decision 6: a draw without replacement."""
    select = data.draw(st.integers(1, len(rates)))
    drawn = success_weighted(rates, select, tau, random.Random(seed))
    assert len(drawn) == select
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(range(len(rates)))


def exact(rates: list[float], select: int, tau: float) -> dict[tuple[int, ...], float]:
    """The chance of every S-subset when entries are taken one after the other, p ∝ exp(r̄/τ)."""
    weights = [math.exp(rate / tau) for rate in rates]
    chance: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(rates)), select):
        left, p = sum(weights), 1.0
        for k in order:
            p *= weights[k] / left
            left -= weights[k]
        subset = tuple(sorted(order))
        chance[subset] = chance.get(subset, 0.0) + p
    return chance


def chi_square(expected: dict[tuple[int, ...], float], draws: list[tuple[int, ...]]) -> float:
    n = len(draws)
    return sum((draws.count(z) - n * p) ** 2 / (n * p) for z, p in expected.items())


RATED = [0.6, 0.2, 0.0, -0.2, -0.5]
# The 99.9 % quantiles of chi-square with 4 and with 9 degrees of freedom.
QUANTILE = {1: 18.47, 2: 27.88, 3: 27.88}


@pytest.mark.parametrize("select", [1, 2, 3])
def test_routes_come_with_the_probabilities_of_successive_sampling(select: int):
    """Decision 6: chi-square over all S-subsets of five entries, 6000 seeded draws."""
    draw = random.Random(7)
    expected = exact(RATED, select, 0.5)
    drawn = [success_weighted(RATED, select, 0.5, draw) for _ in range(6000)]
    assert sum(expected.values()) == pytest.approx(1)
    assert chi_square(expected, drawn) < QUANTILE[select]
    uniform = [tuple(sorted(draw.sample(range(5), select))) for _ in range(6000)]
    assert chi_square(expected, uniform) > QUANTILE[select]


class Constant(random.Random):
    """random() at the very ends of its range."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("value", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_are_drawn_from_too(value: float):
    assert success_weighted([0.0, 1.0, 0.5], 2, 0.5, Constant(value)) == (1, 2)


@given(st.floats(0.01, 1), st.floats(0.0, 1), st.integers(1, 120))
def test_epsilon_falls_steadily_to_its_floor_at_90_percent(first: float, low: float, epochs: int):
    """Section 3 of the method notes: γ is derived; a short run must not stay all exploration."""
    assume(low <= first)
    settings_ = Explore(epsilon=first, epsilon_min=low)
    values = [epsilon_at(epoch, settings_, epochs) for epoch in range(epochs + 1)]
    assert values[0] == first
    assert all(a >= b for a, b in itertools.pairwise(values))
    at = math.ceil(0.9 * epochs)
    if low > 0:
        assert values[at] == pytest.approx(low)
        assert at < 2 or values[at - 2] > low or low == first
    else:
        assert values[at] <= 0.0101 * first


def test_a_given_gamma_is_the_paper_s_decay():
    """Table 6: 1, 0.96, 0.96², ... down to 0.15, which 0.96 reaches after 47 epochs."""
    paper = Explore(**preset("paper")["explore"])
    values = [epsilon_at(epoch, paper, 50) for epoch in range(50)]
    assert gamma_for(paper, 50) == 0.96
    assert values[:3] == pytest.approx([1.0, 0.96, 0.9216])
    assert values[46] == pytest.approx(0.96**46) and values[46] > 0.15
    assert values[47:] == [0.15] * 3


def test_no_exploration_is_epsilon_zero():
    assert epsilon_at(0, Explore(policy="none"), 50) == 0.0
    assert gamma_for(Explore(epsilon=0.15), 50) == 1.0


def test_without_a_floor_epsilon_falls_by_degrees_to_a_hundredth_at_90_percent():
    endless = Explore(epsilon=0.8, epsilon_min=0.0)
    values = [epsilon_at(epoch, endless, 50) for epoch in range(51)]
    assert values[45] == pytest.approx(0.008)
    assert values[1] == pytest.approx(0.8 * 0.01 ** (1 / 45)) and values[50] > 0.0


def test_epsilon_below_its_floor_rises_to_it_and_no_further():
    low = Explore(epsilon=0.1, epsilon_min=0.3)
    assert [epsilon_at(epoch, low, 20) for epoch in range(21)] == [0.1] + [0.3] * 20


def test_exploration_prefers_what_succeeded_unless_it_is_to_be_uniform():
    """At τ = 0.01 a lead of 0.5 decides every draw; a uniform draw knows of no lead."""

    def explored(policy: Literal["success", "uniform"]) -> set[tuple[int, ...]]:
        explorer, draw = Explorer(Explore(policy=policy, tau=0.01), 2), random.Random(3)
        return {explorer.route([0.0, 0.5, 0.0, 0.5], draw).indices for _ in range(100)}

    assert explored("success") == {(1, 3)}
    assert explored("uniform") == set(itertools.combinations(range(4), 2))
