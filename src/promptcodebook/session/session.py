"""One run from its first call to its verdict; every step is stored before the next begins.

It can be stopped anywhere and resumed: what was done is read back from the store, what was paid
for from the journal, and the rest is a function of the two.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from promptcodebook.errors import BudgetReached, Interrupted, PcoError, Stop, TooManyFailures
from promptcodebook.method.init import Initialiser
from promptcodebook.method.policy import Trial
from promptcodebook.method.schedule import Schedule
from promptcodebook.method.state import State
from promptcodebook.method.templates import load_templates
from promptcodebook.method.train import Learner, train
from promptcodebook.session.events import Listener, Note, Phase, Spent, Stepped, silent
from promptcodebook.session.judge import Judge
from promptcodebook.session.models import Counts, Models
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.selection import Selection, greedy
from promptcodebook.session.verdict import Conclusion
from promptcodebook.store.events import Broke, Concluded, Ended, EndReason, Resumed, Started
from promptcodebook.store.events import Stepped as StepStored
from promptcodebook.store.run import RunStore
from promptcodebook.types import Parameters

__all__ = ["IN_PYTHON", "Outcome", "Session"]

IN_PYTHON = "optimize()"
"""Stands for what was typed when a run is begun from Python."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended. `stop` is set when the run can go on from here."""

    ended: EndReason
    conclusion: Conclusion | None = None
    stop: Stop | None = None


class Session:
    """Runs a plan over a store with a stack of models, telling a listener."""

    def __init__(
        self,
        plan: RunPlan,
        store: RunStore,
        models: Models,
        learner: Learner,
        listener: Listener = silent,
    ) -> None:
        self._plan = plan
        self._store = store
        self._models = models
        self._learner = learner
        self._tell = listener
        self._selection = Selection(plan, store, learner, listener)
        self._judge = Judge(plan, store, learner, models, listener)

    @property
    def greedy(self) -> Trial:
        """The executor as it is evaluated."""
        return greedy(self._learner)

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish and are kept (Ctrl-C)."""
        self._tell(Note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)"))
        self._models.budget.close(Interrupted("interrupted by the user"))

    async def run(self) -> Outcome:
        """Trains, selects, judges. A Stop is an outcome; any other error is stored and raised."""
        try:
            return await self._run()
        except Stop as stop:
            stop.hint = self._go_on(isinstance(stop, BudgetReached))
            reason: EndReason = "budget" if isinstance(stop, BudgetReached) else "interrupted"
            self._store.append(Ended(reason, str(stop)))
            return Outcome(reason, stop=stop)
        except PcoError as error:
            if isinstance(error, TooManyFailures):
                self._store.append(Broke(self._store.outline().step + 1, error.traces))
                on = f"then go on: {self._go_on(False)} (or start anew, if a setting had to change)"
                error.hint = f"{error.hint}; {on}"
            self._store.append(Ended("failed", f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._spent()

    def _go_on(self, more: bool) -> str:
        """What to type to resume this run, where it was begun."""
        header = self._store.header
        if header.command == IN_PYTHON:
            return f"optimize(..., resume={header.id!r}{', budget=MORE' if more else ''})"
        return f"pco train --resume {header.id}{' --budget MORE' if more else ''}"

    async def _run(self) -> Outcome:
        state = await self._state()
        reason = await self._train(state)
        best = await self._selection.best()
        conclusion = await self._judge.conclude(best)
        self._store.append(
            Concluded(conclusion.sentence, conclusion.worth, conclusion.rows_as_json())
        )
        self._store.append(Ended(reason))
        return Outcome(reason, conclusion)

    async def _state(self) -> State:
        """Where training stands: initialised now, or read back."""
        found = self._store.outline()
        if found.parameters is None:
            parameters = await self._initialise()
            self._store.append(Started(parameters, self._plan.config.init.kind))
            return State.first(parameters)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.append(Resumed(found.step, now))
        if found.step < 0:
            return State.first(found.parameters)
        return State.after(self._store.step_at(found.step))

    async def _initialise(self) -> Parameters:
        config = self._plan.config
        if config.init.kind in ("random", "from_prompt"):
            self._tell(Phase("writing the first codebook", 0, 1))
        templates = load_templates(config.templates)
        initialiser = Initialiser(self._models.ask, templates, config)
        return await initialiser.parameters(self._plan.task.seeds, self._plan.given)

    async def _train(self, state: State) -> EndReason:
        await self._selection.validate_if_due(state.step - 1)
        reason = self._selection.enough()
        if reason is not None:
            return reason
        schedule = Schedule(
            self._plan.task.dataset.train, self._plan.config.update, self._plan.config.seed
        )
        # Closed here: an abandoned generator would be left for the loop to clean up.
        async with aclosing(train(self._learner, schedule, state)) as steps:
            began = time.monotonic()
            async for step in steps:
                self._store.append(StepStored(step))
                self._tell(Stepped(step, time.monotonic() - began))
                self._spent()
                await self._selection.validate_if_due(step.index)
                reason = self._selection.enough()
                if reason is not None:
                    return reason
                began = time.monotonic()
        return "finished"

    def _spent(self) -> None:
        tally = self._models.tally
        counted = dict(tally.values) if isinstance(tally, Counts) else {}
        self._tell(Spent(dict(self._models.ledger.usage), counted))
