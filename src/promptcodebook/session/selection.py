"""Which state of the run is kept: validation, early stop, and the finalists (decision 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from promptcodebook.keyed import keyed_random
from promptcodebook.method.broken import too_many
from promptcodebook.method.evaluate import Evaluator
from promptcodebook.method.policy import Deployed, Trial
from promptcodebook.method.state import State
from promptcodebook.method.train import Learner
from promptcodebook.session.events import Listener, Phase, Validated
from promptcodebook.session.plan import RunPlan
from promptcodebook.store.events import EndReason, Scope
from promptcodebook.store.events import Validated as ValidationStored
from promptcodebook.store.fold import Mark
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Example, Rollout, Trace

__all__ = ["Selection", "greedy", "progress", "refuse_broken", "state_at"]


def greedy(learner: Learner) -> Trial:
    """The executor as it is evaluated: greedy."""
    return replace(learner.trial, greedy=True)


def progress(tell: Listener, name: str, total: int) -> Callable[[Rollout], None]:
    """Tells of each rollout that finishes."""
    done = 0
    tell(Phase(name, 0, total))

    def count(rollout: Rollout) -> None:
        nonlocal done
        done += 1
        tell(Phase(name, done, total))

    return count


def state_at(store: RunStore, step: int) -> State:
    """The state that a step left behind; -1 is the untrained one."""
    if step < 0:
        return State.first(store.parameters_at(-1))
    return State.after(store.step_at(step))


def refuse_broken(evaluation: Evaluation, name: str) -> None:
    """More than half failed, retries included: that is an endpoint or a reward, not a policy.

    As zeros on record it would decide which policy is kept and what the verdict says; unrecorded,
    a resumed run evaluates it again. Raises TooManyFailures.
    """
    failures = [r.failure for r in evaluation.rollouts if r.failure is not None]
    if len(failures) * 2 <= len(evaluation.rollouts):
        return
    raise too_many(failures, tuple(map(Trace, evaluation.rollouts)), f"{name}: ")


class Selection:
    """Validates on a fixed subset as the run goes, and on the whole split at its end.

    The untrained policy is a candidate too: a run that made things worse keeps what it began with.
    """

    def __init__(
        self, plan: RunPlan, store: RunStore, learner: Learner, listener: Listener
    ) -> None:
        self._settings = plan.config.validation
        self._config = plan.config
        self._store = store
        self._learner = learner
        self._tell = listener
        self._whole = plan.split("val")
        self._subset = self._fixed_subset()
        self._marks: list[Mark] = list(store.outline().validations)
        online = plan.config.update.mode == "online"
        # In online mode a step is one example: validate as often per example as with batches.
        self._every = self._settings.every * (plan.config.update.batch_size if online else 1)
        low, _ = plan.config.reward_range
        self._evaluator = Evaluator(greedy(learner), plan.config.seed, low)

    def _fixed_subset(self) -> tuple[Example, ...]:
        """At most `validation.subset` examples, a seeded choice in the split's own order."""
        if len(self._whole) <= self._settings.subset:
            return self._whole
        draw = keyed_random(self._config.seed, "validation subset")
        keys = {example.id: draw.random() for example in self._whole}
        chosen = sorted(self._whole, key=lambda e: keys[e.id])[: self._settings.subset]
        ids = {example.id for example in chosen}
        return tuple(e for e in self._whole if e.id in ids)

    @property
    def _validates(self) -> bool:
        return self._every > 0 and bool(self._whole)

    async def validate_if_due(self, step: int) -> None:
        """Validates after every so many steps, and before the first; once for each step."""
        if not self._validates or (step + 1) % self._every:
            return
        if any(m.step == step and m.scope == "subset" for m in self._marks):
            return
        await self._validate(step, "subset", self._subset)

    async def _validate(self, step: int, scope: Scope, examples: tuple[Example, ...]) -> None:
        state = state_at(self._store, step)
        deployed = Deployed(self._learner.policy, state.parameters, state.standing)
        name = f"validating step {step + 1}"
        evaluation = await self._evaluator.evaluate(
            f"step {step + 1}", deployed, examples, "val", progress(self._tell, name, len(examples))
        )
        refuse_broken(evaluation, name)
        self._store.append(ValidationStored(step, scope, evaluation))
        score = evaluation.score or 0.0
        earlier = [m.score or 0.0 for m in self._marks if m.scope == scope]
        self._marks.append(
            Mark(
                evaluation.name,
                step,
                scope,
                evaluation.score,
                evaluation.answered,
                len(examples),
                evaluation.failed,
            )
        )
        best = not earlier or score > max(earlier)
        self._tell(Validated(step, evaluation, best, finalist=scope == "full"))

    def enough(self) -> EndReason | None:
        """Early stop: the target is reached, or `patience` validations brought no gain."""
        scores = [m.score or 0.0 for m in self._marks if m.scope == "subset"]
        target = self._settings.target_score
        if not scores:
            return None
        if target is not None and max(scores) >= target:
            return "target"
        best = scores.index(max(scores))
        return "early_stop" if len(scores) - 1 - best >= self._settings.patience else None

    async def best(self) -> State:
        """The state to deploy: the best finalist on the whole validation split, or the last."""
        last = self._store.outline().step
        ranked = sorted(
            (m for m in self._marks if m.scope == "subset"), key=lambda m: (-(m.score or 0), m.step)
        )
        if self._config.keep == "last" or not ranked:
            return state_at(self._store, last)
        finalists = [m.step for m in ranked[: self._settings.finalists]]
        if last not in finalists and last not in [m.step for m in ranked]:
            finalists.append(last)
        for step in finalists:
            if not any(m.step == step and m.scope == "full" for m in self._marks):
                await self._validate(step, "full", self._whole)
        full = [m for m in self._marks if m.scope == "full" and m.step in finalists]
        return state_at(self._store, min(full, key=lambda m: (-(m.score or 0), m.step)).step)
