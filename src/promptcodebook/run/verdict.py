"""The end of a run, in a sentence: is what was learned worth deploying?

Rows, all on the test split, greedy: what the user has today, the result's rivals (for ours: every
learned instinct in one prompt, the best of its prompts for all inputs or the best single instinct,
and the first codebook routed), the result itself, and references that decide nothing. Differences
are paired by example, each with its interval (`base/intervals.py`).

Worth deploying is what is clearly better than the present prompt *and* than every rival that costs
no more calls. Since all of these must show in their intervals, the chance of a false "worth
deploying" is at most 2.5 % (an intersection-union test); `bench/verdict_null.py` measures it. A
rival that is not beaten and has a clear gain of its own is named instead. A run that is trained
longer is judged again: look k is decided by intervals each end of which errs in at most
2.5 % / 2**k of cases (k > 1), so that all looks after the first err in at most 1.25 % together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import NormalDist
from typing import Any

from pydantic import TypeAdapter, ValidationError

from promptcodebook.base.intervals import (
    ENOUGH,
    SIDE,
    Bounds,
    Interval,
    mean_interval,
    paired_interval,
)
from promptcodebook.base.text import shell, shown_table, shown_text
from promptcodebook.base.units import cost_text, money, number, ordinal, percent, plural
from promptcodebook.calls import Usage
from promptcodebook.errors import BudgetReached, Stop, StoreError
from promptcodebook.method.executor import answers_remark
from promptcodebook.optimizers.base import Problem, Result, evaluate
from promptcodebook.optimizers.fixed import UNTRAINED, baselines
from promptcodebook.optimizers.reserve import test_rows
from promptcodebook.store.events import Compared, Concluded, Mark, RunState, Trained
from promptcodebook.store.header import Header
from promptcodebook.store.runs import earlier_looks
from promptcodebook.tasks.rewards import asks_judge, describe_reward
from promptcodebook.tasks.rewards.ready import COMPARING
from promptcodebook.types import Evaluation, PromptLength

JUDGED = "A model judged the answers, and its error is in no interval: `pco judge sheet` tells how."
POWER = 0.8  # how often a stated number of test inputs shows its gain
_ON_SIMULATED = "On the simulated model: "
_MANY_FALLBACKS = 0.2
_DIFFER = 1 / 5  # of the rows: those on which two ways of prompting earn different rewards
_SAVED = 0.5  # calls per query that make a row cheaper or dearer: less is a re-ask now and then


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One way of prompting, on the test split; usage is per query, latency in seconds. `gain` is
    over the present prompt, `over` the result's gain over this row. `title` is what it is called in
    a sentence ('' in runs of version 0.1). `prompt` is the text where every input gets the same,
    else None. `fallbacks` is the share of routes that the encoder did not give (None = nothing is
    routed). A `reference` is shown and decides nothing. Not `metered` = of its calls only those
    that route and compose are counted. `inputs` are all that it answered, where the n of `score`
    counts independent groups of them (0 in runs of earlier versions)."""

    name: str
    score: Interval
    gain: Interval | None
    answered: float | None
    failed: int
    truncated: int
    per_query: Usage
    calls_per_query: float
    title: str = ""
    over: Interval | None = None
    prompt_length: PromptLength | None = None
    fallbacks: float | None = None
    prompt: str | None = None
    reference: bool = False
    metered: bool = True
    empty: int = 0
    inputs: int = 0

    @property
    def count(self) -> str:
        """How many test inputs it answered: 96 test inputs, 24 independent."""
        n, inputs = self.score.n, max(self.score.n, self.inputs)
        return plural(inputs, "test input") + (f", {n} independent" if n < inputs else "")


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict for everybody: Deploy, Do not deploy or Undecided, `about` what was learned, and
    in sentences its gain, its cost, what to do next and what to type for that."""

    decision: str
    about: str
    lines: Mapping[str, str]

    @property
    def title(self) -> str:
        return f"{self.decision}: {self.about}"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`worth` is None when nothing could be judged, `deploy` the row to deploy ('' = unclear).
    `scale` is the range of the rewards, None where each of them is 0 or 1; `reward` what they are
    of, '' = right answers. Rivals that are `missing` were not judged; `earlier` runs were judged on
    the same test rows."""

    rows: tuple[VerdictRow, ...]
    sentence: str
    worth: bool | None
    deploy: str = ""
    scale: Bounds | None = (0.0, 1.0)
    reward: str = ""
    missing: tuple[str, ...] = ()
    earlier: int = 0

    @classmethod
    def of(cls, state: RunState, header: Header) -> Conclusion | None:
        """The verdict that a run has stored. Raises StoreError where it is damaged."""
        if (stored := state.conclusion) is None:
            return None
        try:
            rows = TypeAdapter(tuple[VerdictRow, ...]).validate_python(stored.rows)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise StoreError(f"the stored verdict is damaged at {where}") from None
        low, high = header.config.get("reward_range") or (0.0, 1.0)
        binary = state.tests and all(mark.binary for mark in state.tests)
        scale = None if binary else (float(low), float(high))
        reward = reward_name(header.config)
        more = stored.missing, stored.earlier
        return cls(rows, stored.text, stored.worth, stored.deploy, scale, reward, *more)

    @property
    def table(self) -> VerdictTable:
        return VerdictTable(self.rows)

    def headline(self, run: str = "RUN") -> Headline:
        """Decision, gain, cost and next command, for people; commands name this `run`."""
        decision = Concluded(self.sentence, self.worth, deploy=self.deploy).decision
        if not self.rows:
            kept = f"Keep at least {ENOUGH} rows for the test split."
            return Headline(decision, "nothing was judged", {"next": kept})
        base, learned = self.rows[0], self.rows[-1]
        title = learned.title or learned.name
        use = next((r for r in self.rows[1:] if r.name == self.deploy), None)
        typed = f"pco report {run}"
        if use is not None:
            asked = ' "an input"' if use.name == UNTRAINED else ""
            typed = f"pco prompt {run} --row {shell(use.name)}{asked}"
            typed = f"pco serve {run}" if use is learned and use.prompt is None else typed
        if self.worth:
            advice = f"Deploy {title}."
        elif remark := answers_remark(
            learned.inputs or learned.score.n, cut=learned.truncated, empty=learned.empty
        ):
            advice = remark
        elif use is not None:
            advice = (
                f"Use {use.title or use.name} instead: it takes no more calls, and {title} is not "
                f"clearly better. It brings {self._gain(use)} A query then takes {_query(use)}."
            )
        elif self.missing and learned.gain is not None and learned.gain.low > 0:
            advice = f"Give a greater budget, so that {' and '.join(self.missing)} can be judged."
            typed = f"pco train --resume {run} --budget MORE"
        else:
            keep = f"Keep {base.title}. " if self.deploy else ""
            advice = f"{keep}{_would_tell(learned.gain)}"
        cost = f"per query {_query(learned)}; before {_query(base)}"
        mark = " (simulated)" if self.sentence.startswith(_ON_SIMULATED) else ""
        if self.earlier:
            mark += f", the {ordinal(self.earlier + 1)} run judged on these test rows"
        levels = f"{number(base.score.mean)} → {number(learned.score.mean)}"
        lines = {
            "gain": f"{levels}: {self._gain(learned)}",
            "cost": cost,
            "next": advice,
            "type": typed,
        }
        return Headline(decision, f"{title}{mark}", lines)

    def _gain(self, row: VerdictRow) -> str:
        """In the reward's own unit: right answers in 100, or points on its scale."""
        gain, than = row.gain or Interval(0.0, 0.0, 0.0, row.score.n), self.rows[0].title
        points = f"points of {self.reward}" if self.reward else "points"
        width, digits, unit = 100, 1, f"{points if self.reward else 'right answers'} in 100"
        unit = f"{unit} than {than}"
        if self.scale is not None:
            width, digits = 1, 3
            unit = "{} than {} on a scale from {:g} to {:g}".format(points, than, *self.scale)
        mean, low, high = (
            f"{width * abs(x):.{digits}f} {'fewer' if x < 0 else 'more'}"
            for x in (gain.mean, gain.low, gain.high)
        )
        low = low if low[-5:] != high[-5:] else low.split()[0]
        ends = f"{low} and {high} (95 % interval, {row.count})."
        return f"{mean} {unit}; very likely between {ends}"

    def html(self, run: str = "RUN") -> str:
        """The headline as a notebook shows it, escaped; the sentence and the rows fold out."""
        sentence = shown_text("verdict", self.sentence)
        if not self.rows:
            return f"<div>{sentence}</div>"
        model = "simulated model, " if self.sentence.startswith(_ON_SIMULATED) else ""
        title = f"{model}test split, n = {self.rows[0].score.n}; calls are per query"
        table = self.table.only("reward", "gain", "calls").html(title, self.deploy)
        head = self.headline(run)
        text = shown_text(head.title, "\n".join(map(": ".join, head.lines.items())))
        return f"<div>{text}<details><summary>statistics</summary>{sentence}{table}</details></div>"

    _repr_html_ = html


@dataclass(frozen=True, slots=True)
class VerdictColumn:
    """A column of a verdict: the value of a row and how to write it (None = as an interval).
    `query` figures are per query. A `detail` is shown on a run's page alone, with what it `means`.
    """

    heading: str
    value: Callable[[VerdictRow], Interval | float | str | None]
    write: Callable[[Any], str] | None = None
    signed: bool = False
    query: bool = False
    detail: bool = False
    means: str = ""

    def cell(self, row: VerdictRow, between: str = " to ") -> tuple[str, ...]:
        """Its text in a row; an interval has two, the mean and the ends."""
        value = self.value(row)
        if self.query and not row.metered:
            return ("not metered" if self.heading in ("calls", "cost") else "-",)
        if value is None:
            return ("-",) if self.write else ("-", "-")
        if isinstance(value, Interval):
            ends = value.ends(signed=self.signed, between=between)
            return number(value.mean, signed=self.signed), ends
        return (self.write(value) if self.write else str(value),)


FIGURES = (
    VerdictColumn(
        "reward", lambda r: r.score, means="a failed example counts as the range's bottom"
    ),
    VerdictColumn(
        "gain", lambda r: r.gain, signed=True, means="over the first row's, paired by example"
    ),
    VerdictColumn("answered only", lambda r: r.answered, number, detail=True),
    VerdictColumn("failed", lambda r: r.failed, str),
    VerdictColumn("truncated", lambda r: r.truncated, str, detail=True),
    VerdictColumn("fallback", lambda r: r.fallbacks, percent, means="no valid route was given"),
    VerdictColumn("calls", lambda r: r.calls_per_query, partial(number, digits=1), query=True),
    VerdictColumn("tokens", lambda r: r.per_query.tokens, "{:,}".format, query=True),
    VerdictColumn(
        "seconds", lambda r: r.per_query.latency_s, partial(number, digits=2), query=True
    ),
    VerdictColumn("cost", lambda r: money(r.per_query.cost), str, query=True),
    VerdictColumn(
        "longest prompt",
        lambda r: r.prompt_length and r.prompt_length.longest,
        "{:,}".format,
        query=True,
        means="tokens of the executor's longest call, its stage's instruction included",
    ),
    VerdictColumn("result over it", lambda r: r.over, signed=True, detail=True),
)


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """Rows and columns to show. `titles` replace names of rows, `head` is above them."""

    rows: Sequence[VerdictRow]
    figures: tuple[VerdictColumn, ...] = FIGURES
    titles: Mapping[str, str] = field(default_factory=dict[str, str])
    head: str = "prompt"

    def only(self, *headings: str) -> VerdictTable:
        return replace(self, figures=tuple(f for f in self.figures if f.heading in headings))

    def cells(self, between: str = " to ", *, query: bool | None = None) -> list[dict[str, str]]:
        """Every row by heading, without details; `query` = those per query alone, or all others."""
        figures = [f for f in self.figures if not f.detail and query in (None, f.query)]
        cells = list[dict[str, str]]()
        for row in self.rows:
            cells.append({self.head: self.titles.get(row.name, row.name)})
            for figure in figures:
                mean, *ends = figure.cell(row, between)
                cells[-1][figure.heading] = mean
                if ends:
                    first = "95 %" not in cells[-1]
                    cells[-1]["95 %" if first else f"{figure.heading} 95 %"] = ends[0]
        return cells

    def html(self, caption: str, deploy: str = "") -> str:
        """For a notebook, escaped; the row to deploy is marked."""
        cells, marks = self.cells(), ["deploy" if r.name == deploy else "" for r in self.rows]
        rows = [(*cell.values(), mark) for cell, mark in zip(cells, marks, strict=True)]
        return shown_table(caption, (*cells[0], ""), rows)

    def as_json(self) -> tuple[dict[str, Any], ...]:
        """Plain values, for the store and `--json`."""
        return tuple(asdict(row) for row in self.rows)


@dataclass(frozen=True, slots=True)
class JudgingTerms:
    """Range of rewards; whether the model is simulated; which of the run's looks at the test split
    it is, and how many `earlier` runs had; of how many `samples` a rollout is the mean; the titles
    of rivals that are `missing`. `paired` takes a difference where more is known than the rewards,
    else it is None."""

    bounds: Bounds = (0.0, 1.0)
    simulated: bool = False
    look: int = 1
    earlier: int = 0
    samples: int = 1
    missing: tuple[str, ...] = ()
    paired: Callable[[Evaluation, Evaluation, float], Interval | None] = lambda a, b, side: None


@dataclass(frozen=True, slots=True)
class RowSource:
    """One row to be; `title` is what it is called in a sentence. A `reference` is only shown."""

    title: str
    evaluation: Evaluation
    reference: bool = False


def row_of(evaluation: Evaluation, base: Evaluation | None, terms: JudgingTerms) -> VerdictRow:
    """One row, with its gain over `base` on the same examples."""
    rollouts, total = evaluation.rollouts, evaluation.usage
    n, prompts = len(rollouts) * terms.samples, {rollout.prompt for rollout in rollouts}
    metered = all(rollout.metered for rollout in rollouts)
    routed = any(rollout.route is not None for rollout in rollouts)
    return VerdictRow(
        name=evaluation.name,
        score=mean_interval(evaluation.rewards, terms.bounds, groups=evaluation.groups),
        gain=None if base is None else _difference(evaluation, base, terms),
        answered=evaluation.answered,
        failed=evaluation.failed,
        truncated=sum(r.truncated for r in rollouts),
        empty=sum(r.empty for r in rollouts),
        per_query=Usage(
            calls=round(total.calls / n),
            prompt_tokens=round(total.prompt_tokens / n),
            completion_tokens=round(total.completion_tokens / n),
            cached_prompt_tokens=round(total.cached_prompt_tokens / n),
            cost=None if total.cost is None or not metered else total.cost / n,
            latency_s=total.latency_s / n,
        ),
        calls_per_query=total.calls / n,
        prompt_length=evaluation.prompt_length,
        fallbacks=evaluation.fallbacks,
        inputs=len(rollouts),
        prompt=None if routed or len(prompts) != 1 else prompts.pop(),
        metered=metered,
    )


def _difference(a: Evaluation, b: Evaluation, terms: JudgingTerms) -> Interval:
    side = side_of(terms.look + terms.earlier)
    known = terms.paired(a, b, side)
    return known or paired_interval(a.rewards, b.rewards, terms.bounds, side, a.groups)


def side_of(look: int) -> float:
    """How often each end of an interval may err at this look."""
    return SIDE if look == 1 else SIDE / 2**look


async def judge(problem: Problem, result: Result) -> tuple[Conclusion, Stop | None]:
    """Evaluates on the test split what is not stored yet, and says whether it was worth it; also
    what stopped it before all of its rows, if anything did. In order of need: the present prompt,
    the result, its rivals, and what is only shown."""
    store, assembled = problem.store, problem.assembled
    if store.trained() is None:
        paid = assembled.models.ledger.usage.values()
        store.append(Trained(replace(sum(paid, Usage()), latency_s=0.0)))
    assembled.models.budget.open_reserve()
    before = [await optimizer.optimize(problem) for optimizer in baselines()]
    examples = test_rows(problem, [*before, result, *result.rivals])
    ids = [example.id for example in examples]

    async def source(row: Result, *, reference: bool = False) -> RowSource:
        for stored in store.test_evaluations():
            if stored.name == row.name and [r.example_id for r in stored.rollouts] == ids:
                return RowSource(row.title, stored, reference)
        phase = f"judging {row.name}"
        evaluation = await evaluate(
            problem, row.name, row.prompter, examples, phase, row.model, split="test"
        )
        store.append(Compared(evaluation))
        return RowSource(row.title, evaluation, reference)

    first, last = [await source(row) for row in before], await source(result)
    rivals, shown, stop = list[RowSource](), list[RowSource](), None
    try:
        for row in result.rivals:
            rivals.append(await source(row))
        for row in result.references:
            shown.append(await source(row, reference=True))
    except BudgetReached as reached:
        stop = reached
    missing = tuple(row.title for row in result.rivals[len(rivals) :])
    entries = [*first, *shown, *rivals, last]
    config, stored = assembled.config, store.outline()
    earlier = stored.conclusion.earlier if stored.conclusion else earlier_looks(store)
    terms = JudgingTerms(
        config.reward_range,
        simulated=assembled.models.simulated,
        look=stored.looks + 1,
        earlier=earlier,
        samples=config.samples,
        missing=missing,
    )
    made = conclude(entries, terms)
    tried = (trace.rollout.reward for step in store.steps(traces=True) for trace in step.traces)
    judged = (reward for each in entries for reward in each.evaluation.rewards)
    left_out = f"{remark}." if (remark := assembled.dataset.remark) else ""
    remarks = [made.sentence, JUDGED * asks_judge(assembled.reward), left_out, result.remark]
    if len(examples) < (whole := len(assembled.plan.judged)):
        some = f"The budget was enough to judge on {len(examples)} of {whole} test inputs."
        remarks.insert(1, some)
    if config.samples > 1:
        remarks.insert(1, f"Each test example counts with the mean of {config.samples} answers.")
    beware = answers_remark(
        sum(row.inputs for row in made.rows),
        cut=sum(row.truncated for row in made.rows),
        empty=sum(row.empty for row in made.rows),
        cap=assembled.models.lm.sampling_of("executor").max_tokens,
    )
    if beware:
        remarks.insert(1, f"Beware: {beware}")
    elif made.rows and all(r in (None, terms.bounds[0]) for r in chain(judged, tried)):
        doubt = "No answer of this run ever scored: look whether the reward reads answers right"
        remarks.insert(1, f"{doubt} before you train again.")
    sentence, name = " ".join(filter(None, remarks)), reward_name(config.model_dump())
    return replace(made, sentence=sentence, reward=name), stop if missing else None


def reward_name(config: Mapping[str, Any]) -> str:
    """What the rewards are of, by the tree of a configuration: `reward_name`, else how the reward
    is called; '' = right answers, where it compares an answer with a reference."""
    if name := config.get("reward_name"):
        return str(name)
    reward: str | Mapping[str, Any] = config.get("reward") or ""
    kind = reward if isinstance(reward, str) else str(reward.get("kind"))
    return "" if config.get("task") or not kind or kind in COMPARING else describe_reward(kind)


def conclude(entries: Sequence[RowSource], terms: JudgingTerms) -> Conclusion:
    """Rows and sentence; the first entry is the base, the last the result, between them rivals."""
    if not entries or not entries[0].evaluation.rollouts:
        return Conclusion((), "There is no test split, so nothing was judged.", None)
    base, learned = entries[0].evaluation, entries[-1].evaluation

    def rows_at(terms: JudgingTerms) -> tuple[VerdictRow, ...]:
        return tuple(
            replace(
                row_of(e.evaluation, None if e is entries[0] else base, terms),
                title=e.title,
                over=None if e is entries[-1] else _difference(learned, e.evaluation, terms),
                reference=e.reference,
            )
            for e in entries
        )

    look = terms.look + terms.earlier
    rows = rows_at(replace(terms, look=1, earlier=0))
    judged = rows if look == 1 else rows_at(terms)
    deciding = [r for r in judged if not r.reference]
    sentence, worth, deploy = decide(deciding, look, terms.missing)
    remarks, rewards = list[str](), learned.rewards
    for other in entries[:-1] if not worth else ():
        if other.evaluation.name == UNTRAINED and other.evaluation.rewards == rewards:
            remarks.append(
                f"Training changed nothing on the test split: {entries[-1].title} and "
                f"{other.title} earn the same on each of the {len(rewards)} examples."
            )
    if (lost := rows[-1].fallbacks) is not None and lost > _MANY_FALLBACKS:
        # A policy that does not route is not what was to be judged.
        remarks.append(
            f"Beware: for {percent(lost)} of the inputs the encoder named no valid route, "
            "and the most successful instincts stood in."
        )
    if look > 1:
        others = f", {terms.earlier} of them by earlier runs" if terms.earlier else ""
        remarks.append(
            f"This is look {look} at the same test split{others}, so its intervals are wider: "
            f"{_level(look)} instead of {_level(1)}."
        )
    text = (_ON_SIMULATED if terms.simulated else "") + " ".join([sentence, *remarks])
    binary = all(Mark.of(e.evaluation, 0, "full").binary for e in entries)
    scale = None if binary else terms.bounds
    return Conclusion(rows, text, worth, deploy, scale, "", terms.missing, terms.earlier)


def verdict_remark(test_examples: int) -> str:
    """What to tell before a run whose test split is too small for a verdict; '' = it is not."""
    counted = plural(test_examples, "test example")
    few = f"no verdict will come of {counted}: it takes at least {ENOUGH}"
    return few if test_examples < ENOUGH else ""


def verdict_power(test_examples: int) -> str:
    """The gain that a test split of this size shows in four of five cases; '' = none. Rewards are
    taken to be 0 or 1, and to differ from the present prompt's on a fifth of the rows or more."""
    unlucky = NormalDist().inv_cdf(0.2)  # standard errors that four of five runs are above
    for points in range(1, 101):
        gain = points / 100
        differ = max(_DIFFER, gain)
        seen = gain + unlucky * math.sqrt((differ - gain**2) / test_examples)
        worse = round((differ - gain) / 2 * test_examples)
        better = worse + int(seen * test_examples)
        values = [1.0] * better + [-1.0] * worse + [0.0] * (test_examples - better - worse)
        if better > worse and mean_interval(values, (-1.0, 1.0)).low > 0:
            found = f"find a gain of {plural(points, 'point')} in four of five cases"
            return f"{plural(test_examples, 'test row')} {found}"
    return ""


def decide(
    rows: Sequence[VerdictRow], look: int = 1, missing: Sequence[str] = ()
) -> tuple[str, bool | None, str]:
    """The sentence, whether the last row is worth deploying, and what to deploy, for this look;
    `missing` rivals were not judged."""
    base, *rivals, learned = rows
    gain = _gain(learned)

    def figures(of: Interval) -> str:
        return of.text(signed=True, level=_level(look), more=f"n = {of.n}")

    if gain.n < ENOUGH:
        among = f" among {learned.inputs}" if learned.inputs > gain.n else ""
        return (
            f"No verdict: it takes at least {ENOUGH} independent test inputs, and there are "
            f"{gain.n}{among}. "
            f"{_capital(learned.title)} shows {figures(gain)} over {base.title}, "
            f"{_price(learned, base)}.",
            None,
            "",
        )
    rivals = [rival for rival in rivals if not _saves(learned, rival)]
    unbeaten = [rival for rival in rivals if _over(rival).low <= 0]
    clear = [rival for rival in (unbeaten if gain.low > 0 else rivals) if _gain(rival).low > 0]
    if gain.low > 0 and not unbeaten:
        ahead = [(gain, base), *((_over(rival), rival) for rival in rivals)]
        over = " and ".join(f"{figures(by)} over {row.title}" for by, row in ahead)
        if missing:
            start = f"Undecided: {learned.title} shows {over}, {_price(learned, base)}"
            others = "takes" if len(missing) == 1 else "take"
            rest = f"{' and '.join(missing)} {others} no more calls"
            return (
                f"{start}. {_capital(rest)}, but the budget did not reach to judge that.",
                None,
                "",
            )
        return f"Worth deploying: {over}, {_price(learned, base)}.", True, learned.name
    if gain.low > 0:
        rows = (base, _best(clear or unbeaten), learned)
        return _not_beaten(rows, unbeaten, figures), False, rows[1].name if clear else ""
    if gain.high < 0:
        start = f"Not worth deploying: {learned.title} is worse than {base.title}, {figures(gain)}"
    else:
        start = f"Not worth deploying yet: no clear gain over {base.title}, {figures(gain)}"
    if not clear:
        return f"{start}, {_price(learned, base)}.", False, base.name
    rival = _best(clear)
    gains = f"{_capital(rival.title)} gains {figures(_gain(rival))}, {_calls(rival, learned)}"
    return f"{start}. {gains}: deploy that.", False, rival.name


def _not_beaten(
    rows: tuple[VerdictRow, VerdictRow, VerdictRow],
    unbeaten: Sequence[VerdictRow],
    figures: Callable[[Interval], str],
) -> str:
    """A gain that rows of no more calls may have as well; `rival` is the one of them to name."""
    base, rival, learned = rows
    over, own, calls = _over(rival), _gain(rival), _calls(rival, learned)
    others = " and ".join(row.title for row in unbeaten if row is not rival)
    more = f" Nor is there a clear difference from {others}." if others else ""
    more += " So training shows no gain." if any(r.name == UNTRAINED for r in unbeaten) else ""
    if own.low <= 0:
        return (
            f"Unclear: {learned.title} gains {figures(_gain(learned))} over {base.title}, but "
            f"shows no clear difference from {rival.title}, {calls}: {figures(over)}. "
            f"Nor has that a clear gain of its own: {figures(own)}.{more} "
            "More test examples would tell."
        )
    start = f"No clear difference from {rival.title}"
    if over.high < 0:
        start = f"Not worth the routing: {rival.title} is better than {learned.title}"
    return (
        f"{start}, {calls}: deploy that. The difference is {figures(over)}; "
        f"it gains {figures(own)} over {base.title}.{more}"
    )


def _best(rivals: Sequence[VerdictRow]) -> VerdictRow:
    """The one to name: of those with the fewest calls, the one that gains most."""
    return min(rivals, key=lambda row: (round(row.calls_per_query), -_gain(row).mean))


def _saves(row: VerdictRow, other: VerdictRow) -> bool:
    return other.calls_per_query - row.calls_per_query >= _SAVED


def _over(rival: VerdictRow) -> Interval:
    assert rival.over is not None, "only the result has nothing over it"
    return rival.over


def _gain(row: VerdictRow) -> Interval:
    assert row.gain is not None, "only the base has no gain"
    return row.gain


def _level(look: int) -> str:
    return f"{100 * (1 - 2 * side_of(look)):.4g} %"


def _counts(row: VerdictRow, other: VerdictRow) -> tuple[str, str]:
    """Calls of one query: '3 calls' of the row, and the other's bare number."""
    own, others = (f"{r.calls_per_query:.1f}".removesuffix(".0") for r in (row, other))
    return f"{own} call" if own == "1" else f"{own} calls", others


def _calls(row: VerdictRow, other: VerdictRow) -> str:
    own, others = _counts(row, other)
    if not row.metered:
        return f"with {own} per query beside the program's own, which are not metered"
    return f"at {own} per query {'instead of' if _saves(row, other) else 'against'} {others}"


def _price(row: VerdictRow, base: VerdictRow) -> str:
    own, others = _counts(row, base)
    if not row.metered:
        return _calls(row, base)
    return (
        f"at {own} and {row.per_query.tokens} tokens per query "
        f"instead of {others} and {base.per_query.tokens}"
    )


def _query(row: VerdictRow) -> str:
    """What one query takes. An agent that asks models past the meter shows no call."""
    if not (row.metered and row.calls_per_query):
        return "not metered"
    price = cost_text(row.per_query.cost)
    return f"{_counts(row, row)[0]}, {row.per_query.tokens:,} tokens, {price}"


def _would_tell(gain: Interval | None) -> str:
    if gain is None or gain.n < ENOUGH:
        return f"Add test inputs: a verdict takes at least {ENOUGH}."
    if gain.mean <= 0:
        return "Read the answers that are still wrong, then train longer or fix the reward."
    if gain.low > 0:
        return "A row that takes no more calls may do as well. More test inputs would tell."
    # Its width shrinks as the root of n grows. As wide as the gain, every other such run shows it.
    likely = 1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf(1 - SIDE)
    needed = gain.n * ((1 - gain.low / gain.mean) * likely) ** 2
    about = f"{float(f'{needed:.2g}'):,.0f} test inputs"
    return f"About {about} would show a gain of this size in four of five cases."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
