"""The end of a run, in a sentence: is what was learned worth deploying?

Rows, all on the test split, greedy: what the user has today, the result's rivals (for ours: every
learned instinct in one prompt, and the first codebook routed) and the result itself. Differences
are paired by example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.intervals import Interval, mean_interval, paired_interval
from promptcodebook.optimizers.base import Problem, Result, evaluate
from promptcodebook.optimizers.fixed import baselines
from promptcodebook.store.events import Compared
from promptcodebook.types import Evaluation

__all__ = ["Conclusion", "Entry", "Row", "conclude", "judge", "row_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One way of prompting, on the test split; usage is per query, latency in seconds.

    `title` is what it is called in a sentence ('' in runs of version 0.1).
    """

    name: str
    score: Interval
    gain: Interval | None
    answered: float | None
    failed: int
    truncated: int
    per_query: Usage
    calls_per_query: float
    prompt_words: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The rows and the plain sentence; `worth` is None when there was nothing to judge."""

    rows: tuple[Row, ...]
    sentence: str
    worth: bool | None

    def rows_as_json(self) -> tuple[dict[str, Any], ...]:
        """Plain values, for the store and `--json`."""
        return tuple(asdict(row) for row in self.rows)


def row_of(evaluation: Evaluation, base: Evaluation | None, seed: int) -> Row:
    """One row, with its gain over `base` on the same examples."""
    n = len(evaluation.rollouts)
    total = evaluation.usage
    words = [len(r.prompt.split()) for r in evaluation.rollouts]
    return Row(
        name=evaluation.name,
        score=mean_interval(evaluation.rewards, seed),
        gain=None if base is None else paired_interval(evaluation.rewards, base.rewards, seed),
        answered=evaluation.answered,
        failed=evaluation.failed,
        truncated=sum(r.truncated for r in evaluation.rollouts),
        per_query=Usage(
            calls=round(total.calls / n),
            prompt_tokens=round(total.prompt_tokens / n),
            completion_tokens=round(total.completion_tokens / n),
            cached_prompt_tokens=round(total.cached_prompt_tokens / n),
            cost=None if total.cost is None else total.cost / n,
            latency_s=total.latency_s / n,
        ),
        calls_per_query=total.calls / n,
        prompt_words=sum(words) / n,
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """One way of prompting on the test split; `title` is what it is called in a sentence."""

    title: str
    evaluation: Evaluation


async def judge(problem: Problem, result: Result) -> Conclusion:
    """Evaluates on the test split what is not stored yet, and says whether it was worth it."""
    fixed = [await optimizer.optimize(problem) for optimizer in baselines()]
    entries = [await _entry(problem, row) for row in (*fixed, *result.rivals, result)]
    assembled = problem.assembled
    conclusion = conclude(entries, assembled.config.seed, assembled.models.simulated)
    if not result.remark:
        return conclusion
    return replace(conclusion, sentence=f"{conclusion.sentence} {result.remark}")


async def _entry(problem: Problem, row: Result) -> Entry:
    for stored in problem.store.test_evaluations():
        if stored.name == row.name:
            return Entry(row.title, stored)
    test = problem.assembled.dataset.test
    evaluation = await evaluate(problem, row.name, row.prompter, test, f"judging {row.name}")
    problem.store.append(Compared(evaluation))
    return Entry(row.title, evaluation)


def conclude(entries: Sequence[Entry], seed: int, simulated: bool) -> Conclusion:
    """Rows and sentence; the first entry is the base, the last the result, between them rivals."""
    if not entries or not entries[0].evaluation.rollouts:
        return Conclusion((), "There is no test split, so nothing was judged.", None)
    base, *rivals, learned = entries
    rows = tuple(
        replace(row_of(e.evaluation, None if e is base else base.evaluation, seed), title=e.title)
        for e in entries
    )
    gain = paired_interval(learned.evaluation.rewards, base.evaluation.rewards, seed)
    beaten_by = _cheaper_and_as_good(rivals, learned, seed)
    worth = gain.low > 0 and beaten_by is None
    sentence = _sentence(gain, rows[0], rows[-1], (base, learned), beaten_by)
    return Conclusion(rows, ("On the simulated model: " if simulated else "") + sentence, worth)


def _cheaper_and_as_good(rivals: Sequence[Entry], learned: Entry, seed: int) -> Entry | None:
    """The first rival that costs less than the result in calls and is not worse on average, or
    costs as much and is better."""
    for rival in rivals:
        saved = learned.evaluation.usage.calls - rival.evaluation.usage.calls
        over = paired_interval(learned.evaluation.rewards, rival.evaluation.rewards, seed)
        if (saved > 0 and over.mean <= 0) or (saved == 0 and over.mean < 0):
            return rival
    return None


def _sentence(
    gain: Interval, base: Row, learned: Row, entries: tuple[Entry, Entry], beaten_by: Entry | None
) -> str:
    present, title = (entry.title for entry in entries)
    figures = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, n = {gain.n})"
    price = (
        f"at {learned.calls_per_query:.1f} calls and {learned.per_query.tokens} tokens per query "
        f"instead of {base.calls_per_query:.1f} and {base.per_query.tokens}"
    )
    if gain.low > 0 and beaten_by is None:
        return f"Worth deploying: {figures} over {present}, {price}."
    if gain.low > 0 and beaten_by is not None:
        rival = beaten_by.evaluation
        calls = rival.usage.calls / len(rival.rollouts)
        return (
            f"Not worth the routing: {title} gains {figures} over {present}, but "
            f"{beaten_by.title} does as well at {calls:.1f} calls per query; deploy that instead."
        )
    if gain.high < 0:
        return f"Not worth deploying: {title} is worse than {present} by {figures}."
    return f"Not worth deploying yet: {figures} over {present} is no clear gain, {price}."
