"""A model that means well and writes badly: the loop learns from it all the same."""

from __future__ import annotations

import json
from itertools import cycle
from typing import Any

from promptcodebook.calls import Reply, Request
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from tests.method.build import ENCODED, World, config, examples, is_own_gradient, talkative

ATTRIBUTIONS: list[dict[str, Any]] = [
    {"rendering_errors": None, "instinct_errors": [{"index": 1, "text": "vague"}]},
    {"rendering_errors": [], "instinct_errors": "[0] rule zero: say how", "severity": "high"},
    {"routing_errors": "none", "instinct_errors": {"instinct 1": "vague", "C9": "what?"}},
    {"rendering_errors": {"tone": "lost"}, "instinct_errors": None, "severity": {"routing": 7}},
    {"instinct_errors": {"a skill that is missing": "Count the words."}, "extra": 1},
]


def weak(request: Request) -> Scripted:
    """Chats around every value, rambles until it is cut, and never writes a form twice alike."""
    match request.role:
        case "encoder":
            return 'Sure! {"selected_indices": ["[0]", "instinct 1"], "constraints": null}'
        case "generator":
            return Reply("Well, let us think about the words of " * 50, finish="length")
        case "critic" if is_own_gradient(request):
            return "I have nothing to add."
        case "critic":
            return '```json\n{"score": "3/10", "feedback": ["too short", "no units"]}\n```'
        case "attribution":
            return f"Here you are: {json.dumps(next(FORMS))}"
        case "updater":
            text = str(talkative(request))
            return f'Here is the revised instinct:\n\n"{text}"'
        case _:
            return talkative(request)


FORMS = cycle(ATTRIBUTIONS)


async def test_five_examples_of_a_weak_model_teach_what_they_can():
    settings = config(explore=ENCODED, update={"batch_size": 5, "epochs": 1})
    world = World(settings, ScriptedLM().reply_with(weak))
    (step,) = await world.run(examples(5))
    rollouts = [t.rollout for t in step.traces]
    assert not any(r.failure for r in rollouts)
    assert {r.prompt for r in rollouts} == {"rule zero\nrule one"}
    assert {r.route.indices for r in rollouts if r.route} == {(0, 1)}
    assert not any(r.route.fallback for r in rollouts if r.route)
    assert [t.failure.stage for t in step.traces if t.failure] == ["adversary"] * 5
    assert [t.verdict.score for t in step.traces if t.verdict] == [0.3] * 5
    kept = {r.variable: r.after for r in step.rewrites if r.kept}
    assert set(kept) == {"generator", 0, 1}
    assert all(text.startswith("rewritten") for text in kept.values())
    assert world.tally["prompt_fallbacks"] == 5
    assert world.tally["unknown_instincts"] == 2
