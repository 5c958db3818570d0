"""Rows without training, as optimizers of their own: what a trained codebook must beat.

Each row bears the name that the optimizer is chosen by. All but zero-shot stand on the codebook
that training would begin with (`init`), and leave it as the run's policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptcodebook.calls import Usage
from promptcodebook.data import sample
from promptcodebook.method.generator import join_prompts
from promptcodebook.method.policy import Composer, FixedPrompt
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.optimizers.fixed import best_prompt, concat_row, untrained_row
from promptcodebook.optimizers.pco import first_or_stored
from promptcodebook.policy.file import BEST_SINGLE, PolicyFile
from promptcodebook.policy.references import policy_file
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Parameters, Prompt, Route


class ZeroShot:
    """The task's own zero-shot prompt, whatever the user's present prompt is."""

    async def optimize(self, problem: Problem) -> Result:
        plan = problem.assembled.plan
        text = join_prompts(plan.config.base_prompt, plan.task.zero_shot)
        return Result("zero_shot", "zero-shot", FixedPrompt(text))


class Concat:
    """All of the first instincts in one prompt."""

    async def optimize(self, problem: Problem) -> Result:
        _, policy = await _first(problem)
        return replace(concat_row(policy), title="all first instincts in one prompt", policy=policy)


class Untrained:
    """The first codebook, routed and composed as a learned one is."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        return replace(untrained_row(problem, state), policy=policy)


class BestSingle:
    """One of the first instincts for every input: the best of all K on the validation split
    (`validation.subset` of it; of the training split where there is none)."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        dataset, config = problem.assembled.dataset, problem.assembled.config
        examples = sample(dataset.val or dataset.train, config.validation.subset)
        texts = state.parameters.codebook.texts
        prompts = list(dict.fromkeys(join_prompts(config.base_prompt, text) for text in texts))
        found = await best_prompt(
            problem, BEST_SINGLE, [Prompt(text) for text in prompts], examples
        )
        best = found.text
        return Result(
            BEST_SINGLE,
            "the best single instinct, untrained",
            FixedPrompt(best),
            policy=policy.with_about(**{BEST_SINGLE: best}),
        )


class RandomRoutes:
    """The first codebook with S of its K instincts drawn for each input, composed as ever."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        assembled = problem.assembled
        composer = assembled.composer(assembled.plan.prompt_stages)
        prompter = Drawn(composer, state.parameters, assembled.config.select)
        return Result("random_routes", "random routes", prompter, policy=policy)


@dataclass(frozen=True)
class Drawn:
    """A prompt of S instincts that are drawn uniformly, by a draw of the input's own."""

    composer: Composer
    parameters: Parameters
    select: int

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        size = len(self.parameters.codebook)
        drawn = draws.generator("random route").sample(range(size), self.select)
        route = Route(tuple(sorted(drawn)), explored=True)
        prompt, usage = await self.composer.compose(self.parameters, route, example, draws)
        return route, prompt, usage


async def _first(problem: Problem) -> tuple[State, PolicyFile]:
    """The state before any step, stored, and its policy file."""
    state = await first_or_stored(problem)
    return state, policy_file(problem.assembled, state)
