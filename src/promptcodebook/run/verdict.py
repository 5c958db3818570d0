"""A verdict as people see it: its rows and columns, and the headline with the next command. What
decides it is in `decision.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any

from pydantic import TypeAdapter, ValidationError

from promptcodebook.base.intervals import ENOUGH, SIDE, Bounds, Interval
from promptcodebook.base.text import shell, shown_table, shown_text
from promptcodebook.base.units import cost_text, money, number, ordinal, percent, plural
from promptcodebook.calls import Usage
from promptcodebook.errors import StoreError
from promptcodebook.lm.spec import is_local
from promptcodebook.lm.stack import simulated_here
from promptcodebook.method.executor import answers_remark
from promptcodebook.optimizers.fixed import UNTRAINED, VERBATIM
from promptcodebook.run.slices import Slice, from_trees, worse_in
from promptcodebook.store.events import Concluded, RunState
from promptcodebook.store.header import Header, specs_in
from promptcodebook.tasks.rewards import describe_reward
from promptcodebook.tasks.rewards.ready import COMPARING
from promptcodebook.types import PromptLength

_SAME = 0.05  # of a query's price: less is no difference to speak of
POWER = 0.8  # how often a stated number of test inputs shows its gain
ON_SIMULATED = "On the simulated model: "


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
    the same test rows, and this run `looks` times. `executor` is the spec of the model that
    answered."""

    rows: tuple[VerdictRow, ...]
    sentence: str
    worth: bool | None
    deploy: str = ""
    scale: Bounds | None = (0.0, 1.0)
    reward: str = ""
    missing: tuple[str, ...] = ()
    earlier: int = 0
    looks: int = 1
    slices: tuple[Slice, ...] = ()
    executor: str = ""

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
        return cls(
            rows,
            stored.text,
            stored.worth,
            stored.deploy,
            scale,
            reward,
            missing=stored.missing,
            earlier=stored.earlier,
            looks=state.looks + 1,
            slices=from_trees(stored.slices),
            executor=specs_in(header.config)["executor"],
        )

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
        typed, model = f"pco report {run}", self.executor
        if use is learned and learned.prompt is None:
            typed = f"pco serve {run}"
            if is_local(model) or simulated_here([model]):  # which has no address of its own
                at = shell(f"http://127.0.0.1:8000/v1#{model.partition('?')[0]}")
                typed = f"pco lm serve {shell(model)} & {typed} --lm {at}; kill $!"
        elif use is not None:
            asked = ' "an input"' if use.name == UNTRAINED else ""
            typed = f"pco prompt {run} --row {shell(use.name)}{asked}"
        if self.worth:
            advice = self._deploying(title)
        elif remark := answers_remark(
            learned.inputs or learned.score.n, cut=learned.truncated, empty=learned.empty
        ):
            advice = remark
        elif use is not None:
            advice = (
                f"Use {use.title or use.name} instead: it takes no more calls, and {title} is not "
                f"clearly better. It gives {self._gain(use)} A query then takes {_query(use)}."
            )
        elif self.missing and learned.gain is not None and learned.gain.low > 0:
            advice = f"Raise the budget, so that {' and '.join(self.missing)} can be judged."
            typed = f"pco train --resume {run} --budget MORE"
        else:
            keep = f"Keep {base.title}. " if self.deploy else ""
            judged = [r for r in self.rows[1:-1] if not r.reference]
            rivals = [r.title or r.name for r in judged if r.over and r.over.low <= 0]
            advice = f"{keep}{_would_tell(learned.gain, rivals[:1])}"
        cost = f"per query {_query(learned)}; before {_query(base)}{self._price(learned)}"
        mark = " (simulated)" if self.sentence.startswith(ON_SIMULATED) else ""
        if self.earlier:
            mark += f", the {ordinal(self.earlier + 1)} run judged on these test rows"
        elif self.looks > 1:
            mark += f", judged the {ordinal(self.looks)} time on these test rows"
        if worse := worse_in(self.slices):
            mark += f"; worse for {' and '.join(worse)}"
        levels = f"{number(base.score.mean)} → {number(learned.score.mean)}"
        lines = {
            "gain": f"{levels}: {self._gain(learned)}",
            "cost": cost,
            "next": advice,
            "type": typed,
        }
        return Headline(decision, f"{title}{mark}", lines)

    def _deploying(self, title: str) -> str:
        """What to do with what is worth deploying, and what it earns without its generator."""
        plain = next((row for row in self.rows if row.name == VERBATIM), None)
        if plain is None or plain.over is None:
            return f"Deploy {title}."
        found = "no clear difference" if plain.over.low <= 0 <= plain.over.high else "a difference"
        return (
            f"Deploy {title}. Without its generator (serve.verbatim = true) it takes "
            f"{_query(plain)} and earns {number(plain.score.mean)}, {found}: the generator adds "
            f"{plain.over.text(signed=True)}."
        )

    def _price(self, row: VerdictRow) -> str:
        """How many times dearer a query is, and what each further correct answer costs."""
        base, gain, found = self.rows[0], row.gain, times_dearer(row, self.rows[0])
        if found is None or abs(found[0] - 1) < _SAME:
            return ""
        times, what = found
        text = f": {times:.2g} times the {what}"
        usd, tokens = (row.per_query.cost or 0.0) - (base.per_query.cost or 0.0), what != "cost"
        more = row.per_query.tokens - base.per_query.tokens if tokens else usd
        if gain is None or gain.low <= 0 or more <= 0:
            return text
        each = f"{more / gain.mean:,.0f} tokens" if tokens else money(more / gain.mean)
        binary = self.scale is None and not self.reward
        return f"{text}, {each} for each further {'correct answer' if binary else 'point'}"

    def _gain(self, row: VerdictRow) -> str:
        """In the reward's own unit: correct answers per 100, or points on its scale."""
        gain, than = row.gain or Interval(0.0, 0.0, 0.0, row.score.n), self.rows[0].title
        points = f"points of {self.reward}" if self.reward else "points"
        width, digits, unit = 100, 1, f"{points if self.reward else 'correct answers'} per 100"
        unit = f"{unit} than {than}"
        if self.scale is not None:
            width, digits = 1, 3
            unit = "{} than {} on a scale from {:g} to {:g}".format(points, than, *self.scale)
        mean, low, high = (
            f"{width * abs(x):.{digits}f} {'fewer' if x < 0 else 'more'}"
            for x in (gain.mean, gain.low, gain.high)
        )
        low = low if low[-5:] != high[-5:] else low.split()[0]
        # A later run on the same rows is decided by a wider interval: the sentence has it.
        wider = ", but a wider one decides" if self.earlier + self.looks > 1 else ""
        ends = f"{low} and {high} (95 % interval{wider}, {row.count})."
        return f"{mean} {unit}; very likely between {ends}"

    def html(self, run: str = "RUN") -> str:
        """The headline as a notebook shows it, escaped; the sentence and the rows fold out."""
        sentence = shown_text("verdict", self.sentence)
        if not self.rows:
            return f"<div>{sentence}</div>"
        model = "simulated model, " if self.sentence.startswith(ON_SIMULATED) else ""
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
        "reward", lambda r: r.score, means="a failed example counts as the lowest reward"
    ),
    VerdictColumn(
        "gain", lambda r: r.gain, signed=True, means="over the first row, paired by example"
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
        means="tokens of the executor's longest call, including its stage's instruction",
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


def reward_name(config: Mapping[str, Any]) -> str:
    """What the rewards are of, by the tree of a configuration: `reward_name`, else how the reward
    is called; '' = right answers, where it compares an answer with a reference."""
    if name := config.get("reward_name"):
        return str(name)
    reward: str | Mapping[str, Any] = config.get("reward") or ""
    kind = reward if isinstance(reward, str) else str(reward.get("kind"))
    return "" if config.get("task") or not kind or kind in COMPARING else describe_reward(kind)


def count_pair(row: VerdictRow, other: VerdictRow) -> tuple[str, str]:
    """Calls of one query: '3 calls' of the row, and the other's bare number."""
    own, others = (f"{r.calls_per_query:.1f}".removesuffix(".0") for r in (row, other))
    return f"{own} call" if own == "1" else f"{own} calls", others


def times_dearer(row: VerdictRow, base: VerdictRow) -> tuple[float, str] | None:
    """How many times the money of the base's query the row's takes, or where no price tells, how
    many times the tokens. None = not metered."""
    ours, theirs = row.per_query, base.per_query
    if not (row.metered and base.metered and theirs.tokens):
        return None
    if ours.cost and theirs.cost:
        return ours.cost / theirs.cost, "cost"
    return ours.tokens / theirs.tokens, "tokens"


def _query(row: VerdictRow) -> str:
    """What one query takes. An agent that asks models past the meter shows no call."""
    if not (row.metered and row.calls_per_query):
        return "not metered"
    price = cost_text(row.per_query.cost)
    return f"{count_pair(row, row)[0]}, {row.per_query.tokens:,} tokens, {price}"


def _would_tell(gain: Interval | None, rivals: Sequence[str]) -> str:
    if gain is None or gain.n < ENOUGH:
        return f"Add test inputs: a verdict needs at least {ENOUGH}."
    if gain.mean <= 0:
        return "Read the answers that are still wrong, then train longer or fix the reward."
    if gain.low > 0:
        rival = capital(" or ".join(rivals) or "another row")
        return f"{rival} may do as well for no more calls. More test inputs are needed to tell."
    # Its width shrinks as the root of n grows. As wide as the gain, every other such run shows it.
    likely = 1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf(1 - SIDE)
    needed = gain.n * ((1 - gain.low / gain.mean) * likely) ** 2
    about = f"{float(f'{needed:.2g}'):,.0f} test inputs"
    return f"About {about} would show a gain of this size in four of five cases."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
