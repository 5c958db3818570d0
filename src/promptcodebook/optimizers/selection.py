"""Which state of a run is kept: validation, early stop, and the finalists (decision 8)."""

from __future__ import annotations

import math
import time

from promptcodebook.method.policy import Composer, Deployed
from promptcodebook.method.schedule import Schedule
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Problem, evaluate
from promptcodebook.optimizers.reserve import VerdictReserve, count_selection
from promptcodebook.policy.references import harmless_marks, state_at
from promptcodebook.progress import Note, ValidationDone
from promptcodebook.store.events import EndReason, Mark, Scope, Validated
from promptcodebook.types import Example

__all__ = ["Selection"]


class Selection:
    """Validates on a fixed subset as the run goes, and on the whole split at its end.

    The untrained policy is a candidate too: a run that made things worse keeps what it began with.
    """

    def __init__(self, problem: Problem, composer: Composer) -> None:
        config = problem.assembled.config
        self._problem = problem
        self._composer = composer
        self._settings = config.validation
        self._config = config
        self._store = problem.store
        self.reserve = VerdictReserve(problem, count_selection(problem))
        self._whole = problem.assembled.dataset.val
        self._subset = self._fixed_subset()
        outline = self._store.outline()
        self._marks: list[Mark] = list(outline.validations)
        self._extended_at = outline.extended_at
        online = config.update.mode == "online"
        # In online mode a step is one example: validate as often per example as with batches.
        self._every = self._settings.every * (config.update.batch_size if online else 1)
        schedule = Schedule(problem.assembled.dataset.train, config.update, config.randomness)
        self._steps = len(schedule.updates())
        self._recall_reserve(outline.step)

    def _recall_reserve(self, step: int) -> None:
        """What an earlier session measured last: a run that goes on keeps back as much as one that
        was never stopped."""
        last = self._store.last_validation()
        if last is not None:
            self.reserve.measure(last.evaluation.rollouts, last.seconds)
        elif step >= 0 and not self.validates:
            self.reserve.measure([t.rollout for t in self._store.traces(step)])

    def _fixed_subset(self) -> tuple[Example, ...]:
        """At most `validation.subset` examples, a seeded choice in the split's own order."""
        if len(self._whole) <= self._settings.subset:
            return self._whole
        draw = self._config.randomness.generator("validation subset")
        keys = {example.id: draw.random() for example in self._whole}
        chosen = sorted(self._whole, key=lambda e: keys[e.id])[: self._settings.subset]
        ids = {example.id for example in chosen}
        return tuple(e for e in self._whole if e.id in ids)

    @property
    def validates(self) -> bool:
        """Whether it validates on the way."""
        return self._every > 0 and bool(self._whole)

    @property
    def planned(self) -> int:
        """Validations on the way, that of the untrained policy left out."""
        return self._steps // self._every if self.validates else 0

    @property
    def patience(self) -> int:
        """`validation.patience`; unless given, three fifths of the planned, from 2 to 5."""
        given = self._settings.patience
        return given if given is not None else max(2, min(5, math.ceil(0.6 * self.planned)))

    def tell_of_idle_patience(self) -> None:
        """A Note where a patience that was asked for can never end the run."""
        given = self._settings.patience
        if given is not None and 0 < self.planned <= given:
            self._problem.tell(
                Note(
                    f"validation.patience = {given} never stops this run: {self.planned} "
                    "validations are planned; lower it, or validation.every"
                )
            )

    async def validate_if_due(self, step: int) -> None:
        """Validates after every so many steps, and before the first; once for each step."""
        if not self.validates or (step + 1) % self._every:
            return
        if any(m.step == step and m.scope == "subset" for m in self._marks):
            return
        await self._validate(step, "subset", self._subset)

    async def _validate(self, step: int, scope: Scope, examples: tuple[Example, ...]) -> None:
        state = state_at(self._store, step)
        deployed = Deployed(self._composer, state.parameters, state.statistics)
        phase = f"validating step {step + 1}"
        begun = time.monotonic()
        evaluation = await evaluate(self._problem, f"step {step + 1}", deployed, examples, phase)
        seconds = time.monotonic() - begun
        self.reserve.measure(evaluation.rollouts, seconds)
        self._store.append(Validated(step, scope, evaluation, seconds))
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
        self._problem.tell(ValidationDone(step, evaluation, best, finalist=scope == "full"))

    def enough(self, done: int) -> EndReason | None:
        """Early stop after `done` steps: the target is reached, or `patience` validations brought
        no gain and there is something left to stop."""
        marks = [m for m in self._marks if m.scope == "subset"]
        scores = [m.score or 0.0 for m in marks]
        target = self._settings.target_score
        if not scores:
            return None
        if target is not None and max(scores) >= target:
            return "target"
        best = scores.index(max(scores))
        # Who makes a run longer wants to see more of it: patience begins anew.
        since = [m for m in marks[best + 1 :] if m.step > self._extended_at]
        idle = len(since) >= self.patience
        return "early_stop" if idle and done < self._steps else None

    async def best(self) -> State:
        """The state to deploy: the best finalist on the whole validation split, or the last."""
        last = self._store.outline().step
        marks = harmless_marks(self._store, [m for m in self._marks if m.scope == "subset"])
        ranked = sorted(marks, key=lambda m: (-(m.score or 0), m.step))
        if self._config.keep == "last" or not ranked:
            return state_at(self._store, last)
        finalists = [m.step for m in ranked[: self._settings.finalists]]
        if last not in finalists and last not in [m.step for m in ranked]:
            finalists.append(last)
        for step in finalists:
            if not any(m.step == step and m.scope == "full" for m in self._chosen()):
                await self._validate(step, "full", self._whole)
        full = [m for m in self._chosen() if m.scope == "full" and m.step in finalists]
        return state_at(self._store, min(full, key=lambda m: (-(m.score or 0), m.step)).step)

    def _chosen(self) -> tuple[Mark, ...]:
        """As the store has them, which forgets at each step what was chosen among those before: a
        run that goes on after its end chooses as if it had never ended."""
        return self._store.outline().validations
