"""One prompt for every input: what a learned policy is measured against.

A new baseline is a class here (or in another package) with its line in `baselines`.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.method.policy import Deployed, FixedPrompt
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Optimizer, Problem, Result
from promptcodebook.policy.file import CONCAT, PRESENT, PolicyFile

__all__ = ["UNTRAINED", "Present", "baselines", "concat_row", "untrained_row"]

UNTRAINED = "untrained"
"""Name of the row that a result is set beside to see what training did."""


class Present:
    """What the user has today: their present prompt, or the task's zero-shot prompt."""

    async def optimize(self, problem: Problem) -> Result:
        prompt = problem.assembled.plan.present_prompt
        title = "the present prompt" if prompt else "zero-shot (no prompt)"
        return Result(PRESENT, title, FixedPrompt(prompt))


def baselines() -> Sequence[Optimizer]:
    """The rows that stand before every result; the first is what gains are measured against."""
    return (Present(),)


def concat_row(policy: PolicyFile) -> Result:
    """All of a policy's instincts in one prompt."""
    title = "one prompt with all its instincts (concat)"
    return Result(CONCAT, title, FixedPrompt(policy.concat))


def untrained_row(problem: Problem, state: State) -> Result:
    """The first codebook, routed and composed as the learned one is."""
    assembled = problem.assembled
    composer = assembled.composer(assembled.plan.prompt_stages)
    prompter = Deployed(composer, state.parameters, state.statistics)
    return Result(UNTRAINED, "the untrained codebook", prompter)
