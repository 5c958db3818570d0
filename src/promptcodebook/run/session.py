"""One run from its first call to its verdict.

It can be stopped anywhere and resumed: what was done is read back from the store, what was paid
for from the journal, and the rest is a function of the two.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.assemble import try_reward
from promptcodebook.errors import BudgetReached, Interrupted, PcoError, Stop, TooManyFailures
from promptcodebook.optimizers.base import Optimizer, Problem, optimize_metered, spending
from promptcodebook.paths import run_reference
from promptcodebook.policy.references import POLICY, kept_state, policy_file
from promptcodebook.progress import Note
from promptcodebook.run.verdict import Conclusion, judge
from promptcodebook.store.events import Broke, Concluded, Ended, EndReason
from promptcodebook.units import plural

IN_PYTHON = "optimize()"
"""Stands for what was typed when a run is begun from Python."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended. `stop` is set when the run can be resumed."""

    ended: EndReason
    conclusion: Conclusion | None = None
    stop: Stop | None = None


class Session:
    """Runs an optimizer on a problem, then judges what it found."""

    def __init__(self, problem: Problem, optimizer: Optimizer) -> None:
        self._problem = problem
        self._optimizer = optimizer
        self._store = problem.store
        self.failed: Outcome | None = None
        """The outcome of a session that ended with an error, which `run` raises."""

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish and are kept (Ctrl-C)."""
        self._problem.assembled.models.budget.stop(Interrupted("interrupted by the user"))
        self._problem.tell(
            Note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        )

    async def run(self) -> Outcome:
        """Optimizes and judges. A Stop is an outcome; any other error is stored and raised."""
        try:
            return await self._run()
        except Stop as stop:
            self._keep_policy()
            return self._stopped(stop, self._unjudged(str(stop)))
        except PcoError as error:
            missing = ""
            with suppress(PcoError):  # what went wrong may be the disk
                self._keep_policy()
                done = plural(self._store.outline().step + 1, "update")
                why = f"the run failed after {done} ({type(error).__name__})"
                unjudged = self._unjudged(why)
                self.failed, missing = Outcome("failed", unjudged), unjudged.sentence
            if isinstance(error, TooManyFailures):
                self._store.append(Broke(self._store.outline().step + 1, error.traces))
                resume = self._resume_hint(False)
                error.hint = (
                    f"{error.hint}; then continue with: {resume} "
                    "(or start a new run, if a setting had to change)"
                )
            detail = f"{type(error).__name__}: {error}"
            self._store.append(Ended("failed", detail, missing, error.hint or ""))
            raise
        finally:
            self._problem.tell(spending(self._problem.assembled.models))

    async def _run(self) -> Outcome:
        plan, begun = self._problem.assembled.plan, self._store.outline().parameters is not None
        if not begun and not plan.config.task and plan.config.user_code.trial:
            # The user's own reward, before its first call; ConfigError: it cannot be used.
            for warning in (await try_reward(plan)).warnings:
                self._problem.tell(Note(warning))
        result = await optimize_metered(self._optimizer, self._problem)
        if result.policy is not None:
            result.policy.save(Path(self._store.path) / POLICY)
        made = await judge(self._problem, result)
        of_others = result.off_policy, result.settings, tuple(result.candidates)
        rows = made.table.as_json()
        self._store.append(Concluded(made.sentence, made.worth, rows, made.deploy, *of_others))
        if result.stop is not None:
            return self._stopped(result.stop, made)
        self._store.append(Ended(result.ended))
        return Outcome(result.ended, made)

    def _stopped(self, stop: Stop, conclusion: Conclusion) -> Outcome:
        """The end of a session that can be taken up again."""
        stop.hint = self._resume_hint(isinstance(stop, BudgetReached))
        reason: EndReason = "budget" if isinstance(stop, BudgetReached) else "interrupted"
        missing = "" if self._store.outline().conclusion is not None else conclusion.sentence
        self._store.append(Ended(reason, str(stop), missing, stop.hint))
        return Outcome(reason, conclusion, stop)

    def _keep_policy(self) -> None:
        """Writes the policy file of the best state so far: one exists however the run ends."""
        if self._store.outline().parameters is not None:
            state, _ = kept_state(self._store)
            policy_file(self._problem.assembled, state).save(Path(self._store.path) / POLICY)

    def _unjudged(self, why: str) -> Conclusion:
        """What replaces the verdict where the run stopped before it."""
        done = [mark.name for mark in self._store.outline().tests]
        rows = f" (judged so far: {', '.join(done)})" if done else ""
        return Conclusion((), f"No verdict: {why}{rows}.", None)

    def _resume_hint(self, more: bool) -> str:
        """What to type to resume this run, where it was begun."""
        header = self._store.header
        if header.command == IN_PYTHON:
            return f"optimize(..., resume={header.id!r}{', budget=MORE' if more else ''})"
        typed = f"pco train --resume {run_reference(self._store.path)}"
        return f"{typed} --budget MORE" if more else typed
