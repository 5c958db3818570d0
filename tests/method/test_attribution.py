"""Attribution: one verdict into channels (decision 4), and the additivity residual (20)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.gradients import (
    AttributionReply,
    OneStringAttributionReply,
    additivity_residual,
    blame_schema,
    gradients_of,
    nearest_instinct,
)
from promptcodebook.randomness import Draws
from promptcodebook.types import Codebook, Gradients, Verdict
from tests.method.build import Counts, World, attributed, book, config, said
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


ACTIVE = (1, 3)


def blamed(errors: object, codebook: Codebook | None = None) -> tuple[dict[int, str], Counts]:
    """g_C of a reply whose instinct errors are written so, and what was counted."""
    reply = AttributionReply.model_validate_json(json.dumps({"instinct_errors": errors}))
    tally = Counts()
    return dict(gradients_of(reply, codebook or book(), ACTIVE, tally).codebook), tally


@pytest.mark.parametrize(
    "key",
    ["3", "[3]", "c3", "C3", "#3", " 3 ", "[c3]", "instinct 3", "Instinct_3", "Instinct [3]", "c_3",
     "[3] rule three", "3: rule three", "index 3", "entry #3", "**3**", "03"],
)  # fmt: skip
def test_models_write_an_index_in_several_ways(key: str):
    assert blamed({key: "vague"}) == ({3: "vague"}, {})


@pytest.mark.parametrize(
    "errors",
    [
        [{"index": 3, "text": "vague"}],
        [{"index": "3", "error": "vague"}],
        [{"text": "vague", "instinct": "[3]"}],
        {"index": 3, "text": "vague"},
        [{"3": "vague"}],
        ["[3] vague"],
        ["3: vague"],
        "instinct 3: vague",
        "[3] vague",
        {"3": ["vague"]},
        {"3": {"text": "vague"}, "1": None},
        {"3": "vague", "1": "none"},
        {"3": "vague", "1": "No errors."},
    ],
)
def test_instinct_errors_are_read_in_whatever_form_they_come(errors: object):
    found, tally = blamed(errors)
    assert found in ({3: "vague"}, {3: "text: vague"}) and tally == {}


@pytest.mark.parametrize("errors", ["", None, [], {}, "none", "N/A", [None, ""], False, {"3": []}])
def test_nothing_is_written_in_several_ways(errors: object):
    assert blamed(errors) == ({}, {})


@pytest.mark.parametrize("key", ["2", "9" * 5000, "99", "3.5"])
def test_an_instinct_that_was_not_at_work_is_passed_over_and_counted(key: str):
    found, tally = blamed({key: "noise", "1": "real"})
    assert found[1].endswith("real") and tally == {"unknown_instincts": 1}
    assert key not in ("2", "99") or found == {1: "real"}


WORDY = book(
    "count",
    "Count every word and every sentence of the draft before it is sent.",
    "x",
    "Keep to plain words.",
)


@pytest.mark.parametrize(
    ("advice", "carrier"),
    [
        ("The sentences must be counted.", 1),  # shares sentence and count with c1
        ("Cite a source for all claims.", 3),  # shares nothing: c3 is the emptier one
        ("Words.", 3),  # one word in common is chance
    ],
)
def test_advice_that_stands_in_no_instinct_goes_to_the_nearest_or_emptiest(
    advice: str, carrier: int
):
    assert blamed({"missing": advice}, WORDY) == ({carrier: advice}, {})
    assert blamed(advice, WORDY) == ({carrier: advice}, {})
    found, tally = blamed({"a new skill": advice}, WORDY)
    assert found == {carrier: advice} and tally == {"unknown_instincts": 1}


@pytest.mark.parametrize(
    ("advice", "carrier"),
    [
        ("Cite page, then line.", 1),  # words of four letters say something
        ("Say more about tone.", 3),  # one of the two in common says little
        ("Take one or two of all.", 3),  # short words say nothing
        ("It is of us, or so.", 3),
    ],
)
def test_only_words_that_say_something_make_advice_related(advice: str, carrier: int):
    related = "Name page and line; say one or two things about the tone of all it is, or of us."
    assert nearest_instinct(advice, book("", related, "", "Be brief."), ACTIVE) == carrier


def test_advice_goes_to_an_instinct_that_may_be_rewritten_and_ties_to_the_lowest_index():
    held = book("a", "b c", "d", "e f", frozen=[1])
    assert nearest_instinct("new advice", held, (1, 3)) == 3
    assert nearest_instinct("new advice", book("a", "b c", "d", "e f"), (1, 3)) == 1
    assert blamed({"missing": "one", "1": "two"}, book("a", "b c", "d", "e f"))[0] == {1: "one two"}


@pytest.mark.parametrize(
    ("severity", "read"),
    [
        ({"rendering": 7}, {"generator": 1.0}),
        ({"rendering": -1, "routing": "0.5"}, {"generator": 0.0, "encoder": 0.5}),
        ({"rendering_errors": "7/10", "Instinct": "70 %"}, {"generator": 0.7, "codebook": 0.7}),
        ({"rendering": 0.5, "routing": "high"}, {}),
        ("high", {}), (None, {}), ([0.5], {}), ({"other": 1}, {}),
    ],
)  # fmt: skip
def test_a_severity_is_held_to_its_range_and_never_invented(severity: object, read):
    text = json.dumps({"rendering_errors": "r", "severity": severity})
    reply = AttributionReply.model_validate_json(text)
    gradients = gradients_of(reply, book(), ACTIVE, Counts())
    assert gradients == Gradients(generator="r", severity=read)


@pytest.mark.parametrize("odd", [None, "", "None.", [], {}, False, "n/a", [None]])
async def test_one_odd_part_costs_no_other(odd: object):
    tree = {"rendering_errors": odd, "instinct_errors": {"1": "vague"}, "routing_errors": "wrong"}
    world, gradients = await split(json.dumps(tree))
    assert gradients == Gradients("wrong", "", {1: "vague"}) and len(world.lm.history) == 1


async def test_attribution_sees_the_input_and_may_name_only_active_instincts():
    world, _ = await split(attributed())
    (request,) = world.lm.history
    assert "Input:\nTHE INPUT" in said(request)
    assert request.schema == blame_schema(AttributionReply, ACTIVE)
    errors = request.schema.body["properties"]["instinct_errors"]  # type: ignore[index]
    assert list(errors["properties"]) == ["1", "3", "missing"]
    assert (errors["type"], errors["additionalProperties"]) == ("object", False)
    assert all(e["type"] == "string" for e in errors["properties"].values())
    assert 900 <= sum(e["maxLength"] for e in errors["properties"].values()) <= 1000
    severities = request.schema.body["properties"]["severity"]["properties"]  # type: ignore[index]
    share = {"type": "number", "minimum": 0, "maximum": 1}
    assert severities == dict.fromkeys(("rendering", "instinct", "routing"), share)


def test_the_residual_is_the_penalty_less_the_severities():
    """Decision 20: δ = ρ(ℓ) - Σ ρ(g_v)."""
    text = json.dumps({"severity": {"rendering": 0.1, "instinct": 0.2, "routing": 0.05}})
    gradients = gradients_of(AttributionReply.model_validate_json(text), book(), (1,), Counts())
    assert gradients.severity == {"generator": 0.1, "codebook": 0.2, "encoder": 0.05}
    assert additivity_residual(0.6, gradients) == pytest.approx(0.25)
    whole = replace(gradients, severity={**gradients.severity, "critic": 0.15})
    assert additivity_residual(0.6, whole) == pytest.approx(0.1)


def test_without_severities_there_is_no_residual():
    """Decision 20: left out, not invented."""
    for reply in (AttributionReply(), OneStringAttributionReply()):
        gradients = gradients_of(reply, book(), (1,), Counts())
        assert additivity_residual(0.6, gradients) is None
