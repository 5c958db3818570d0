"""Attribution: one verdict into channels (decision 4), and the additivity residual (20)."""

from __future__ import annotations

import json

import pytest

from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import (
    AttributionReply,
    OneStringAttributionReply,
    additivity_residual,
    gradients_of,
)
from promptcodebook.randomness import Draws
from promptcodebook.types import Gradients, Verdict
from tests.method.build import World, attributed, config, said
from tests.method.test_critic import history


async def split(reply: str, templates: str = "default") -> tuple[World, Gradients]:
    world = World(config(templates=templates), ScriptedLM().enqueue(reply))
    verdict = Verdict(0.4, "THE VERDICT")
    return world, await world.attribution.split(history(), verdict, Draws(0, 0, "x"))


async def test_each_channel_reaches_its_own_part():
    """Decision 4: g_C comes by index, and an absent index is not to blame."""
    world, gradients = await split(attributed(" blurred ", {3: "vague"}, "wrong pick"))
    assert gradients == Gradients("wrong pick", "blurred", {3: "vague"})
    seen = said(world.lm.history[0])
    assert "THE VERDICT" in seen and "[0] rule zero" in seen


async def test_empty_means_not_to_blame():
    _, gradients = await split(attributed())
    assert gradients == Gradients()


async def test_the_paper_s_one_string_goes_to_every_active_entry():
    """Decision 4, with `templates: paper`; its schema has no severities (decision 20)."""
    world, gradients = await split(attributed("", "all vague", ""), "paper")
    assert gradients.codebook == {1: "all vague", 3: "all vague"}
    schema = world.lm.history[0].schema
    assert schema is not None and schema.name == "OneStringAttributionReply"
    assert list(schema.body["properties"]) == [  # type: ignore[call-overload]
        "rendering_errors",
        "instinct_errors",
        "routing_errors",
    ]


@pytest.mark.parametrize("key", ["3", "[3]", "c3", "#3", " 3 ", "[c3]"])
def test_models_write_an_index_in_several_ways(key: str):
    reply = AttributionReply(instinct_errors={key: "vague", "2": "inactive", "x": "?", "1": " "})
    assert gradients_of(reply, (1, 3)).codebook == {3: "vague"}


def test_an_index_of_endless_digits_is_no_index():
    reply = AttributionReply(instinct_errors={"9" * 5000: "noise", "07": "real", "\u00b2": "odd"})
    assert gradients_of(reply, [2, 7]).codebook == {7: "real"}


def test_the_residual_is_the_penalty_less_the_severities():
    """Decision 20: δ = ρ(ℓ) - Σ ρ(g_v)."""
    text = json.dumps({"severity": {"rendering": 0.1, "instinct": 0.2, "routing": 0.05}})
    gradients = gradients_of(AttributionReply.model_validate_json(text), (1,))
    assert gradients.severity == {"generator": 0.1, "codebook": 0.2, "encoder": 0.05}
    assert additivity_residual(0.6, gradients) == pytest.approx(0.25)


def test_without_severities_there_is_no_residual():
    """Decision 20: left out, not invented."""
    assert additivity_residual(0.6, gradients_of(AttributionReply(), (1,))) is None
    assert additivity_residual(0.6, gradients_of(OneStringAttributionReply(), (1,))) is None
