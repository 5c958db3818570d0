"""A policy over a split, outside of a run: what `pco eval` and `pco compare` use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.data import sample
from promptcodebook.errors import BudgetReached, ConfigError, DataError, Interrupted
from promptcodebook.intervals import Bounds, Interval, paired_interval
from promptcodebook.method.executor import Evaluator, average
from promptcodebook.method.failures import gather_all, too_many_failures
from promptcodebook.method.policy import Deployed, FixedPrompt, Prompter
from promptcodebook.optimizers.fixed import ORACLE, OraclePrompt
from promptcodebook.policy.file import CONCAT, MEASURED, NONE, PRESENT, PolicyFile
from promptcodebook.policy.references import stages_of
from promptcodebook.randomness import Randomness
from promptcodebook.run.verdict import Row, Terms, VerdictTable, row_of
from promptcodebook.types import Evaluation, Example, Rollout, Trace


@dataclass(frozen=True, slots=True)
class Sample:
    """Which examples: a split, or a seeded choice of `count` of it (None = all), or those of `ids`;
    and how often.

    `runs` 1 is greedy; with more, each example is sampled that often and the mean counts.
    """

    split: str = "test"
    count: int | None = None
    runs: int = 1
    ids: frozenset[str] | None = None


LEARNED = "learned"
"""Name of the row that is the policy itself."""
ROWS = (LEARNED, PRESENT, NONE, CONCAT, *MEASURED, ORACLE)
"""Rows that can be evaluated without a run."""


@dataclass(frozen=True)
class Assessment:
    """What an evaluation came to: figures, and the reward of every example by its id; `kind` is the
    row that was evaluated."""

    name: str
    evaluation: Evaluation
    row: Row
    models: dict[str, str]
    simulated: bool
    runs: int = 1
    reward_range: Bounds = (0.0, 1.0)
    kind: str = LEARNED
    scored_by: str = ""
    """The reward in words; "" = unknown."""

    @property
    def score(self) -> Interval:
        """The mean reward with its 95 % interval."""
        return self.row.score

    @property
    def cost(self) -> float | None:
        """USD for all of it; None = some price is unknown."""
        return self.evaluation.usage.cost

    @property
    def rewards(self) -> dict[str, float]:
        """Example id -> reward; a failed rollout counts as the bottom of the range."""
        ids = (r.example_id for r in self.evaluation.rollouts)
        return dict(zip(ids, self.evaluation.rewards, strict=True))

    def __repr__(self) -> str:
        score = self.score
        kind = "" if self.kind == LEARNED else f", row={self.kind!r}"
        split = self.evaluation.split
        return f"Assessment({self.name!r}, {split!r}: {score.text()}, n={score.n}{kind})"

    def _repr_html_(self) -> str:
        title = self.name + ("" if self.kind == LEARNED else f" ({self.kind})")
        table = VerdictTable((self.row,), titles={self.row.name: title}, head="policy")
        model = "simulated model, " if self.simulated else ""
        caption = f"{model}{self.evaluation.split} split, n = {self.score.n}; costs are per query"
        return table.only("reward", "failed", "calls", "cost").html(caption)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `pco compare` reads them back."""
        figures = asdict(self.row)
        for key in ("name", "title", "gain", "over", "prompt", "reference"):
            figures.pop(key)
        return {
            "ref": self.name,
            "row": self.kind,
            "split": self.evaluation.split,
            "n": len(self.evaluation.rollouts),
            "reward_range": self.reward_range,
            "simulated": self.simulated,
            "runs": self.runs,
            "scored_by": self.scored_by,
            "models": self.models,
            **figures,
            "examples": [_example(r, self.evaluation.floor) for r in self.evaluation.rollouts],
        }


def _example(rollout: Rollout, floor: float) -> dict[str, Any]:
    failure = rollout.failure
    return {
        "id": rollout.example_id,
        "reward": floor if rollout.reward is None else rollout.reward,
        "failed": None if failure is None else f"{failure.stage}: {failure.kind}",
        "truncated": rollout.truncated,
        "route": list(rollout.route.indices) if rollout.route is not None else None,
    }


class Assessor:
    """Evaluates one policy file, or another row of its verdict; `assembled` has its settings.
    `interrupt` stops it."""

    def __init__(
        self, name: str, file: PolicyFile, assembled: Assembled, row: str = LEARNED
    ) -> None:
        self._assembled = assembled
        self._file = file
        self.name = name
        self._row = row

    @property
    def scored_by(self) -> str:
        """The reward in words."""
        return self._assembled.scored_by

    @property
    def simulated(self) -> bool:
        """Whether any model that is asked is simulated."""
        return self._assembled.models.simulated

    def examples(self, sample_of: Sample) -> tuple[Example, ...]:
        """Raises DataError for an unknown or empty split, ConfigError for a count below 1, and
        MissingExtra or TaskError for what the task needs and is not there."""
        self._assembled.task.require()
        if sample_of.runs < 1:
            raise ConfigError(f"cannot sample {sample_of.runs} runs", hint="samples is 1 or more")
        if sample_of.count is not None and sample_of.count < 1:
            raise ConfigError(f"cannot evaluate {sample_of.count} examples", hint="n is 1 or more")
        dataset = self._assembled.dataset
        ids = sample_of.ids
        examples = dataset.split(sample_of.split)
        if ids is not None:
            return tuple(e for e in examples if e.id in ids)
        if not examples:
            raise DataError(
                f"the split {sample_of.split!r} of {self._assembled.task.name} is empty",
                hint="choose another split: train, val or test",
            )
        return sample(examples, sample_of.count)

    async def assess(
        self,
        examples: Sequence[Example],
        sample_of: Sample,
        done: Callable[[Rollout], None] | None = None,
    ) -> Assessment:
        """Rollouts of all examples, greedy or sampled, their failures counted.

        Raises TooManyFailures when nothing was answered at all, BudgetReached, and Interrupted
        after `interrupt`.
        """
        assembled = self._assembled
        prompter = self._prompter()
        try:
            runs = await gather_all(
                self._evaluator(sample_of.runs, run).evaluate(
                    self.name, prompter, examples, sample_of.split, done
                )
                for run in range(sample_of.runs)
            )
            evaluation = average(runs)
        except BudgetReached as error:
            error.hint = f"give it a greater budget{self._kept_replies}"
            raise
        finally:
            await assembled.models.close()
        _refuse_empty(evaluation)
        config = assembled.config
        models = {str(role): spec for role, spec in assembled.models.by_role().items()}
        return Assessment(
            name=self.name,
            evaluation=evaluation,
            row=row_of(evaluation, None, Terms(config.seed, config.reward_range)),
            models=models,
            simulated=assembled.models.simulated,
            runs=sample_of.runs,
            reward_range=config.reward_range,
            kind=self._row,
            scored_by=self.scored_by,
        )

    def _prompter(self) -> Prompter:
        """Of the row. PolicyError for one that this policy has no prompt for, ConfigError for the
        right instructions where the task does not know them."""
        assembled, file = self._assembled, self._file
        if self._row == LEARNED:
            composer = assembled.composer(stages_of(file, assembled), file.template_set)
            return Deployed(composer, file.parameters, file.statistics)
        if self._row != ORACLE:
            prompt = file.fixed_prompt(self._row)
            return FixedPrompt(prompt.text, prompt.stages)
        if assembled.task.oracle is None:
            raise ConfigError(
                f"{assembled.task.name} does not know the right instructions of its inputs",
                hint="choose another row",
            )
        return OraclePrompt(assembled.task.oracle, file.base_prompt)

    def _evaluator(self, runs: int, run: int) -> Evaluator:
        """Of one run over the examples: the only one is greedy, one of several has its own seed."""
        config = self._assembled.config
        floor, _ = config.reward_range
        if runs == 1:
            return Evaluator(self._assembled.trial(greedy=True), config.randomness, floor)
        own = Randomness(config.randomness.integer("sampled run", run))
        return Evaluator(self._assembled.trial(), own, floor)

    @property
    def _kept_replies(self) -> str:
        return "; what was paid for so far is kept" if self._assembled.models.keeps else ""

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish."""
        hint = f"begin again for a score{self._kept_replies}"
        self._assembled.models.budget.stop(Interrupted("interrupted by the user", hint=hint))


def _refuse_empty(evaluation: Evaluation) -> None:
    failures = [r.failure for r in evaluation.rollouts if r.failure is not None]
    if failures and evaluation.answered is None:
        raise too_many_failures(failures, tuple(map(Trace, evaluation.rollouts)), "")


def answering_calls(file: PolicyFile, assembled: Assembled) -> int:
    """Calls of one answer on a route that is known; re-asks and judges are not counted."""
    stages = max(1, len(stages_of(file, assembled)))
    composing = stages if file.compose == "generator" else 0
    return composing + max(1, len(assembled.task.program.stages))


def paired_difference(
    a: dict[str, float], b: dict[str, float], bounds: Bounds = (0.0, 1.0)
) -> Interval:
    """The mean of a - b over the examples of both, rewards within `bounds`. Raises DataError where
    there is none; both have the same."""
    if not a:
        raise DataError("there is no example to compare on", hint="pco eval REF --json")
    return paired_interval(list(a.values()), [b[i] for i in a], 0, bounds)
