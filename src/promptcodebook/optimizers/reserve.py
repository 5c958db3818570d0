"""What is kept back of a budget while training goes on: room for choosing and judging.

A run whose training eats the whole budget ends without a word on whether it was worth it. So
training stops when the rest is reached, and the rest pays for the finalists and the verdict. How
much that takes is measured: rollouts of the learned policy on validation, times how many will be.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence

from promptcodebook.calls import Usage
from promptcodebook.config import Budget
from promptcodebook.errors import BudgetReached, Stop
from promptcodebook.optimizers.base import Problem
from promptcodebook.optimizers.fixed import SHORTLIST, baselines, has_best_fixed
from promptcodebook.progress import Note
from promptcodebook.store.events import EndReason
from promptcodebook.types import Rollout

MOST = 0.2
"""Of each limit, unless `budget.reserve_for_verdict` says otherwise."""
_OUR_ROWS = 3
"""The learned policy and its two rivals (optimizers/pco.py)."""
_ROUTER_ROWS = 3
"""Where routes are learned from outcomes: no instruction, the right ones, the best single one."""
_MARGIN = 1.1
"""Rollouts on test may take a little more than those on validation took."""


def count_selection(problem: Problem) -> int:
    """Rollouts that choose among the states of our optimizer, and judge it beside its rivals."""
    config, plan = problem.assembled.config, problem.assembled.plan
    chosen = config.validation.every > 0 and config.keep == "best_val"
    # One more finalist where the end lies between two looks.
    finals = (config.validation.finalists + 1) * len(plan.dataset.val) if chosen else 0
    rows = len(baselines()) + _OUR_ROWS
    if has_best_fixed(config):
        rows += 1
        finals += (SHORTLIST + 1) * min(
            len(plan.dataset.val or plan.dataset.train), config.validation.subset
        )
    if config.router.kind == "outcomes":
        rows += _ROUTER_ROWS
        finals += SHORTLIST * min(len(plan.dataset.val), config.validation.subset)
    return finals + rows * len(plan.judged)


def count_judging(problem: Problem) -> int:
    """Rollouts that judge a single result beside what the user has today."""
    return (len(baselines()) + 1) * len(problem.assembled.plan.judged)


async def train_to_reserve(
    problem: Problem, training: Awaitable[EndReason]
) -> tuple[EndReason, Stop | None]:
    """Training, to its end or until only what is kept for the verdict is left of the budget."""
    gate = problem.assembled.models.budget
    try:
        ended = await training
    except BudgetReached as reached:
        if not gate.open_reserve():
            raise
        problem.store.forget_replayable()
        problem.tell(Note(f"{reached}: choosing and judging with the rest"))
        return "budget", reached
    gate.open_reserve()
    return ended, None


class VerdictReserve:
    """Keeps back what so many `rollouts` will take, as far as it is known by now."""

    def __init__(self, problem: Problem, rollouts: int) -> None:
        self._gate = problem.assembled.models.budget
        self._limits = problem.assembled.config.budget
        self._rollouts = rollouts
        self._keep(None, None)

    def measure(self, rollouts: Sequence[Rollout], seconds: float | None = None) -> None:
        """Takes so many rollouts, and the seconds all of them together took, as the measure."""
        if rollouts:
            times = self._rollouts * _MARGIN / len(rollouts)
            used = sum((r.usage for r in rollouts), Usage())
            self._keep((used, times), None if seconds is None else seconds * times)

    def _keep(self, measured: tuple[Usage, float] | None, seconds: float | None) -> None:
        used, times = measured or (Usage(), 0.0)
        known = measured is not None
        cost = used.cost if known else None
        limits = self._limits
        self._gate.keep_back(
            Budget(
                calls=_whole(self._share(limits.calls, used.calls * times if known else None)),
                tokens=_whole(self._share(limits.tokens, used.tokens * times if known else None)),
                usd=self._share(limits.usd, None if cost is None else cost * times),
                seconds=self._share(limits.seconds, seconds),
            )
        )

    def _share(self, limit: float | None, need: float | None) -> float | None:
        if limit is None or not self._rollouts:
            return None
        if (share := self._limits.reserve_for_verdict) is not None:
            return share * limit
        return MOST * limit if need is None else min(MOST * limit, need)


def _whole(amount: float | None) -> int | None:
    return None if amount is None else math.floor(amount)
