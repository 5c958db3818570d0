"""`pco.evaluate` and `pco.compare`: how good a policy is on a split, alone or beside another.

Two policies on the same examples: what a comparison is between, and what it comes to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from promptcodebook.calls import LM
from promptcodebook.config import Config
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, DataError, did_you_mean
from promptcodebook.intervals import Bounds, Interval, mean_interval
from promptcodebook.progress import counting
from promptcodebook.run.evaluation import (
    LEARNED,
    ROWS,
    Assessment,
    Assessor,
    Sample,
    paired_difference,
)
from promptcodebook.run.optimize import require_type
from promptcodebook.run.subject import AnyPolicy, Given, Subject, handed
from promptcodebook.sync import run_sync
from promptcodebook.text import shown_table
from promptcodebook.types import Example, Executor, Reward


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its name, rewards by example id, and what it was evaluated on."""

    name: str
    rewards: Mapping[str, float]
    split: str
    simulated: bool
    bounds: Bounds
    scored_by: str = ""

    @classmethod
    def of(cls, assessment: Assessment) -> Side:
        kind = "" if assessment.kind == LEARNED else f" ({assessment.kind})"
        return cls(
            assessment.name + kind,
            assessment.rewards,
            assessment.evaluation.split,
            assessment.simulated,
            assessment.reward_range,
            assessment.scored_by,
        )

    @classmethod
    def read(cls, path: Path) -> Side | None:
        """A saved evaluation (`pco eval --json`); None for any other file, or none."""
        try:
            tree = json.loads(path.read_text("utf-8"))
            rewards = {str(e["id"]): float(e["reward"]) for e in tree["examples"]}
            low, high = tree.get("reward_range", (0.0, 1.0))
            simulated, bounds = bool(tree["simulated"]), (float(low), float(high))
            scored_by = str(tree.get("scored_by", ""))  # unknown in files of before
            return cls(path.name, rewards, str(tree["split"]), simulated, bounds, scored_by)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def ids(self) -> Set[str]:
        return self.rewards.keys()

    def sample(self, asked: Sample) -> Sample:
        """What the other side is evaluated on: this split and these examples, unless a number of
        examples, or another split than test, was `asked` for."""
        split = self.split if asked.split == Sample().split else asked.split
        own = asked.count is None and split == self.split
        return replace(asked, split=split, ids=frozenset(self.rewards) if own else None)

    @property
    def score(self) -> Interval:
        return mean_interval(list(self.rewards.values()), bounds=self.bounds)


class Comparable(Protocol):
    """What is known of a side before it is evaluated."""

    @property
    def ids(self) -> Set[str]: ...

    @property
    def scored_by(self) -> str: ...


def require_comparable(a: Comparable, b: Comparable) -> None:
    """Raises DataError where the examples are not the same, or the rewards, as far as known."""
    missing = sorted(a.ids ^ b.ids)
    if missing:
        raise DataError(
            f"the two were not evaluated on the same examples: {len(missing)} appear in only "
            f"one of them, the first is {missing[0]}",
            hint="evaluate both on the same data, split and n",
        )
    if a.scored_by and b.scored_by and a.scored_by != b.scored_by:
        raise DataError(
            f"the two were not scored by the same reward: {a.scored_by} and {b.scored_by}",
            hint="evaluate both under one reward",
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gain` is the mean of a - b over the examples of both, with its 95 % interval, paired by
    example."""

    a: Side
    b: Side
    gain: Interval

    @classmethod
    def of(cls, a: Side, b: Side) -> Comparison:
        """Raises DataError where the two were not evaluated on the same examples, or not by the
        same reward."""
        require_comparable(a, b)
        widest = min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])
        return cls(a, b, paired_difference(dict(a.rewards), dict(b.rewards), widest))

    @property
    def better(self) -> Literal["a", "b", ""]:
        """Which of the two is better by its whole interval; '' where that is unclear."""
        if self.gain.low > 0:
            return "a"
        return "b" if self.gain.high < 0 else ""

    @property
    def split(self) -> str:
        return self.a.split

    @property
    def simulated(self) -> bool:
        """Whether any of the models was simulated: figures must say so."""
        return self.a.simulated or self.b.simulated

    @property
    def differences(self) -> Mapping[str, float]:
        """Example id -> a - b."""
        return {name: reward - self.b.rewards[name] for name, reward in self.a.rewards.items()}

    @property
    def sentence(self) -> str:
        """The gain in words."""
        figures = self.gain.text(signed=True, more="paired")
        better = {"a": "A is better.", "b": "B is better.", "": "no clear difference."}
        return f"A - B: {figures}: {better[self.better]}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        first, second = ({"ref": s.name, "score": asdict(s.score)} for s in (self.a, self.b))
        facts = {"split": self.split, "n": self.gain.n, "simulated": self.simulated}
        return {"a": first, "b": second, "gain": asdict(self.gain), **facts}

    def __repr__(self) -> str:
        gain = self.gain.text(signed=True)
        return f"Comparison({self.a.name!r} - {self.b.name!r} = {gain}, n={self.gain.n})"

    def _repr_html_(self) -> str:
        model = "simulated model, " if self.simulated else ""
        rows = [(mark, s.name, s.score.text()) for mark, s in (("A", self.a), ("B", self.b))]
        rows.append(("A - B", "", self.gain.text(signed=True)))
        title = f"{model}{self.split} split, n = {self.gain.n}; {self.sentence}"
        return shown_table(title, ("", "policy", "reward"), rows)


@dataclass(frozen=True)
class Evaluating:
    """An evaluation that is ready to begin: no model was asked yet."""

    subject: Subject
    assessor: Assessor
    examples: tuple[Example, ...]
    sample: Sample
    progress: bool = True

    @classmethod
    def of(
        cls, policy: AnyPolicy, given: Given, sample: Sample, row: str = LEARNED, *, progress: bool
    ) -> Evaluating:
        """Of a `row` of the policy's verdict; `progress` = with a line on stderr."""
        verb = given.verb
        require_type(verb, "n", sample.count, (int,), "a whole number, or None for all")
        require_type(verb, "samples", sample.runs, (int,), "a whole number", optional=False)
        require_type(verb, "row", row, (str,), "the name of a row", optional=False)
        require_type(verb, "split", sample.split, (str,), "train, val or test", optional=False)
        if row not in ROWS:
            raise ConfigError(
                f"{verb}: unknown row {row!r}{did_you_mean(row, ROWS)}",
                hint=f"the rows are {', '.join(ROWS)}",
            )
        subject = Subject.resolve(policy, given)
        reference = subject.reference
        assessor = Assessor(reference.title, reference.file, subject.assembled, row)
        examples = assessor.examples(sample)
        for remark in subject.remarks:
            given.tell(remark)
        return cls(subject, assessor, examples, sample, progress)

    @property
    def ids(self) -> Set[str]:
        return frozenset(example.id for example in self.examples)

    @property
    def scored_by(self) -> str:
        return self.assessor.scored_by

    async def answer(self) -> Assessment:
        """Asks the models; Ctrl-C, by way of `assessor.interrupt`, ends it in order."""
        name, total = f"evaluating {self.assessor.name}", len(self.examples) * self.sample.runs
        stream = sys.stderr if self.progress else None
        try:
            with counting(name, total, stream, simulated=self.assessor.simulated) as count:
                return await self.assessor.assess(self.examples, self.sample, count)
        finally:
            self.subject.assembled.plan.calls.close()


@dataclass(frozen=True)
class Comparing:
    """A comparison that is ready to begin: sides whose rewards are known, and evaluations."""

    sides: tuple[Side | Evaluating, ...]

    @classmethod
    def of(
        cls,
        policies: Sequence[AnyPolicy | Assessment],
        given: Given,
        sample: Sample,
        *,
        progress: bool,
    ) -> Comparing:
        """DataError where the two do not have the same examples, or the same reward."""
        known = [_known(each) for each in policies]
        sample = next((side.sample(sample) for side in known if side is not None), sample)
        sides = list[Side | Evaluating]()
        for each, side in zip(policies, known, strict=True):
            if side is not None:
                sides.append(side)
            elif not isinstance(each, Assessment):
                sides.append(Evaluating.of(each, given, sample, progress=progress))
        require_comparable(*sides)
        return cls(tuple(sides))

    async def answer(self) -> Comparison:
        sides = [s if isinstance(s, Side) else Side.of(await s.answer()) for s in self.sides]
        return Comparison.of(*sides)

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish."""
        for side in self.sides:
            if isinstance(side, Evaluating):
                side.assessor.interrupt()


def _known(given: AnyPolicy | Assessment) -> Side | None:
    """The side whose rewards are known: an Assessment, or a saved one."""
    if isinstance(given, Assessment):
        return Side.of(given)
    return Side.read(Path(given)) if isinstance(given, str | Path) else None


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
    given = handed("evaluate()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample = Sample(split, n, samples)
    with given.until_done(policy, sample, row) as kept:
        return await Evaluating.of(policy, kept, sample, row, progress=progress).answer()


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
    handed over again; a file brings neither. `split` is train, val or test; `n` limits its
    examples (None = all). `samples` 1 is greedy; more average that many sampled runs. `row` is
    another row of the verdict: 'present', 'concat', 'best_fixed' and so on. `budget` limits what it
    may spend, e.g. '200calls'. After two seconds a line on stderr says how far it is, unless
    `progress` is False. Ctrl-C ends it in order.

    The result has `.score` (mean, 95 % interval, n), `.rewards` by example, `.row` (failures, cost
    per query) and `.evaluation.rollouts`. Raises ConfigError, DataError, LMError, PolicyError,
    RunNotFound, TooManyFailures where nothing was answered, and BudgetReached.
    """
    given = handed("evaluate()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample = Sample(split, n, samples)
    with given.until_done(policy, sample, row) as kept:
        asked = Evaluating.of(policy, kept, sample, row, progress=progress)
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
    given = handed("compare()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample = Sample(split, n, samples)
    with given.until_done(a, b, sample) as kept:
        return await Comparing.of((a, b), kept, sample, progress=progress).answer()


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
    given = handed("compare()", data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    sample = Sample(split, n, samples)
    with given.until_done(a, b, sample) as kept:
        asked = Comparing.of((a, b), kept, sample, progress=progress)
        return run_sync(asked.answer(), asked.interrupt)
