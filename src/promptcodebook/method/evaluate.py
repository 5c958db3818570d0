"""A policy, or a fixed prompt, over a set of examples (method decision 15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from promptcodebook.method.chains import all_of
from promptcodebook.method.draws import Draws
from promptcodebook.method.policy import Prompter, Trial, rollout_of
from promptcodebook.types import Evaluation, Example, Rollout

__all__ = ["Evaluator"]

EVALUATION = -1
"""Stands for the step in evaluation draws: an input's prompt is the same at every evaluation."""


@dataclass(frozen=True)
class Evaluator:
    """Greedy rollouts; a failed one is tried again `retries` times with fresh draws."""

    trial: Trial
    seed: int
    floor: float = 0.0
    retries: int = 1

    async def evaluate(
        self,
        name: str,
        prompter: Prompter,
        examples: Sequence[Example],
        split: str,
        done: Callable[[Rollout], None] | None = None,
    ) -> Evaluation:
        """All rollouts in the examples' order; `done` hears of each as it finishes."""

        async def one(example: Example) -> Rollout:
            rollout = await self._roll(prompter, example)
            if done is not None:
                done(rollout)
            return rollout

        rollouts = await all_of(map(one, examples))
        return Evaluation(name, split, tuple(rollouts), self.floor)

    async def _roll(self, prompter: Prompter, example: Example) -> Rollout:
        rollout = await rollout_of(
            prompter, self.trial, example, Draws(self.seed, EVALUATION, example.id)
        )
        for attempt in range(self.retries):
            if rollout.failure is None:
                break
            draws = Draws(self.seed, EVALUATION - 1 - attempt, example.id)
            again = await rollout_of(prompter, self.trial, example, draws)
            rollout = replace(again, usage=rollout.usage + again.usage)
        return rollout
