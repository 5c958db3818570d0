"""`templates: paper` in the loop: order, schemas, and which average is shown."""

from __future__ import annotations

import json

import pytest

from promptcodebook.calls import Request
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import RoutingStatistics, State
from tests.method.build import World, config, examples, is_own_gradient, parameters, said, talkative

PAPER = {"templates": "paper", "explore": {"policy": "none"}}
UPDATE = {"batch_size": 3, "epochs": 1}


def printed(request: Request) -> Scripted:
    """Replies in the paper's schemas: one string for all instincts, no severities."""
    one = {"rendering_errors": "", "instinct_errors": "all vague", "routing_errors": ""}
    if request.role == "attribution":
        return json.dumps(one)
    if request.role == "critic" and not is_own_gradient(request):
        return json.dumps({"score": 0.5, "feedback": "bad", **one})
    return talkative(request)


@pytest.mark.parametrize("stages", [1, 2])
async def test_the_one_string_rewrites_every_active_entry(stages: int):
    """Decision 4: g_C of the printed schema goes to all of C[z], in two calls or in one."""
    settings = config(**PAPER, update=UPDATE, critic={"stages": stages, "trainable": False})
    world = World(settings, ScriptedLM().reply_with(printed))
    (step,) = await world.run(examples(3))
    assert [r.variable for r in step.rewrites] == [0, 1]
    assert {r.gradient for r in step.rewrites} == {"- all vague\n- all vague\n- all vague"}
    assert all(t.residual is None for t in step.traces)
    assert len(world.asked("attribution")) == (3 if stages == 2 else 0)


async def test_the_encoder_reads_r_bar_where_ours_reads_success():
    """Decision 5."""
    statistics = RoutingStatistics((-0.25, 0.5, 0, 0), (0.75, 1.0, 0, 0), (2, 1, 0, 0))
    world = World(config(**PAPER, update=UPDATE), ScriptedLM().reply_with(printed))
    await world.run(examples(3), state=State(0, parameters(), statistics))
    assert all(
        "0: rule zero [-0.25]\n1: rule one [0.50]" in said(r) for r in world.asked("encoder")
    )


async def test_each_template_keeps_the_printed_order():
    """Decision 14: the learned part is the system turn, the input opens the user turn."""
    world = World(config(**PAPER, update=UPDATE), ScriptedLM().reply_with(printed))
    await world.run(examples(3))
    learned = {"encoder": "theta 0", "generator": "phi 0", "critic": "psi 0"}
    for role, text in learned.items():
        for request in world.asked(role):
            system, user = request.messages
            assert system.content == text and user.content.startswith("Task: input ")
    for request in world.asked("attribution"):
        assert 'on the execution trace:\n"bad"\n' in said(request)
        assert "input " not in request.messages[1].content
