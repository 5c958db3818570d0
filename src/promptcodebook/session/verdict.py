"""The end of a run, in a sentence: is the learned policy worth deploying?

Rows, all on the test split, greedy: `present` (the user's present prompt, or zero-shot), `concat`
(every learned instinct in one prompt, no routing), `untrained` (the first codebook, routed) and
`learned`. Differences are paired by example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from promptcodebook.intervals import Interval, mean_interval, paired_interval
from promptcodebook.types import Evaluation, Usage

__all__ = ["Conclusion", "Row", "conclude", "row_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One way of prompting, on the test split; usage is per query, latency in seconds."""

    name: str
    score: Interval
    gain: Interval | None
    answered: float | None
    failed: int
    truncated: int
    per_query: Usage
    calls_per_query: float
    prompt_words: float


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


def conclude(evaluations: Sequence[Evaluation], seed: int, simulated: bool) -> Conclusion:
    """Rows and sentence from the evaluations of one test split, the first being the base."""
    if not evaluations or not evaluations[0].rollouts:
        return Conclusion((), "There is no test split, so nothing was judged.", None)
    base = evaluations[0]
    rows = tuple(row_of(e, None if e is base else base, seed) for e in evaluations)
    by_name = {e.name: e for e in evaluations}
    learned, concat = by_name["learned"], by_name.get("concat")
    gain = paired_interval(learned.rewards, base.rewards, seed)
    over = None if concat is None else paired_interval(learned.rewards, concat.rewards, seed)
    worth = gain.low > 0 and (over is None or over.mean > 0)
    sentence = _sentence(gain, over, {r.name: r for r in rows}, base.name)
    return Conclusion(rows, ("On the simulated model: " if simulated else "") + sentence, worth)


def _named(base: Row) -> str:
    """What was compared with, in words: without a present prompt it is no prompt at all."""
    if base.name != "present":
        return base.name
    return "the present prompt" if base.prompt_words else "zero-shot (no prompt)"


def _sentence(gain: Interval, over: Interval | None, rows: Mapping[str, Row], base: str) -> str:
    present = _named(rows[base])
    said = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, n = {gain.n})"
    learned = rows["learned"]
    price = (
        f"at {learned.calls_per_query:.1f} calls and {learned.per_query.tokens} tokens a query "
        f"instead of {rows[base].calls_per_query:.1f} and {rows[base].per_query.tokens}"
    )
    if gain.low > 0 and (over is None or over.mean > 0):
        return f"Worth deploying: {said} over {present}, {price}."
    if gain.low > 0:
        concat = rows["concat"]
        return (
            f"Not worth the routing: the learned policy gains {said} over {present}, but all its "
            f"instincts in one prompt (concat) do as well at {concat.calls_per_query:.1f} calls "
            f"a query; deploy that prompt."
        )
    if gain.high < 0:
        return f"Not worth deploying: the learned policy is worse than {present} by {said}."
    return f"Not worth deploying yet: {said} over {present} is no clear gain, {price}."
