"""`pco.evaluate` and `pco.compare`: how good a policy is on a split, alone or beside another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.calls import LM
from promptcodebook.config import Config
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.policy.policy import Policy
from promptcodebook.progress import Phase, ProgressLine
from promptcodebook.protocols import Executor, Reward
from promptcodebook.run.comparison import Comparison, Side, require_comparable
from promptcodebook.run.evaluation import LEARNED, ROWS, Assessment, Assessor, Sample
from promptcodebook.run.handed import Handed
from promptcodebook.run.optimize import Run, require_type
from promptcodebook.sync import run_sync
from promptcodebook.tasks.user_calls import UserCalls
from promptcodebook.types import Example, Rollout

AnyPolicy = str | Path | Run | Policy


@dataclass(frozen=True)
class _Asked:
    """An evaluation that is ready to begin."""

    assessor: Assessor
    examples: tuple[Example, ...]
    sample: Sample
    line: ProgressLine | None
    calls: UserCalls

    @classmethod
    def of(
        cls, policy: AnyPolicy, handed: Handed, sample: Sample, row: str, progress: bool
    ) -> _Asked:
        verb = handed.verb
        require_type(verb, "n", sample.count, (int,), "a whole number, or None for all")
        require_type(verb, "samples", sample.runs, (int,), "a whole number", optional=False)
        require_type(verb, "row", row, (str,), "the name of a row", optional=False)
        require_type(verb, "split", sample.split, (str,), "train, val or test", optional=False)
        if row not in ROWS:
            raise ConfigError(
                f"{handed.verb}: unknown row {row!r}{did_you_mean(row, ROWS)}",
                hint=f"row = {', '.join(map(repr, ROWS))}",
            )
        used = handed.use(policy)
        assessor = Assessor(used.reference.title, used.reference.file, used.assembled, row)
        line = ProgressLine(sys.stderr, simulated=assessor.simulated) if progress else None
        calls = used.assembled.plan.calls
        return cls(assessor, assessor.examples(sample), sample, line, calls)

    @property
    def ids(self) -> Set[str]:
        return frozenset(example.id for example in self.examples)

    @property
    def scored_by(self) -> str:
        return self.assessor.scored_by

    async def answer(self) -> Assessment:
        with self._counting() as done:
            return await self.assessor.assess(self.examples, self.sample, done)

    @contextmanager
    def _counting(self) -> Generator[Callable[[Rollout], None]]:
        line, total, count = self.line, len(self.examples) * self.sample.runs, -1

        def tell() -> None:
            nonlocal count
            count += 1
            if line is not None:
                line(Phase(f"evaluating {self.assessor.name}", count, total))

        try:
            tell()
            yield lambda rollout: tell()
        finally:
            self.calls.close()
            if line is not None:
                line.close()


async def aevaluate(  # noqa: PLR0913 - the command's options
    policy: AnyPolicy,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    split: str = "test",
    n: int | None = None,
    samples: int = 1,
    row: str = LEARNED,
    budget: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
    progress: bool = True,
) -> Assessment:
    """`evaluate` for code that already runs in an event loop."""
    handed = Handed(
        "evaluate()", data, reward, lm, roles, executor, config, budget, runs_dir, trust
    )
    sample = Sample(split, n, samples)
    with handed.until_done(policy, sample, row) as kept:
        return await _Asked.of(policy, kept, sample, row, progress).answer()


def evaluate(  # noqa: PLR0913 - the command's options
    policy: AnyPolicy,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    split: str = "test",
    n: int | None = None,
    samples: int = 1,
    row: str = LEARNED,
    budget: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
    progress: bool = True,
) -> Assessment:
    """How good a policy is on a split: `pco eval` from Python.

    `policy` is a Run, a Policy, or what names one: a run's id, name or folder below `runs_dir`,
    'last', a policy file, NAME@REF in the registry. A run and a policy of this process have their
    data, reward and models; a run that is named brings its settings, and what it took as objects is
    handed over again; a file brings neither. `split` is train, val or test, `n` so many examples of
    it (None = all); `samples` 1 is greedy, more are the mean of so many sampled runs. `row` is
    another row of the verdict: 'present', 'concat', 'best_fixed' and so on. `budget` limits what it
    may spend, e.g. '200calls'. After two seconds a line on stderr says how far it is, unless
    `progress` is False. Ctrl-C ends it in order.

    The result has `.score` (mean, 95 % interval, n), `.rewards` by example, `.row` (failures, cost
    per query) and `.evaluation.rollouts`. Raises ConfigError, DataError, LMError, PolicyError,
    RunNotFound, TooManyFailures where nothing was answered, and BudgetReached.
    """
    handed = Handed(
        "evaluate()", data, reward, lm, roles, executor, config, budget, runs_dir, trust
    )
    sample = Sample(split, n, samples)
    with handed.until_done(policy, sample, row) as kept:
        asked = _Asked.of(policy, kept, sample, row, progress)
        return run_sync(asked.answer(), asked.assessor.interrupt)


async def acompare(  # noqa: PLR0913 - the command's options
    a: AnyPolicy | Assessment,
    b: AnyPolicy | Assessment,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    split: str = "test",
    n: int | None = None,
    samples: int = 1,
    budget: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
    progress: bool = True,
) -> Comparison:
    """`compare` for code that already runs in an event loop."""
    handed = Handed("compare()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample = Sample(split, n, samples)
    with handed.until_done(a, b, sample) as kept:
        sides = _sides((a, b), kept, sample, progress)
        first, second = [s if isinstance(s, Side) else Side.of(await s.answer()) for s in sides]
    return Comparison.of(first, second)


def compare(  # noqa: PLR0913 - the command's options
    a: AnyPolicy | Assessment,
    b: AnyPolicy | Assessment,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    split: str = "test",
    n: int | None = None,
    samples: int = 1,
    budget: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
    progress: bool = True,
) -> Comparison:
    """The gain of a over b, paired by example, with its 95 % interval: `pco compare` from Python.

    Either is what `evaluate` takes and is evaluated as there, both on the same examples; or it is
    the result of an `evaluate`, or the file of a saved `pco eval --json`, whose split and examples
    the other side then takes. So `compare(run, evaluate(run, row="concat"))` sets a policy beside
    its own instincts in one prompt. `budget` limits both sides together. The result has `.gain`,
    `.better` ('a', 'b' or '' where it is unclear) and `.differences` by example. Raises what
    `evaluate` raises, and DataError, before any call, where the examples or the rewards
    are not the same.
    """
    handed = Handed("compare()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample, sides = Sample(split, n, samples), list[Side]()
    with handed.until_done(a, b, sample) as kept:
        for asked in _sides((a, b), kept, sample, progress):
            if isinstance(asked, _Asked):
                asked = Side.of(run_sync(asked.answer(), asked.assessor.interrupt))
            sides.append(asked)
    return Comparison.of(*sides)


def _sides(
    given: Sequence[AnyPolicy | Assessment], handed: Handed, sample: Sample, progress: bool
) -> list[Side | _Asked]:
    """Sides that are known already, and what finds out the others. Nobody was asked anything yet;
    DataError where the examples, or the rewards, are not the same."""
    known = [_known(each) for each in given]
    sample = next((side.sample(sample) for side in known if side is not None), sample)
    sides = list[Side | _Asked]()
    for each, side in zip(given, known, strict=True):
        if side is None and not isinstance(each, Assessment):
            sides.append(_Asked.of(each, handed, sample, LEARNED, progress))
        elif side is not None:
            sides.append(side)
    require_comparable(*sides)
    return sides


def _known(given: AnyPolicy | Assessment) -> Side | None:
    """The side whose rewards are known: an Assessment, or a saved one."""
    if isinstance(given, Assessment):
        return Side.of(given)
    return Side.read(Path(given)) if isinstance(given, str | Path) else None
