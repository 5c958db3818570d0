"""What every optimizer is: one method, from a problem to a way of prompting. All calls go through
the problem's models, so that a resumed optimizer meets its paid replies again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from promptcodebook.assemble import Assembled
from promptcodebook.base.incidents import Counts
from promptcodebook.calls import Usage
from promptcodebook.data import Split
from promptcodebook.errors import Stop, plug_in
from promptcodebook.lm.stack import Models
from promptcodebook.method.failures import require_answers
from promptcodebook.method.policy import Prompter
from promptcodebook.policy.file import PolicyFile
from promptcodebook.progress import Listener, Spent, counter
from promptcodebook.store.events import EndReason, PromptCandidate
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Example

GROUP = "promptcodebook.optimizers"


@dataclass(frozen=True)
class Problem:
    """Data, task, models and settings; the store; who hears of progress."""

    assembled: Assembled
    store: RunStore
    tell: Listener


@dataclass(frozen=True)
class Result:
    """A way of prompting, as an optimizer leaves it: `name` is its row in the verdict. `rivals`
    could be deployed instead; `references` are only shown. `settings` and `candidates` (the prompts
    that it tried) are of an optimizer of others."""

    name: str
    title: str
    prompter: Prompter
    ended: EndReason = "finished"
    policy: PolicyFile | None = None
    rivals: Sequence[Result] = ()
    references: Sequence[Result] = ()
    remark: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: dict[str, Any]())
    candidates: Sequence[PromptCandidate] = ()
    spent: Usage = Usage()
    stop: Stop | None = None


class Optimizer(Protocol):
    """From a problem to a result; raises Stop when the run ends early, and can be called again."""

    async def optimize(self, problem: Problem) -> Result: ...


async def optimize_metered(optimizer: Optimizer, problem: Problem) -> Result:
    """The result with what it took, by the one meter that all calls pass."""
    ledger = problem.assembled.models.ledger
    before = ledger.total
    result = await optimizer.optimize(problem)
    return replace(result, spent=ledger.total - before)


async def evaluate(
    problem: Problem,
    row: str,
    prompter: Prompter,
    examples: Sequence[Example],
    phase: str,
    split: Split = "val",
) -> Evaluation:
    """Evaluate a prompter on one split, by `samples`. Raises TooManyFailures when more than half of
    the rollouts failed."""
    assembled, samples = problem.assembled, problem.assembled.config.samples
    count = counter(problem.tell, phase, len(examples) * samples)
    evaluator = assembled.evaluator(samples)
    evaluation = await evaluator.evaluate(row, prompter, examples, split, count)
    require_answers(evaluation.rollouts, len(evaluation.rollouts) // 2, f"{phase}: ")
    return evaluation


def validation_subset(problem: Problem) -> tuple[Example, ...]:
    """The examples that every optimizer validates on: a seeded choice in the split's own order."""
    config, whole = problem.assembled.config, problem.assembled.plan.validated
    if len(whole) <= config.validation.subset:
        return whole
    draw = config.randomness.generator("validation subset")
    drawn = sorted(whole, key=lambda _: draw.random())[: config.validation.subset]
    chosen = {example.id for example in drawn}
    return tuple(e for e in whole if e.id in chosen)


def spending(models: Models) -> Spent:
    """Usage by role, what was lost and incidents so far."""
    counted = dict(models.tally.values) if isinstance(models.tally, Counts) else {}
    ledger, gate = models.ledger, models.budget
    return Spent(dict(ledger.usage), counted, ledger.lost_total, gate.limits)


def make_optimizer(name: str) -> Optimizer:
    """The optimizer behind an entry point, which is a class without arguments. Raises ConfigError
    when the name is unknown."""
    return plug_in(GROUP, name, "optimizer")()
