"""One prompt for every input: what a learned policy is measured against.

A new baseline is a class here (or in another package) with its line in `baselines`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from promptcodebook.calls import Usage
from promptcodebook.data import sample
from promptcodebook.method.failures import gather_all
from promptcodebook.method.generator import join_prompts
from promptcodebook.method.policy import Deployed, FixedPrompt
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Optimizer, Problem, Result, evaluate
from promptcodebook.policy.file import BEST_SINGLE, CONCAT, NONE, PRESENT, PolicyFile
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Prompt, Route

__all__ = [
    "ORACLE",
    "SHORTLIST",
    "UNTRAINED",
    "OraclePrompt",
    "Present",
    "baselines",
    "best_single_row",
    "concat_row",
    "reference_rows",
    "untrained_row",
]

UNTRAINED = "untrained"
"""Name of the row that a result is set beside to see what training did."""
ORACLE = "oracle"
"""Name of the row with the right instructions for each input."""
SHORTLIST = 3
"""Instincts that are measured on the validation split to find the best single one."""


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


async def best_single_row(problem: Problem, policy: PolicyFile) -> Result:
    """One instinct for every input: the best on the validation split (`validation.subset` of it),
    of those that the outcomes of training promise most of (without a validation split, the one of
    most promise)."""
    train, val = problem.assembled.dataset.train, problem.assembled.dataset.val
    val = sample(val, problem.assembled.config.validation.subset)
    texts = policy.parameters.codebook.texts
    promise = await _promise(problem, policy, [example.input for example in train])
    listed = sorted(range(len(texts)), key=lambda k: (-promise[k], k))[:SHORTLIST]
    prompts = [join_prompts(policy.base_prompt, texts[k]) for k in listed]
    scores = [0.0]
    if val and len(prompts) > 1:
        scores = [
            (
                await evaluate(problem, BEST_SINGLE, FixedPrompt(text), val, "validating singles")
            ).score
            or 0.0
            for text in prompts
        ]
    best = prompts[scores.index(max(scores))]
    return Result(BEST_SINGLE, "the best single instinct", FixedPrompt(best))


async def _promise(problem: Problem, policy: PolicyFile, inputs: Sequence[str]) -> list[float]:
    """What each instinct adds by itself, summed over the inputs; r̄ where nothing ranks."""
    composer, statistics = problem.assembled.composer(), policy.statistics
    read = (composer.expected(policy.parameters, statistics, text) for text in inputs)
    marginals = [each.marginal for each in await gather_all(read) if each is not None]
    if not marginals:
        return list(statistics.standing)
    return [math.fsum(column) for column in zip(*marginals, strict=True)]


def reference_rows(problem: Problem) -> Sequence[Result]:
    """No instruction at all, unless that is what the user has today, and the right ones for each
    input, where the task knows them."""
    plan = problem.assembled.plan
    rows: list[Result] = []
    if plan.present_prompt != plan.config.base_prompt:
        rows.append(Result(NONE, "no instruction", FixedPrompt(plan.config.base_prompt)))
    if plan.task.oracle is not None:
        oracle = OraclePrompt(plan.task.oracle, plan.config.base_prompt)
        rows.append(Result(ORACLE, "the right instructions", oracle))
    return rows


@dataclass(frozen=True, slots=True)
class OraclePrompt:
    """The prompt that the task says is right for an example."""

    right: Callable[[Example], str]
    base_prompt: str

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        return None, Prompt(join_prompts(self.base_prompt, self.right(example))), Usage()
