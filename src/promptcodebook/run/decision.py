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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import NormalDist

from promptcodebook.base.intervals import (
    ENOUGH,
    SIDE,
    Bounds,
    Interval,
    mean_interval,
    paired_interval,
)
from promptcodebook.base.units import cost_text, percent, plural
from promptcodebook.calls import Usage
from promptcodebook.config.schema import COST_LIMIT
from promptcodebook.errors import BudgetReached, Stop
from promptcodebook.method.executor import answers_remark
from promptcodebook.method.policy import Deployed
from promptcodebook.optimizers.base import Problem, Result, evaluate
from promptcodebook.optimizers.fixed import UNTRAINED, baselines, verbatim_rows
from promptcodebook.optimizers.reserve import test_rows
from promptcodebook.policy.file import PRESENT
from promptcodebook.run.slices import Slice, gains_by_slice, slices_of, worse_in
from promptcodebook.run.verdict import (
    ON_SIMULATED,
    Conclusion,
    VerdictRow,
    capital,
    count_pair,
    reward_name,
    times_dearer,
)
from promptcodebook.store.events import Compared, Mark, Trained
from promptcodebook.store.runs import earlier_looks
from promptcodebook.tasks.rewards import asks_judge
from promptcodebook.types import Evaluation

JUDGED = "A model judged the answers; intervals ignore its error. To include it: `pco judge sheet`."
_MANY_FALLBACKS = 0.2
_DIFFER = 1 / 5  # of the rows: those on which two ways of prompting earn different rewards
_SAVED = 0.5  # calls per query that make a row cheaper or dearer: less is a re-ask now and then


@dataclass(frozen=True, slots=True)
class JudgingTerms:
    """Range of rewards; whether the model is simulated; which of the run's looks at the test split
    it is, and how many `earlier` runs had; of how many `samples` a rollout is the mean; the titles
    of rivals that are `missing`; what a query may cost; the slices by example id, and in which of
    them the result may not be worse. `paired` takes a difference where more
    is known than the rewards, else it is None."""

    bounds: Bounds = (0.0, 1.0)
    simulated: bool = False
    look: int = 1
    earlier: int = 0
    samples: int = 1
    missing: tuple[str, ...] = ()
    max_cost: str = ""
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    no_worse_in: tuple[str, ...] = ()
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
        evaluation = await evaluate(problem, row.name, row.prompter, examples, phase, split="test")
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
        max_cost=config.verdict.max_cost,
        slices=slices_of(examples, config.data.slices),
        no_worse_in=config.verdict.no_worse_in,
    )
    made = conclude(entries, terms)
    if made.worth and isinstance(result.prompter, Deployed):
        # Of what is worth deploying, what a cheaper form of it earns on the same examples.
        with suppress(BudgetReached):
            cheaper = [await source(row, reference=True) for row in verbatim_rows(result.prompter)]
            entries[1:1] = cheaper
            made = conclude(entries, terms)
    text = " ".join(_remarks(problem, result, made, entries))
    name = reward_name(config.model_dump())
    if len(examples) < (whole := len(assembled.plan.judged)):
        short = f"the budget has room for {len(examples)} of {whole} test inputs"
        stop = stop or BudgetReached(f"{short}, counted as if no reply came from the cache")
    own = {PRESENT: assembled.plan.present_prompt}  # of which every input may get another text
    rows = tuple(replace(row, prompt=own.get(row.name, row.prompt)) for row in made.rows)
    executor = config.model_of("executor")
    made = replace(made, rows=rows, sentence=text, reward=name, executor=executor)
    return made, stop if missing or len(ids) < whole else None


def _remarks(
    problem: Problem, result: Result, made: Conclusion, entries: Sequence[RowSource]
) -> Iterator[str]:
    """The sentence, and what a reader must know beside it."""
    assembled, store = problem.assembled, problem.store
    config, judged = assembled.config, entries[0].evaluation.rollouts
    yield made.sentence
    beware = answers_remark(
        sum(row.inputs for row in made.rows),
        cut=sum(row.truncated for row in made.rows),
        empty=sum(row.empty for row in made.rows),
        cap=assembled.models.lm.sampling_of("executor").max_tokens,
    )
    steps = store.steps(traces=True)
    rewards = chain(
        (reward for each in entries for reward in each.evaluation.rewards),
        (trace.rollout.reward for step in steps for trace in step.traces),
    )
    if beware:
        yield f"Beware: {beware}"
    elif made.rows and all(r in (None, config.reward_range[0]) for r in rewards):
        yield (
            "No answer in this run scored above the lowest reward: check that the reward reads "
            "answers correctly before you train again."
        )
    if config.samples > 1:
        yield f"Each test example counts as the mean of {config.samples} answers."
    if len(judged) < (whole := len(assembled.plan.judged)):
        yield f"The budget covered judging {len(judged)} of {whole} test inputs."
    if asks_judge(assembled.reward):
        yield JUDGED
    if remark := assembled.dataset.remark:
        yield f"{remark}."
    if result.remark:
        yield result.remark


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
    sentence, worth, deploy = decide(deciding, look, terms.missing, terms.max_cost)
    slices = _slices(base, learned, terms)
    if worth and (worse := worse_in(slices, terms.no_worse_in) if terms.no_worse_in else []):
        sentence = (
            f"Not worth deploying: {entries[-1].title} is clearly worse for {' and '.join(worse)}, "
            f"which verdict.no_worse_in forbids. Over all rows: {sentence}"
        )
        worth, deploy = False, base.name
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
            "so the most successful instincts were used instead."
        )
    if look > 1:
        others = f", {terms.earlier} of them by earlier runs" if terms.earlier else ""
        remarks.append(
            f"This is look {look} at the same test split{others}, so its intervals are wider: "
            f"{_level(look)} instead of {_level(1)}."
        )
    text = (ON_SIMULATED if terms.simulated else "") + " ".join([sentence, *remarks])
    binary = all(Mark.of(e.evaluation, 0, "full").binary for e in entries)
    scale = None if binary else terms.bounds
    return Conclusion(
        rows,
        text,
        worth,
        deploy,
        scale,
        missing=terms.missing,
        earlier=terms.earlier,
        looks=terms.look,
        slices=slices,
    )


def _slices(base: Evaluation, learned: Evaluation, terms: JudgingTerms) -> tuple[Slice, ...]:
    ids = [rollout.example_id for rollout in base.rollouts]
    before, after = (dict(zip(ids, e.rewards, strict=True)) for e in (base, learned))
    groups = dict(zip(ids, base.groups, strict=False))
    side = side_of(terms.look + terms.earlier)
    return gains_by_slice(before, after, terms.slices, groups, terms.bounds, side)


def verdict_remark(examples: int, independent: int | None = None) -> str:
    """What to tell before a run whose test split is too small for a verdict; '' = it is not. Of its
    examples fewer may be `independent`."""
    n = examples if independent is None else independent
    counted = plural(examples, "test example") + f", {n} independent" * (n < examples)
    few = f"{counted} cannot give a verdict, which needs at least {ENOUGH}"
    return few if n < ENOUGH else ""


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
    rows: Sequence[VerdictRow], look: int = 1, missing: Sequence[str] = (), max_cost: str = ""
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
            f"No verdict: it needs at least {ENOUGH} independent test inputs, but there are "
            f"{gain.n}{among}. "
            f"{capital(learned.title)} shows {figures(gain)} over {base.title}, "
            f"{_price(learned, base)}.",
            None,
            "",
        )
    rivals = [r for r in rivals if not _saves(learned, r) and not _beyond(r, base, max_cost)]
    if dear := _beyond(learned, base, max_cost):
        start = f"Not worth deploying: {dear}. {capital(learned.title)} shows {figures(gain)}"
        better = [rival for rival in rivals if _gain(rival).low > 0]
        if not better:
            return f"{start} over {base.title}.", False, base.name
        rival = _best(better)
        gains = f"{capital(rival.title)} gains {figures(_gain(rival))}, {_calls(rival, learned)}"
        return f"{start} over {base.title}. {gains}: deploy that.", False, rival.name
    unbeaten = [rival for rival in rivals if _over(rival).low <= 0]
    clear = [rival for rival in (unbeaten if gain.low > 0 else rivals) if _gain(rival).low > 0]
    if gain.low > 0 and not unbeaten:
        ahead = [(gain, base), *((_over(rival), rival) for rival in rivals)]
        over = " and ".join(f"{figures(by)} over {row.title}" for by, row in ahead)
        if missing:
            start = f"Undecided: {learned.title} shows {over}, {_price(learned, base)}"
            others, these = ("takes", "it was") if len(missing) == 1 else ("take", "they were")
            rest = f"{' and '.join(missing)} {others} no more calls"
            return (
                f"{start}. {capital(rest)}, but the budget ran out before {these} judged.",
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
    gains = f"{capital(rival.title)} gains {figures(_gain(rival))}, {_calls(rival, learned)}"
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
            f"{capital(rival.title)} has no clear gain of its own: {figures(own)}.{more} "
            "More test examples are needed to tell."
        )
    start = f"No clear difference from {rival.title}"
    if over.high < 0:
        start = f"Not worth the routing: {rival.title} is better than {learned.title}"
    return (
        f"{start}, {calls}: deploy that. The difference is {figures(over)}; "
        f"it gains {figures(own)} over {base.title}.{more}"
    )


def _beyond(row: VerdictRow, base: VerdictRow, limit: str) -> str:
    """Why a row costs more than `verdict.max_cost` allows; '' = it does not."""
    if (found := COST_LIMIT.fullmatch(limit)) is None:
        return ""
    query, unit = row.per_query, found[2]
    times, what = times_dearer(row, base) or (None, "cost")
    took: dict[str, tuple[float | None, str]] = {
        "x": (times, f"{times or 0:.2g} times the {what} of {base.title}"),
        "usd": (query.cost, cost_text(query.cost)),
        "tok": (query.tokens, f"{query.tokens:,} tokens"),
        "calls": (row.calls_per_query, f"{row.calls_per_query:.1f} calls"),
    }
    value, text = took[unit] if row.metered else (None, "")
    allowed = f"but verdict.max_cost allows {limit}"
    if value is None:
        return f"the cost of a query with {row.title} is unknown, {allowed}"
    return f"a query with {row.title} takes {text}, {allowed}" if value > float(found[1]) else ""


def _best(rivals: Sequence[VerdictRow]) -> VerdictRow:
    """The one to name: of those with the fewest calls, the one that gains most."""
    return min(rivals, key=lambda row: (round(row.calls_per_query), -_gain(row).mean))


def _saves(row: VerdictRow, other: VerdictRow) -> bool:
    return other.calls_per_query - row.calls_per_query >= _SAVED


def _over(rival: VerdictRow) -> Interval:
    assert rival.over is not None, "every row but the result has a difference"
    return rival.over


def _gain(row: VerdictRow) -> Interval:
    assert row.gain is not None, "every row but the base has a gain"
    return row.gain


def _level(look: int) -> str:
    return f"{100 * (1 - 2 * side_of(look)):.4g} %"


def _calls(row: VerdictRow, other: VerdictRow) -> str:
    own, others = count_pair(row, other)
    if not row.metered:
        return f"with {own} per query, plus the program's own, which are not metered"
    return f"at {own} per query {'instead of' if _saves(row, other) else 'against'} {others}"


def _price(row: VerdictRow, base: VerdictRow) -> str:
    own, others = count_pair(row, base)
    if not row.metered:
        return _calls(row, base)
    return (
        f"at {own} and {row.per_query.tokens} tokens per query "
        f"instead of {others} and {base.per_query.tokens}"
    )
