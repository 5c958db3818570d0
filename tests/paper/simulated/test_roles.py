"""The learning roles, each through its request and its reply as any caller sees them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from promptcodebook.calls import Message
from promptcodebook.paper.simulated.mind import understand
from promptcodebook.paper.simulated.model import answer
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints.task import reward
from tests.build import simulated
from tests.build.paper_tasks import cases


def test_the_critic_and_all_that_follows_never_see_what_the_executor_lacks() -> None:
    here = World("constraints", simulated.examples, SimulatedSettings(world=1))
    there = World("constraints", simulated.examples, SimulatedSettings(world=2))
    assert here.lacking != there.lacking
    default = SimulatedSettings()
    for example in simulated.examples[:40]:
        found = simulated.verdict(example, default, world=here)
        assert found == simulated.verdict(example, default, world=there)
        for name in ("attribution", "updater", "adversary", "encoder", "generator"):
            values = {"verdict": found, "gradient": found, "reference": simulated.failing(example)}
            messages = simulated.filled(example, name, **values)
            assert simulated.ask(messages, default, world=here) == simulated.ask(
                messages, default, world=there
            ), name


def test_another_optimizers_reflection_is_the_same_function() -> None:
    """Raw reports instead of advice, fences asked for: the advice must be found, and can be."""
    example = simulated.with_kind(simulated.examples, "bullets")
    text = (
        "An assistant works under this instruction:\n```\nBe nice.\n```\nHere are runs with "
        f"feedback on each:\n```\n# Example 1\n{reward(example, 'hello').feedback}\n```\n"
        "Write a new instruction for the assistant, within ``` marks."
    )
    found = simulated.ask((Message("user", text),))
    assert found.startswith("```\nBe nice.")
    assert simulated.world.skills.orders(found.strip("`\n"))
    wrong = simulated.ask((Message("user", text),), replace(simulated.EXACT, capacity=0.0))
    assert wrong != found


def test_what_every_role_says_stays_as_it_is() -> None:
    """To requests in words of nobody's: each role takes up, lays and loses advice as before."""
    wild = SimulatedSettings(capacity=0.5, attribution_error=0.5, generator_drop=0.5, judge_noise=1)
    found: dict[str, str] = {}
    for settings in (simulated.EXACT, SimulatedSettings(), wild):
        for example in simulated.examples[:25]:
            for case in simulated.CASES:
                asked = understand(simulated.paraphrased(case, example, 0.7), simulated.world)
                reply = answer(asked, simulated.world, settings)
                found[asked.kind] = found.get(asked.kind, "") + reply
    digests = {kind: hashlib.sha256(text.encode()).hexdigest()[:8] for kind, text in found.items()}
    assert digests == DIGESTS, "figures depend on these texts"


DIGESTS = cases("roles-digests")
