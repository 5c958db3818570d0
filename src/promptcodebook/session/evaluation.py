"""A policy over a split, outside of a run: what `pco eval` and `pco compare` stand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcodebook.config import Config
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, DataError, Interrupted
from promptcodebook.intervals import Interval, paired_interval
from promptcodebook.keyed import keyed_int, keyed_random
from promptcodebook.method.broken import too_many
from promptcodebook.method.chains import all_of
from promptcodebook.method.evaluate import Evaluator, averaged
from promptcodebook.method.policy import Deployed, Trial
from promptcodebook.method.train import Learner
from promptcodebook.session.models import Models, Supplies, any_simulated, simulated_in, specs_of
from promptcodebook.session.parts import build_learner
from promptcodebook.session.policy import Policy
from promptcodebook.session.policy_file import PolicyFile
from promptcodebook.session.selection import greedy
from promptcodebook.session.simulation import simulated_factory
from promptcodebook.session.sources import Sources, data_of, judged, ready_made, settled, task_of
from promptcodebook.session.verdict import Row, row_of
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.user import make_executor
from promptcodebook.types import Evaluation, Example, Rollout, Trace

__all__ = ["Assessment", "Assessor", "Sample", "paired", "policy_of", "sampled"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Which examples: a split, or a seeded choice of `count` of it (None = all); and how often.

    `runs` 1 is greedy; more are so many sampled runs an example, of which the mean counts.
    """

    split: str = "test"
    count: int | None = None
    runs: int = 1


@dataclass(frozen=True)
class Assessment:
    """What an evaluation came to: figures, and the reward of every example by its id."""

    name: str
    evaluation: Evaluation
    row: Row
    models: dict[str, str]
    simulated: bool
    runs: int = 1

    @property
    def rewards(self) -> dict[str, float]:
        """Example id -> reward; a failed rollout counts as the bottom of the range."""
        ids = (r.example_id for r in self.evaluation.rollouts)
        return dict(zip(ids, self.evaluation.rewards, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Plain values; `pco compare` reads them back."""
        figures = asdict(self.row)
        figures.pop("name")
        figures.pop("gain")
        return {
            "ref": self.name,
            "split": self.evaluation.split,
            "n": len(self.evaluation.rollouts),
            "simulated": self.simulated,
            "runs": self.runs,
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


def sampled(examples: Sequence[Example], count: int | None) -> tuple[Example, ...]:
    """At most `count` examples, in their order. Which ones follows from their ids alone, so that
    two policies meet the same ones."""
    if count is None or count >= len(examples):
        return tuple(examples)
    keys = {e.id: keyed_random("evaluation sample", e.id).random() for e in examples}
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return tuple(e for e in examples if e.id in chosen)


class Assessor:
    """Evaluates one policy file under a configuration; `interrupt` stops it in order."""

    def __init__(self, name: str, file: PolicyFile, config: Config, base: Path) -> None:
        made = ready_made(config, base)
        sources = Sources(base)
        dataset = made.dataset if made is not None else data_of(config, sources)
        config = settled(config, made, dataset)
        self._models = Models.build(
            config, Supplies(simulated=simulated_factory(config.task, dataset))
        )
        self.fingerprint = dataset.fingerprint()
        """Of the data as it is now, by split."""
        self._task = (
            judged(made, config, self._models.ask)
            if made is not None
            else task_of(config, sources, dataset, self._models.ask)
        )
        self._config = config
        self._file = file
        self._name = name

    def examples(self, sample: Sample) -> tuple[Example, ...]:
        """Raises DataError for an unknown or empty split, ConfigError for a count below 1."""
        if sample.runs < 1:
            raise ConfigError(f"cannot sample {sample.runs} runs", hint="--samples 1 or more")
        if sample.count is not None and sample.count < 1:
            raise ConfigError(f"cannot evaluate {sample.count} examples", hint="--n 1 or more")
        found = self._task.dataset.split(sample.split)
        if not found:
            raise DataError(
                f"the split {sample.split!r} of {self._task.name} is empty",
                hint="choose another: --split train, val or test",
            )
        return sampled(found, sample.count)

    async def assess(
        self,
        examples: Sequence[Example],
        sample: Sample,
        done: Callable[[Rollout], None] | None = None,
    ) -> Assessment:
        """Rollouts of all examples, greedy or sampled, their failures counted.

        Raises TooManyFailures when nothing was answered at all, and what `interrupt` says.
        """
        learner = build_learner(self._config, self._task, self._models)
        prompter = Deployed(learner.policy, self._file.parameters, self._file.standing)
        try:
            runs = await all_of(
                self._evaluator(learner, sample.runs, run).evaluate(
                    self._name, prompter, examples, sample.split, done
                )
                for run in range(sample.runs)
            )
            evaluation = averaged(runs)
        finally:
            await self._models.close()
        self._refuse_empty(evaluation)
        models = {str(role): spec for role, spec in self._models.by_role().items()}
        row = row_of(evaluation, None, self._config.seed)
        simulated = any_simulated(set(models.values()))
        return Assessment(self._name, evaluation, row, models, simulated, sample.runs)

    def _evaluator(self, learner: Learner, runs: int, run: int) -> Evaluator:
        """Of one run over the examples: the only one is greedy, one of several has its own seed."""
        seed, floor = self._config.seed, self._config.reward_range[0]
        if runs == 1:
            return Evaluator(greedy(learner), seed, floor)
        return Evaluator(learner.trial, keyed_int(seed, "sampled run", run), floor)

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish."""
        self._models.budget.close(
            Interrupted(
                "interrupted by the user", hint="replies so far are in the cache: type it again"
            )
        )

    def _refuse_empty(self, evaluation: Evaluation) -> None:
        failures = [r.failure for r in evaluation.rollouts if r.failure is not None]
        if failures and evaluation.answered is None:
            raise too_many(failures, tuple(map(Trace, evaluation.rollouts)), "")


def paired(a: dict[str, float], b: dict[str, float], seed: int = 0) -> Interval:
    """The mean of a - b over the examples of both. Raises DataError when they are not the same."""
    missing = sorted(a.keys() ^ b.keys())
    if missing:
        raise DataError(
            f"the two were not evaluated on the same examples: {len(missing)} stand in one alone, "
            f"the first is {missing[0]}",
            hint="evaluate both with the same --split, --n and data",
        )
    if not a:
        raise DataError("there is no example to compare on", hint="pco eval REF --json")
    return paired_interval(list(a.values()), [b[i] for i in a], seed)


def _known_data(made: Task | None, config: Config, base: Path) -> Dataset:
    """What a simulated model is made of; of nothing in particular where no data is named."""
    if made is not None:
        return made.dataset
    if config.data.path or config.data.train:
        return data_of(config, Sources(base))
    return Dataset((), (), ())


def policy_of(file: PolicyFile, config: Config, base: Path) -> Policy:
    """The policy ready to answer, under a configuration of its own."""
    made = ready_made(config, base)
    simulated = None
    if simulated_in(specs_of(config)):
        simulated = simulated_factory(config.task, _known_data(made, config, base))
    models = Models.build(config, Supplies(simulated=simulated))
    executor = made.executor if made is not None else make_executor(config.executor, base)
    return Policy(file, models, config, Trial(executor, None, models.lm, greedy=True))
