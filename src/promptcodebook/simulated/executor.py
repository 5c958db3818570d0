"""The simulated executor: reads the system prompt and the input, and nothing else.

Each demand of the input is met or not by one draw that is the same under every prompt, so that a
prompt with better chances never does worse on the same input and sample.
"""

from __future__ import annotations

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.pipelines import BEHAVIOURS, outside
from promptcodebook.simulated.stages import weighed
from promptcodebook.simulated.world import chances

__all__ = ["execute", "met_demands", "perform"]

_THOUGHTS = "Looking at what is given and at what is asked, this follows."


def perform(mind: Mind) -> str:
    """The reply to one stage of a program, in the form it asks for."""
    staged = mind.asked.staged
    assert staged is not None
    problem = mind.world.problem(mind.asked.input)
    request = mind.asked.request
    met = met_demands(mind, request.system, weighed(request, staged))
    said = BEHAVIOURS[staged.kind](mind, problem, staged, met)
    return staged.reply(said, _THOUGHTS)


def execute(mind: Mind) -> str:
    """The reply to an input under a system prompt."""
    if mind.world.name == "pupa" and not mind.asked.request.system.strip():
        return outside(mind)
    problem = mind.world.problem(mind.asked.input)
    met = met_demands(mind, mind.asked.request.system)
    variant = keyed_int(mind.draw.world_seed, mind.draw.sample, "variant", problem.input) % 997
    return mind.world.writer(problem, met, variant)


def met_demands(mind: Mind, prompt: str, weighed: str | None = None) -> frozenset[str]:
    """The keys of the demands that are met under this prompt, of which `weighed` weighs on it."""
    problem = mind.world.problem(mind.asked.input)
    found = chances(mind.world, problem, prompt, mind.settings, weighed)
    return frozenset(
        key for key, chance in found.items() if mind.draw.shared(problem.input, key) < chance
    )
