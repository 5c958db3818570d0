"""A policy, or a fixed prompt, over a set of examples (method decision 15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from promptcodebook.calls import Usage
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Prompter
from promptcodebook.randomness import Randomness
from promptcodebook.types import Evaluation, Example, Rollout

EVALUATION = -1
"""Stands for the step in evaluation draws: an input's prompt is the same at every evaluation."""


@dataclass(frozen=True)
class Evaluator:
    """Greedy rollouts; a failed one is tried again `retries` times with fresh draws."""

    trial: Trial
    randomness: Randomness
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

        rollouts = await gather_all(map(one, examples))
        return Evaluation(name, split, tuple(rollouts), self.floor)

    async def _roll(self, prompter: Prompter, example: Example) -> Rollout:
        rollout = await roll_out(
            prompter, self.trial, example, self.randomness.at(EVALUATION, example.id)
        )
        for attempt in range(self.retries):
            if rollout.failure is None:
                break
            draws = self.randomness.at(EVALUATION - 1 - attempt, example.id)
            again = await roll_out(prompter, self.trial, example, draws)
            rollout = replace(again, usage=rollout.usage + again.usage)
        return rollout


def average(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Several sampled runs over the same examples as one: each example's mean reward and all its
    usage (AIME's five runs a problem, decision 18).

    A run that failed counts as the floor; an example all of whose runs failed has no reward. Text,
    route and failure shown are the first run's.
    """
    first = evaluations[0]
    by_example = zip(*(e.rollouts for e in evaluations), strict=True)
    return replace(first, rollouts=tuple(_mean(runs, first.floor) for runs in by_example))


def _mean(runs: Sequence[Rollout], floor: float) -> Rollout:
    known = [floor if r.reward is None else r.reward for r in runs]
    answered = any(r.reward is not None for r in runs)
    return replace(
        runs[0],
        reward=sum(known) / len(known) if answered else None,
        failure=None if answered else runs[0].failure,
        truncated=any(r.truncated for r in runs),
        usage=sum((r.usage for r in runs), Usage()),
    )
