"""The simulated executor: reads the system prompt and the input, and nothing else.

Each demand of the input is met or not by one draw that is the same under every prompt, so that a
prompt with better chances never does worse on the same input and sample.
"""

from __future__ import annotations

from promptcodebook.keyed import keyed_int
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.world import chances

__all__ = ["execute", "met_demands"]


def execute(mind: Mind) -> str:
    """The reply to an input under a system prompt."""
    problem = mind.world.problem(mind.asked.input)
    met = met_demands(mind, mind.asked.request.system)
    variant = keyed_int(mind.draw.world_seed, mind.draw.sample, "variant", problem.input) % 997
    return mind.world.writer(problem, met, variant)


def met_demands(mind: Mind, prompt: str) -> frozenset[str]:
    """The keys of the demands that are met under this prompt."""
    problem = mind.world.problem(mind.asked.input)
    found = chances(mind.world, problem, prompt, mind.settings)
    return frozenset(
        key for key, chance in found.items() if mind.draw.shared(problem.input, key) < chance
    )
