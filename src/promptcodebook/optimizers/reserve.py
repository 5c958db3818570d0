"""What a run keeps back of its budget for its end (decision 8). First comes a verdict: the present
prompt and what was learned, on as many test inputs as a verdict takes. Then come the rivals that
the learned policy must beat, then the choice among its states, and training has the rest.

Calls are known by the plan. Tokens, money and time are known once rollouts were measured; until
then a fifth of their limit is kept. `budget.reserve_for_verdict` replaces all this by a share."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from promptcodebook.assemble import Plan
from promptcodebook.base.intervals import ENOUGH
from promptcodebook.base.units import plural
from promptcodebook.calls import Usage
from promptcodebook.config import Budget
from promptcodebook.data import independent, sample
from promptcodebook.errors import BudgetReached, ConfigError, Stop
from promptcodebook.method.policy import FixedPrompt, PresentPrompt
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.progress import Note
from promptcodebook.store.events import EndReason, Trained
from promptcodebook.tasks.rewards import asks_judge
from promptcodebook.types import Example, Rollout

MOST = 0.2  # of each limit, for what comes after a verdict's least
_MARGIN = 1.1  # rollouts on test may take a little more than those before took
_KINDS = ("calls", "tokens", "usd")
_T = TypeVar("_T")


def calls_of_answers(plan: Plan) -> tuple[int, int]:
    """Calls of an answer under a fixed prompt, and of one whose prompt is composed for it; a judge
    that gives the reward is asked as well."""
    config = plan.config
    try:
        judged = asks_judge(plan.task.reward(None))
    except ConfigError:  # it cannot do without a model
        judged = True
    fixed = max(1, len(plan.task.program.stages)) + judged
    writes = config.compose == "generator"
    composing = max(1, len(plan.prompt_stages)) if writes else 0
    return fixed, fixed + config.has_encoder + composing


def fewest_rows(examples: Sequence[Example]) -> int:
    """How many of the test inputs hold as many independent ones as a verdict takes; 0 = none do."""
    for count in range(ENOUGH, len(examples) + 1):
        if independent(sample(examples, count)) >= ENOUGH:
            return count
    return 0


def budget_remark(plan: Plan) -> str:
    """What to say before a run whose budget of calls buys no verdict, or no training; '' = both."""
    limit, config = plan.config.budget.calls, plan.config
    rows = fewest_rows(plan.judged)
    if limit is None or not rows or config.budget.reserve_for_verdict is not None:
        return ""
    fixed, composed = calls_of_answers(plan)
    verdict = math.ceil(rows * config.samples * (fixed + composed) * _MARGIN)
    training = _calls_of_batch(plan)
    if limit >= verdict + training:
        return ""
    short = f"a verdict takes about {plural(verdict, 'call')} on {plural(rows, 'test input')}"
    what = f"{short}, and a training batch {plural(training, 'call')}"
    both = f"--budget {verdict + training}calls covers both"
    return f"{plural(limit, 'call')} are too few for training and a verdict: {what}; {both}"


def _calls_of_batch(plan: Plan) -> int:
    """Calls of a batch of training in which every answer is criticised and no text rewritten."""
    each = calls_of_answers(plan)[1] + plan.config.critic.stages
    return each * min(plan.config.update.batch_size, len(plan.dataset.train))


class VerdictReserve:
    """Keeps back what the `rollouts` to come will take, as far as it is known by now. `first` are
    the verdict's first rows and `rivals` those that may decide it too: how many have a fixed
    prompt, and how many a composed one."""

    def __init__(
        self,
        problem: Problem,
        rollouts: int,
        first: tuple[int, int] = (2, 0),
        rivals: tuple[int, int] = (0, 0),
    ) -> None:
        assembled = problem.assembled
        self._problem, self._gate = problem, assembled.models.budget
        self._limits, self._samples = assembled.config.budget, assembled.config.samples
        self._rollouts, self._first, self._rivals = rollouts, first, rivals
        self._calls = calls_of_answers(assembled.plan)
        self._told = set[str]()
        self._batch = _calls_of_batch(assembled.plan)
        self._each: Mapping[str, float] = {}
        self.rows = fewest_rows(assembled.plan.judged)
        self.given = self._limits.reserve_for_verdict
        self.limited = self.given is None and self._limits.limited
        # What is kept while states are chosen, and what choosing takes by our own count: a resumed
        # run decides as one that was never stopped.
        self._kept, self._chosen = dict[str, float](), dict[str, float]()
        self._keep()

    def measure(self, rollouts: Sequence[Rollout], seconds: float | None = None) -> None:
        """Takes these rollouts as the measure; a validation's (`seconds` in all) have samples."""
        if rollouts:
            used = sum((r.usage for r in rollouts), Usage())
            found = {"calls": used.calls, "tokens": used.tokens, "usd": used.cost}
            made = len(rollouts) * (1 if seconds is None else self._samples)
            known = {**found, "seconds": seconds}.items()
            self._each = {name: value / made for name, value in known if value is not None}
            self._keep()

    def measure_stored(self) -> None:
        """Takes the last validation as the measure, or else the last step's rollouts: a resumed run
        keeps back as much as one that was never stopped."""
        store = self._problem.store
        if (last := store.last_validation()) is not None:
            self.measure(last.evaluation.rollouts, last.seconds)
        elif (step := store.outline().step) >= 0:
            self.measure([t.rollout for t in store.traces(step)])

    def cost(self, name: str, fixed: int, composed: int) -> float | None:
        """What answers take of a limit: `fixed` ones with a fixed prompt, and `composed` ones.
        None = not measured yet. Of all but calls, a fixed prompt is taken to need as much."""
        each = self._each.get(name)
        if name == "calls":
            routing = self._calls[1] - self._calls[0]
            most = max(self._calls[1], each or 0.0)
            total = fixed * (most - routing) + composed * most
        elif each is None:
            return None
        else:
            total = (fixed + composed) * each
        return total * self._samples * _MARGIN

    def share(self, composed: int) -> float:
        """The greatest share of a limit that that number of answers take; inf = not known yet."""
        shares = [0.0]
        for name in _KINDS if self.limited else ():
            if limit := getattr(self._limits, name):
                cost = self.cost(name, 0, composed)
                shares.append(math.inf if cost is None else cost / limit)
        return max(shares)

    def _keep(self) -> None:
        """Of each limit what a verdict takes at least, then a batch of training left out at most
        `MOST` of the limit; or the share that the user gave."""
        kept: dict[str, float] = {}
        for name in (*_KINDS, "seconds"):
            limit = getattr(self._limits, name)
            if limit is not None and self._rollouts:
                most, need = MOST * limit, self.cost(name, 0, self._rollouts)
                least = self._rows_cost(name, self._first) or 0.0
                self._tell_of(name, limit, least)
                least = least if least <= limit else 0.0  # none can be had
                if name == "calls":
                    most = min(most, max(0.0, limit - least - self._batch))
                rest = most if need is None else min(most, max(0.0, need - least))
                amount = min(limit, least + rest) if self.given is None else self.given * limit
                kept[name] = math.floor(amount) if isinstance(limit, int) else amount
        self._gate.keep_back(Budget.model_validate(kept))

    def _tell_of(self, name: str, limit: float, least: float) -> None:
        """Says once, when rollouts were measured, that what is left buys no verdict;
        `budget_remark` has calls."""
        if not self._each.get(name) or name in ("calls", *self._told) or self.given is not None:
            return
        self._told.add(name)
        if least > limit - _amounts(self._gate.ledger.total).get(name, 0.0):
            unit = {"tokens": "tokens", "usd": "US$", "seconds": "seconds"}[name]
            what = f"{limit:,g} {unit} are too few for a verdict: about {float(f'{least:.2g}'):,g}"
            self._problem.tell(Note(f"{what} are needed besides training"))

    def _rows_cost(self, name: str, rows: tuple[int, int]) -> float | None:
        """What these rows take of a limit, on as many inputs as a verdict needs."""
        return self.cost(name, self.rows * rows[0], self.rows * rows[1])

    def open_for_choosing(self) -> bool:
        """Opens all but what the verdict's rows take at least. Whether anything was kept."""
        store = self._problem.store
        if store.trained(chosen=False) is None:
            # As in a run that was never killed: lost attempts are left out.
            paid = sum(self._gate.ledger.usage.values(), Usage())
            store.append(Trained(replace(paid, latency_s=0.0), chosen=False))
        decisive = self._first[0] + self._rivals[0], self._first[1] + self._rivals[1]
        for name in _KINDS if self.limited else ():
            limit, cost = getattr(self._limits, name), self._rows_cost(name, decisive)
            if limit is not None and cost is not None:
                amount = max(0.0, min(cost, limit - self.spent(name)))
                self._kept[name] = math.floor(amount) if isinstance(limit, int) else amount
        return self._gate.open_reserve(Budget.model_validate(self._kept))

    def spent(self, name: str, *, chosen: bool = False) -> float:
        """What training took, or also what choosing did, by the run's own record."""
        return _amounts(self._problem.store.trained(chosen=chosen) or Usage())[name]

    def affords(self, fixed: int, composed: int) -> bool:
        """Whether choosing may take that number of answers more; if so they are counted."""
        costs = dict[str, float]()
        for name in _KINDS if self.limited else ():
            limit, cost = getattr(self._limits, name), self.cost(name, fixed, composed)
            if limit is not None and cost is not None:
                costs[name] = self._chosen.get(name, 0.0) + cost
                if costs[name] > limit - self.spent(name) - self._kept.get(name, 0.0):
                    return False
        self._chosen = costs
        return True

    async def within(self, work: Awaitable[_T], otherwise: _T) -> _T:
        """The work's result; where the budget ends first, the other, and the rest is opened."""
        try:
            return await work
        except BudgetReached:
            if not self._gate.open_reserve():
                raise
            return otherwise


def _amounts(spent: Usage) -> dict[str, float]:
    return {"calls": spent.calls, "tokens": spent.tokens, "usd": spent.cost or 0.0}


def test_rows(problem: Problem, results: Sequence[Result]) -> tuple[Example, ...]:
    """The test examples that all these rows can be judged on, by what is left; no fewer than a
    verdict takes, so that the first rows are judged where not all can be."""
    reserve, judged = VerdictReserve(problem, 0), problem.assembled.plan.judged
    reserve.measure_stored()
    fixed = sum(isinstance(each.prompter, FixedPrompt | PresentPrompt) for each in results)
    most = len(judged)
    for name in _KINDS if reserve.limited and reserve.rows else ():
        limit = getattr(problem.assembled.config.budget, name)
        cost = reserve.cost(name, fixed, len(results) - fixed)
        if limit is not None and cost:
            most = min(most, math.floor((limit - reserve.spent(name, chosen=True)) / cost))
    return judged if most >= len(judged) else sample(judged, max(reserve.rows, most))


async def train_to_reserve(
    problem: Problem, training: Awaitable[EndReason], reserve: VerdictReserve
) -> tuple[EndReason, Stop | None]:
    """Training, to its end or until only what is kept for the verdict is left of the budget."""
    try:
        ended = await training
    except BudgetReached as reached:
        if not reserve.open_for_choosing():
            raise
        problem.store.forget_replayable()
        problem.tell(Note(f"{reached}; the rest is for choosing and judging"))
        return "budget", reached
    reserve.open_for_choosing()
    return ended, None
