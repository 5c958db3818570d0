"""One prompt for every input: what a learned policy is measured against.

A new baseline is a class here (or in another package) with its line in `baselines`.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.method.generator import join_prompts
from promptcodebook.method.policy import Deployed, FixedPrompt
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Optimizer, Problem, Result

__all__ = ["Present", "baselines", "concat_prompt", "concat_row", "untrained_row"]


class Present:
    """What the user has today: their present prompt, or the task's zero-shot prompt."""

    async def optimize(self, problem: Problem) -> Result:
        plan = problem.assembled.plan
        prompt = join_prompts(plan.config.base_prompt, plan.present_prompt)
        title = "the present prompt" if prompt else "zero-shot (no prompt)"
        return Result("present", title, FixedPrompt(prompt))


def baselines() -> Sequence[Optimizer]:
    """The rows that stand before every result; the first is what gains are measured against."""
    return (Present(),)


def concat_prompt(base_prompt: str, state: State) -> str:
    """Every instinct in one prompt, in order: what the codebook is worth without routing."""
    return join_prompts(base_prompt, "\n".join(state.parameters.codebook.texts))


def concat_row(problem: Problem, state: State) -> Result:
    """All of a state's instincts in one prompt."""
    prompt = concat_prompt(problem.assembled.config.base_prompt, state)
    title = "all its instincts in one prompt (concat)"
    return Result("concat", title, FixedPrompt(prompt))


def untrained_row(problem: Problem, state: State) -> Result:
    """The first codebook, routed and composed as the learned one is."""
    assembled = problem.assembled
    composer = assembled.composer(assembled.plan.prompt_stages)
    prompter = Deployed(composer, state.parameters, state.statistics)
    return Result("untrained", "the untrained codebook", prompter)
