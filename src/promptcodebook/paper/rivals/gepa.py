"""GEPA and GEPA+Merge (Agrawal et al. 2025) through the `gepa` package, unmodified. A reflection
reads what our critic reads: the reward, what it says, and y*.

Its defaults: a minibatch of 3, the Pareto front by validation example, components in turn, strict
improvement, at most 5 merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from pydantic import Field

from promptcodebook.calls import Message
from promptcodebook.config import OptimizerSettings
from promptcodebook.errors import import_extra
from promptcodebook.method.critic import reference
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.paper.rivals.outside import WHOLE, Outside, RivalLibrary, optimize_outside
from promptcodebook.types import Example, Rollout

# Times the rollouts of our training: the budget ends it, but it must end without one too.
_UNDER_A_BUDGET = 10


class GepaSettings(OptimizerSettings):
    """GEPA through the `gepa` package, for optimizer = "gepa" or "gepa-merge"."""

    table = "gepa"
    longer = "rollouts"

    rollouts: int | None = Field(default=None, ge=1)
    """Number of rollouts after which GEPA stops; none = as many as our training uses; with a
    budget, ten times as many, so the budget stops GEPA."""
    minibatch: int = Field(default=3, ge=1)
    """Training examples per reflection (as in the GEPA paper)."""
    merges: int = Field(default=5, ge=0)
    """Maximum merges, for "gepa-merge" (as in the GEPA paper)."""


class GEPA:
    """Reflects on single mistakes, keeps a Pareto front of prompts, and takes the best of it."""

    settings = GepaSettings
    merges = False

    async def optimize(self, problem: Problem) -> Result:
        library = import_extra("gepa", "GEPA", "baselines")
        config = problem.assembled.config
        given, budget = GepaSettings.of(config), config.budget
        limits = (budget.calls, budget.tokens, budget.usd, budget.seconds)
        ours = config.update.epochs * len(problem.assembled.dataset.train)
        ours *= 1 if limits == (None,) * 4 else _UNDER_A_BUDGET
        # All that it is run with, the package's own defaults included.
        settings: dict[str, Any] = {
            "max_metric_calls": given.rollouts or ours,
            "reflection_minibatch_size": given.minibatch,
            "candidate_selection_strategy": "pareto",
            "frontier_type": "instance",
            "module_selector": "round_robin",
            "acceptance_criterion": "strict_improvement",
            "skip_perfect_score": True,
            "perfect_score": config.reward_range[1],
            "use_merge": self.merges,
            "max_merge_invocations": given.merges,
            "cache_evaluation": False,
            "seed": config.seed,
        }

        def work(outside: Outside) -> Mapping[str, str]:
            def reflect(prompt: str | Sequence[Mapping[str, Any]]) -> str:
                if isinstance(prompt, str):
                    return outside.ask([Message("user", prompt)])
                return outside.ask([Message(turn["role"], turn["content"]) for turn in prompt])

            found = library.optimize(
                seed_candidate=outside.first,
                trainset=list(outside.train),
                valset=list(outside.val) or None,
                adapter=_Adapter(outside, library),
                reflection_lm=reflect,
                # Its messages quote data and prompts, and the run's store has what happened.
                logger=SimpleNamespace(log=lambda message: None),  # pyright: ignore[reportUnknownLambdaType]
                track_best_outputs=False,
                **settings,
            )
            return found.best_candidate

        name, title = "gepa", "the prompt that GEPA found"
        if self.merges:
            name, title = "gepa-merge", "the prompt that GEPA+Merge found"
        reflection = "role updater, temperature 1, at least 1,024 tokens"
        known = {"library": f"gepa {version('gepa')}", "reflection": reflection, **settings}
        made = RivalLibrary(name, title, known, work, settings["max_metric_calls"])
        return await optimize_outside(problem, made)


class GEPAMerge(GEPA):
    """GEPA that also crosses prompts of its front stage by stage."""

    merges = True


class _Adapter:
    """The program under a candidate's texts, as the package wants it (its GEPAAdapter)."""

    propose_new_texts = None

    def __init__(self, outside: Outside, library: Any) -> None:
        self._outside = outside
        self._batch = library.EvaluationBatch

    def evaluate(
        self, batch: list[Example], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        rollouts = self._outside.roll_out(candidate, batch)
        return self._batch(
            outputs=[rollout.output for rollout in rollouts],
            scores=[self._outside.reward(rollout) for rollout in rollouts],
            trajectories=list(zip(batch, rollouts, strict=True)) if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        seen: Sequence[tuple[Example, Rollout]] = eval_batch.trajectories
        return {
            stage: [record for each in seen for record in self._records(*each, stage)]
            for stage in components_to_update
        }

    def _records(self, example: Example, rollout: Rollout, stage: str) -> list[dict[str, Any]]:
        own = [] if stage == WHOLE else [s for s in rollout.stages if s.name == stage]
        taken = [({"input": s.input}, s.output) for s in own]
        if not taken:
            inputs: dict[str, Any] = {"input": example.input}
            steps = {s.name: {"input": s.input, "output": s.output} for s in rollout.stages}
            if stage == WHOLE and len(steps) > 1:
                inputs["steps on the way"] = steps
            taken = [(inputs, rollout.output)]
        low, high = self._outside.problem.assembled.config.reward_range
        earned = self._outside.reward(rollout)
        reward = f"Reward {earned:g} ({low:g} is the least, {high:g} the best)."
        feedback = reference(example, rollout.feedback)
        if rollout.failure is not None:
            feedback = f"It failed: {rollout.failure.kind}: {rollout.failure.message}"
        return [
            {"Inputs": inputs, "Generated Outputs": output, "Feedback": f"{reward} {feedback}"}
            for inputs, output in taken
        ]
