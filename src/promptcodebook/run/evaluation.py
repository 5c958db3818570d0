"""How good a policy is on a split, alone or beside another: `pco eval` and `pco compare`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from promptcodebook.assemble import Assembled
from promptcodebook.base.intervals import Bounds, Interval, mean_interval, paired_interval
from promptcodebook.base.paths import read_text
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import parse_json, shown_table
from promptcodebook.base.units import plural
from promptcodebook.calls import LM
from promptcodebook.data import Dataset, sample
from promptcodebook.errors import ConfigError, DataError, did_you_mean
from promptcodebook.method.failures import require_answers
from promptcodebook.method.policy import FixedPrompt, Prompter
from promptcodebook.optimizers.fixed import ORACLE, OraclePrompt
from promptcodebook.policy.file import CONCAT, MEASURED, NONE, PRESENT
from promptcodebook.progress import counting
from promptcodebook.run.decision import JudgingTerms, row_of
from promptcodebook.run.optimize import require_type
from promptcodebook.run.slices import Slice, as_trees, gains_by_slice, slices_of
from promptcodebook.run.subject import (
    AnyPolicy,
    Asked,
    EvaluationOptions,
    Examined,
    Subject,
    as_prompt,
    prompt_title,
)
from promptcodebook.run.verdict import VerdictRow, VerdictTable
from promptcodebook.types import Evaluation, Example, Prompt, Reward

LEARNED = "learned"  # name of the row that is the policy itself
# Rows that can be evaluated without a run.
ROWS = (LEARNED, PRESENT, NONE, CONCAT, *MEASURED, ORACLE)


@dataclass(frozen=True, slots=True)
class Sample:
    """A split, a seeded choice of `count` of it (None = all), or its examples of `ids`; and how
    often: `runs` 1 is greedy, of more the mean counts (None = as the configuration says)."""

    split: str = "test"
    count: int | None = None
    runs: int | None = None
    ids: frozenset[str] | None = None

    @classmethod
    def of(cls, verb: str, asked: Asked | Examined, split: str = "test") -> Sample:
        """What a `verb` of Python was asked for, of this split unless another was named. Raises
        ConfigError when a value is of a wrong type."""
        made = cls(asked.get("split", split), asked.get("n"), asked.get("samples"))
        require_type(verb, "n", made.count, (int,), "a whole number, or None for all")
        what = "a whole number, or None for the run's setting"
        require_type(verb, "samples", made.runs, (int,), what)
        require_type(verb, "split", made.split, (str,), "train, val or test", optional=False)
        return made

    def examples(self, assembled: Assembled) -> tuple[Example, ...]:
        """Raises DataError, ConfigError for a count below 1, MissingExtra and TaskError."""
        assembled.task.require()
        if self.runs is not None and self.runs < 1:
            raise ConfigError(f"cannot sample {self.runs} runs", hint="samples must be 1 or more")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"cannot evaluate {self.count} examples", hint="n must be 1 or more")
        examples = assembled.dataset.split(self.split)
        if self.ids is not None:
            return tuple(e for e in examples if e.id in self.ids)
        if not examples:
            message = f"the split {self.split!r} of {assembled.task.name} is empty"
            raise DataError(message, hint="choose a different split: train, val or test")
        return sample(examples, self.count)


@dataclass(frozen=True)
class Assessment:
    """What an evaluation came to.

    - `name`: that of the policy or run.
    - `evaluation`: every rollout, and so the reward of every example by its id.
    - `row`: the figures: mean reward with its 95 % interval, calls and tokens per query.
    - `models`: the model's spec of each role that was asked.
    - `simulated`: whether a simulated model answered.
    - `runs`: sampled runs per example (1 = one, greedy).
    - `reward_range`: the least and the greatest reward (0 to 1).
    - `kind`: the row that was evaluated ("learned").
    - `scored_by`: the reward in words ('' = unknown).
    - `replies`: where replies that were not asked for again are from ('').
    - `slices`: the slices of each example by its id, by the columns of `data.slices`."""

    name: str
    evaluation: Evaluation
    row: VerdictRow
    models: dict[str, str]
    simulated: bool
    runs: int = 1
    reward_range: Bounds = (0.0, 1.0)
    kind: str = LEARNED
    scored_by: str = ""
    replies: str = ""
    slices: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

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

    @property
    def groups(self) -> dict[str, str]:
        """Example id -> the group that it counts in; {} where each example counts by itself."""
        pairs = zip(self.rewards, self.evaluation.groups, strict=False)
        return dict(pairs)

    def __repr__(self) -> str:
        score, split = self.score, self.evaluation.split
        kind = "" if self.kind == LEARNED else f", row={self.kind!r}"
        return f"Assessment({self.name!r}, {split!r}: {score.text()}, n={score.n}{kind})"

    @property
    def title(self) -> str:
        """Its name, with the row where that is not the policy itself."""
        return self.name if self.kind == LEARNED else f"{self.name} ({self.kind})"

    def _repr_html_(self) -> str:
        table = VerdictTable((self.row,), titles={self.row.name: self.title}, head="policy")
        model = "simulated model, " if self.simulated else ""
        caption = f"{model}{self.evaluation.split} split, n = {self.score.n}, {self.replies}; "
        caption += "costs are per query"
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
            "replies": self.replies,
            "models": self.models,
            **figures,
            "examples": [
                {
                    "id": r.example_id,
                    "reward": reward,
                    "failed": f"{r.failure.stage}: {r.failure.kind}" if r.failure else None,
                    "truncated": r.truncated,
                    "route": list(r.route.indices) if r.route is not None else None,
                    **({"group": self.groups[r.example_id]} if self.groups else {}),
                    **({"slices": list(self.slices[r.example_id])} if self.slices else {}),
                }
                for r, reward in zip(self.evaluation.rollouts, self.evaluation.rewards, strict=True)
            ],
        }


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its name, rewards by example id, and what it was evaluated on."""

    name: str
    rewards: Mapping[str, float]
    split: str
    simulated: bool
    bounds: Bounds
    scored_by: str = ""
    replies: str = ""
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @classmethod
    def of(cls, found: Assessment) -> Side:
        return cls(
            found.title,
            found.rewards,
            found.evaluation.split,
            found.simulated,
            found.reward_range,
            scored_by=found.scored_by,
            replies=found.replies,
            groups=found.groups,
            slices=found.slices,
        )

    @classmethod
    def known(cls, given: AnyPolicy | Assessment) -> Side | None:
        """Of an Assessment, or a saved one (`pco eval --json`); None = it must be evaluated."""
        if isinstance(given, Assessment):
            return cls.of(given)
        if not isinstance(given, str | Path):
            return None
        try:
            tree = parse_json(read_text(Path(given)))
            low, high = tree.get("reward_range", (0.0, 1.0))
            return cls(
                name=Path(given).name,
                rewards={str(e["id"]): float(e["reward"]) for e in tree["examples"]},
                split=str(tree["split"]),
                simulated=bool(tree["simulated"]),
                bounds=(float(low), float(high)),
                scored_by=str(tree.get("scored_by", "")),  # older files do not have these
                replies=str(tree.get("replies", "")),
                groups={str(e["id"]): str(e["group"]) for e in tree["examples"] if "group" in e},
                slices={str(e["id"]): e.get("slices", ()) for e in tree["examples"]},
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def ids(self) -> Set[str]:
        return self.rewards.keys()

    def sample(self, asked: Sample) -> Sample:
        """What the other side is evaluated on: these examples, or those `asked` for."""
        split = self.split if asked.split == Sample().split else asked.split
        own = asked.count is None and split == self.split
        return replace(asked, split=split, ids=frozenset(self.rewards) if own else None)

    @property
    def score(self) -> Interval:
        groups = [self.groups.get(name, name) for name in self.rewards]
        return mean_interval(list(self.rewards.values()), bounds=self.bounds, groups=groups)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two policies on the same examples.

    - `a`, `b`: the name and the rewards by example id of each.
    - `gain`: the mean of a - b over the examples of both, with its 95 % interval.
    - `slices`: the same by slice, with intervals that hold together (())."""

    a: Side
    b: Side
    gain: Interval
    slices: tuple[Slice, ...] = ()

    @classmethod
    def of(cls, a: Side, b: Side) -> Comparison:
        """The comparison of two sides. Raises DataError where they cannot be compared, or there is
        no example."""
        require_comparable(a, b)
        if not a.rewards:
            raise DataError("there are no examples to compare", hint="pco eval REF --json")
        widest = min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])
        ours, theirs = list(a.rewards.values()), [b.rewards[name] for name in a.rewards]
        known = a.groups or b.groups
        groups = [known.get(name, name) for name in a.rewards]
        slices = a.slices if any(a.slices.values()) else b.slices
        return cls(
            a,
            b,
            paired_interval(ours, theirs, bounds=widest, groups=groups),
            gains_by_slice(b.rewards, a.rewards, slices, known, widest),
        )

    @property
    def better(self) -> Literal["a", "b", ""]:
        """Which of the two is better by its whole interval; '' where that is unclear."""
        return "a" if self.gain.low > 0 else "b" if self.gain.high < 0 else ""

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
        better = f"{self.better.upper()} is better" if self.better else "no clear difference"
        return f"A - B: {self.gain.text(signed=True, more='paired')}: {better}."

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        both = [(asdict(s.score), s) for s in (self.a, self.b)]
        first, second = ({"ref": s.name, "score": of, "replies": s.replies} for of, s in both)
        facts = {"split": self.split, "n": self.gain.n, "simulated": self.simulated}
        slices = list(as_trees(self.slices))
        return {"a": first, "b": second, "gain": asdict(self.gain), **facts, "slices": slices}

    def __repr__(self) -> str:
        gain = self.gain.text(signed=True)
        return f"Comparison({self.a.name!r} - {self.b.name!r} = {gain}, n={self.gain.n})"

    def _repr_html_(self) -> str:
        model = "simulated model, " if self.simulated else ""
        sides = ("A", self.a), ("B", self.b)
        rows = [(mark, s.name, s.score.text(), s.replies) for mark, s in sides]
        rows.append(("A - B", "", self.gain.text(signed=True), ""))
        title = f"{model}{self.split} split, n = {self.gain.n}; {self.sentence}"
        return shown_table(title, ("", "policy", "reward", "replies"), rows)


@dataclass(frozen=True)
class Evaluating:
    """An evaluation that is ready to begin: no model was asked yet."""

    subject: Subject
    sample: Sample
    row: str
    examples: tuple[Example, ...]
    progress: bool = True
    prompt: Prompt | None = None

    @classmethod
    def of(
        cls,
        policy: AnyPolicy,
        given: EvaluationOptions,
        sample: Sample,
        row: str = LEARNED,
        prompt: Prompt | None = None,
    ) -> Evaluating:
        """Of a `row` of the policy's verdict, or of a prompt in place of the policy."""
        verb, prompt = given.verb, prompt or as_prompt(policy)
        require_type(verb, "row", row, (str,), "the name of a row", optional=False)
        if row not in ROWS:
            message = f"{verb}: unknown row {row!r}{did_you_mean(row, ROWS)}"
            raise ConfigError(message, hint=f"the rows are {', '.join(ROWS)}")
        if prompt and row != LEARNED:
            what = f"{verb}: a row belongs to a policy's verdict, and a prompt has no verdict"
            raise ConfigError(what, hint="leave out the row or the prompt")
        subject = Subject.resolve(policy, given)
        examples = sample.examples(subject.assembled)
        if prompt:
            subject.assembled.plan.with_columns("", prompt.text).require_columns()
        for remark in subject.remarks:
            given.tell(remark)
        return cls(subject, sample, row, examples, given.progress, prompt)

    @property
    def ids(self) -> Set[str]:
        return frozenset(example.id for example in self.examples)

    @property
    def scored_by(self) -> str:
        return self.subject.assembled.scored_by

    @property
    def slices(self) -> Mapping[str, tuple[str, ...]]:
        """The slices of each example by its id."""
        return slices_of(self.examples, self.subject.assembled.config.data.slices)

    async def answer(self) -> Assessment:
        """Rollouts of all examples, their failures counted. Closes the connections. Raises
        TooManyFailures when nothing was answered at all, BudgetReached, and Interrupted."""
        subject, sample = self.subject, self.sample
        name = prompt_title(self.prompt) if self.prompt else subject.reference.title
        assembled = subject.assembled
        config, models = assembled.config, assembled.models
        runs = sample.runs or config.samples
        stream, total = sys.stderr if self.progress else None, len(self.examples) * runs
        more, paid = "raise the budget", models.ledger.total.calls
        async with models.at_work(more, f"{more}; everything paid for so far is kept"):
            prompter = self._prompter()
            with counting(f"evaluating {name}", total, stream, simulated=models.simulated) as count:
                evaluation = await assembled.evaluator(runs).evaluate(
                    name, prompter, self.examples, sample.split, count
                )
        if evaluation.answered is None:
            require_answers(evaluation.rollouts, 0)
        row = row_of(evaluation, None, JudgingTerms(config.reward_range, samples=runs))
        asked = models.ledger.total.calls > paid or not row.metered
        whose = "the verdict's " if subject.run and sample.split == "test" else ""
        return Assessment(
            name=name,
            evaluation=evaluation,
            row=row,
            models={str(role): spec for role, spec in models.by_role().items()},
            simulated=models.simulated,
            runs=runs,
            reward_range=config.reward_range,
            kind=self.row,
            scored_by=self.scored_by,
            replies="asked again" if asked else f"from {whose}recorded replies",
            slices=self.slices,
        )

    def _prompter(self) -> Prompter:
        """The prompter of the row. Raises PolicyError or ConfigError when there is no prompt for
        it."""
        task, file = self.subject.assembled.task, self.subject.file
        if self.prompt is not None:
            plan = self.subject.assembled.plan
            return plan.with_columns(file.base_prompt, self.prompt.text)
        if self.row == LEARNED:
            return self.subject.deployed
        if self.row != ORACLE:
            prompt = file.fixed_prompt(self.row)
            if self.row == PRESENT:
                own = prompt.text.removeprefix(file.base_prompt).removeprefix("\n\n")
                return self.subject.assembled.plan.with_columns(file.base_prompt, own)
            return FixedPrompt(prompt.text, prompt.stages)
        if task.oracle is None:
            message = f"{task.name} does not know the right instructions for its inputs"
            raise ConfigError(message, hint="choose a different row")
        return OraclePrompt(task.oracle, file.base_prompt)


def require_comparable(a: Side | Evaluating, b: Side | Evaluating) -> None:
    """Raises DataError where the examples are not the same, or the rewards, as far as known."""
    if missing := sorted(a.ids ^ b.ids):
        message = f"only one of the two was evaluated on {plural(len(missing), 'example')}, "
        message += f"such as {missing[0]}"
        raise DataError(message, hint="evaluate both on the same data, split and n")
    if a.scored_by and b.scored_by and a.scored_by != b.scored_by:
        message = f"the two were not scored by the same reward: {a.scored_by} and {b.scored_by}"
        raise DataError(message, hint="evaluate both with the same reward")


@dataclass(frozen=True)
class Comparing:
    """A comparison that is ready to begin: sides whose rewards are known, and evaluations."""

    sides: tuple[Side | Evaluating, ...]

    @classmethod
    def of(
        cls, policies: Sequence[AnyPolicy | Assessment], given: EvaluationOptions, sample: Sample
    ) -> Comparing:
        """Raises DataError when the two do not have the same examples, or the same reward."""
        known = [Side.known(each) for each in policies]
        sample = next((side.sample(sample) for side in known if side is not None), sample)
        sides = list[Side | Evaluating]()
        # A prompt is asked under the settings of the policy that it is compared with.
        own = [p for p in policies if not isinstance(p, Assessment) and as_prompt(p) is None]
        for each, side in zip(policies, known, strict=True):
            if side is not None:
                sides.append(side)
            elif not isinstance(each, Assessment):
                prompt = as_prompt(each)
                whose = own[0] if prompt and own and Side.known(own[0]) is None else each
                sides.append(Evaluating.of(whose, given, sample, prompt=prompt))
        require_comparable(*sides)
        return cls(tuple(sides))

    @property
    def slices(self) -> Set[str]:
        """All slices that are known."""
        return {each for side in self.sides for known in side.slices.values() for each in known}

    async def answer(self) -> Comparison:
        sides = [s if isinstance(s, Side) else Side.of(await s.answer()) for s in self.sides]
        return Comparison.of(*sides)

    def interrupt(self) -> None:
        for side in self.sides:
            if isinstance(side, Evaluating):
                side.subject.assembled.models.interrupt()


async def aevaluate(
    policy: AnyPolicy,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    row: str = LEARNED,
    **asked: Unpack[Asked],
) -> Assessment:
    """`evaluate` for code that runs in an event loop: the same arguments, result and errors."""
    given = EvaluationOptions.of("evaluate()", data, reward, lm, asked)
    of = Sample.of(given.verb, asked)
    with given.until_done(policy, of, row) as kept:
        return await Evaluating.of(policy, kept, of, row).answer()


def evaluate(
    policy: AnyPolicy,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    row: str = LEARNED,
    **asked: Unpack[Asked],
) -> Assessment:
    """Measure how good a policy is on a split: `pco eval` from Python.

    A run and a policy of this process have their data, reward and models. A run that is named
    brings its settings, and takes its objects again; a file brings neither. Ctrl-C ends it well.

    - `policy`: a Run, a Policy, or what names one: a run's id, name or folder below `runs_dir`,
      'last', a policy file, or NAME@REF in the registry. Or a prompt: a text of several words, a
      .txt or .md file, or `pco.Prompt(text)`; a column in braces, `{question}`, is filled in.
    - `data`, `reward`, `lm`, `roles`, `executor`: as in `optimize`. None or '': the policy's own.
    - `row`: the row of the verdict to evaluate: 'learned', 'present', 'concat', 'best_fixed', ...
    - `split`: 'train', 'val' or 'test' ('test'). `n`: at most this many examples (None = all).
    - `samples`: 1 answers greedily; more average that many sampled runs (None = as its run).
    - `again`: whether the models are asked again for what the policy's run was answered (False).
    - `budget`: what this evaluation may spend, such as '200calls'. None: no limit.
    - `config`: replaces a run's own settings. `runs_dir`: where runs live ('runs').
    - `trust`: whether code and addresses of a run that somebody else made may be used (False).
    - `progress`: whether a line on stderr says after two seconds how far it is (True).

    The result has `.score` (mean, 95 % interval, n), `.rewards` by example, `.row` (failures, cost
    per query) and `.evaluation.rollouts`.

    Raises ConfigError when a setting is wrong, DataError when the data cannot be used, LMError when
    the model gives no usable reply, PolicyError when the policy has no such row, RunNotFound when
    there is no such run, TooManyFailures when nothing was answered, and BudgetReached."""
    given = EvaluationOptions.of("evaluate()", data, reward, lm, asked)
    of = Sample.of(given.verb, asked)
    with given.until_done(policy, of, row) as kept:
        ready = Evaluating.of(policy, kept, of, row)
        return run_sync(ready.answer(), ready.subject.assembled.models.interrupt)


async def acompare(
    a: AnyPolicy | Assessment,
    b: AnyPolicy | Assessment,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    **asked: Unpack[Asked],
) -> Comparison:
    """`compare` for code that runs in an event loop: the same arguments, result and errors."""
    given = EvaluationOptions.of("compare()", data, reward, lm, asked)
    of = Sample.of(given.verb, asked)
    with given.until_done(a, b, of) as kept:
        return await Comparing.of((a, b), kept, of).answer()


def compare(
    a: AnyPolicy | Assessment,
    b: AnyPolicy | Assessment,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    **asked: Unpack[Asked],
) -> Comparison:
    """Measure the gain of a over b, paired by example: `pco compare` from Python.

    - `a`, `b`: what `evaluate` takes, evaluated as there on the same examples; or the result of an
      `evaluate`, or the file of a saved `pco eval --json`. The other side then takes its split and
      examples: `compare(run, evaluate(run, row="concat"))` sets a policy against its own instincts
      in one prompt.
    - `budget`: what both sides may spend together. None: no limit.
    - `data`, `reward`, `lm` and all other keywords: as in `evaluate`.

    The result has `.gain` with its 95 % interval, `.better` ('a', 'b', or '' where it is unclear)
    and `.differences` by example.

    Raises what `evaluate` raises, and DataError, before any call, when the examples or the rewards
    are not the same."""
    given = EvaluationOptions.of("compare()", data, reward, lm, asked)
    of = Sample.of(given.verb, asked)
    with given.until_done(a, b, of) as kept:
        ready = Comparing.of((a, b), kept, of)
        return run_sync(ready.answer(), ready.interrupt)
