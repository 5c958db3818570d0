"""The learning roles, each through its request and its reply as any caller sees them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.method.templates import load_templates
from promptcodebook.paper.simulated.mind import from_request, understand
from promptcodebook.paper.simulated.model import answer
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints.task import constraints_of, reward
from promptcodebook.types import Example
from tests.paper.simulated.made import examples, world
from tests.paper.simulated.test_recognise import CASES, paraphrased, template_values

EXACT = SimulatedSettings(
    encoder_noise=0.0,
    generator_drop=0.0,
    generator_idle=0.0,
    capacity=1.0,
    attribution_error=0.0,
    updater_loss=0.0,
    judge_noise=0.0,
)
BULLETS = "When bullet points are asked for, put each of the bullet points on a line with a dash."


def ask(
    messages: tuple[Message, ...], settings: SimulatedSettings = EXACT, world: World = world
) -> str:
    request = Request("executor", messages, sampling=Sampling(temperature=0.0))
    return answer(understand(from_request(request), world), world, settings)


def filled(example: Example, name: str, **values: Any) -> tuple[Message, ...]:
    return load_templates("default")[name].fill({**template_values(example, "default"), **values})


def json_of(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def failing(example: Example) -> str:
    return f"Feedback of the checker: {reward(example, 'hello').feedback}"


def with_kind(examples: list[Example], kind: str) -> Example:
    return next(e for e in examples if kind in {str(c["kind"]) for c in constraints_of(e)})


def verdict(example: Example, settings: SimulatedSettings = EXACT, world: World = world) -> str:
    """The critic's feedback on a run under "Go." that answered "hello"."""
    values = {"prompt": "Go.", "instincts": "[0] Be kind.", "reference": failing(example)}
    return str(json_of(ask(filled(example, "critic", **values), settings, world))["feedback"])


def test_the_critic_and_all_that_follows_never_see_what_the_executor_lacks() -> None:
    here = World("constraints", examples, SimulatedSettings(world=1))
    there = World("constraints", examples, SimulatedSettings(world=2))
    assert here.lacking != there.lacking
    default = SimulatedSettings()
    for example in examples[:40]:
        found = verdict(example, default, world=here)
        assert found == verdict(example, default, world=there)
        for name in ("attribution", "updater", "adversary", "encoder", "generator"):
            values = {"verdict": found, "gradient": found, "reference": failing(example)}
            messages = filled(example, name, **values)
            assert ask(messages, default, world=here) == ask(messages, default, world=there), name


def test_another_optimizers_reflection_is_the_same_function() -> None:
    """Raw reports instead of advice, fences asked for: the advice must be found, and can be."""
    example = with_kind(examples, "bullets")
    text = (
        "An assistant works under this instruction:\n```\nBe nice.\n```\nHere are runs with "
        f"feedback on each:\n```\n# Example 1\n{reward(example, 'hello').feedback}\n```\n"
        "Write a new instruction for the assistant, within ``` marks."
    )
    found = ask((Message("user", text),))
    assert found.startswith("```\nBe nice.")
    assert world.skills.orders(found.strip("`\n"))
    wrong = ask((Message("user", text),), replace(EXACT, capacity=0.0))
    assert wrong != found


def test_what_every_role_says_stays_as_it_is() -> None:
    """To requests in words of nobody's: each role takes up, lays and loses advice as before."""
    wild = SimulatedSettings(capacity=0.5, attribution_error=0.5, generator_drop=0.5, judge_noise=1)
    found: dict[str, str] = {}
    for settings in (EXACT, SimulatedSettings(), wild):
        for example in examples[:25]:
            for case in CASES:
                asked = understand(paraphrased(case, example, 0.7), world)
                said = answer(asked, world, settings)
                found[asked.kind] = found.get(asked.kind, "") + said
    digests = {kind: hashlib.sha256(text.encode()).hexdigest()[:8] for kind, text in found.items()}
    assert digests == DIGESTS, "figures depend on these texts"


DIGESTS = {
    "route": "29a720ce",
    "compose": "588cad98",
    "critique": "d604ec1f",
    "critique_and_blame": "66c98a6d",
    "blame": "a0d544f5",
    "adversary": "e611887d",
    "improve": "b26ee17e",
    "split": "a61e7628",
    "instincts": "0e6e7639",
    "judge": "63b2dbb7",
    "execute": "7b9b4cf3",
}
