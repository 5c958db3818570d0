"""The verdict: its headline, the failures that remain, the rows that it rests on, and the prompts
that it compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promptcodebook.base.intervals import Bounds
from promptcodebook.base.text import shell
from promptcodebook.base.units import number
from promptcodebook.report.context import Context, ReportSection
from promptcodebook.report.pages import Picture, render, ticks
from promptcodebook.report.traces import answer_text, judged_parts
from promptcodebook.run.slices import HEADS
from promptcodebook.run.verdict import FIGURES, Conclusion, VerdictRow
from promptcodebook.store.events import Amended, Compared, Event, Started, Stepped
from promptcodebook.types import Codebook, Evaluation, Rollout

_MOST_ROWS, _CLOSELY, _BETTER = 1000, 8, 4  # Test inputs listed, and shown with their prompts.
_BESIDE = 3  # Test inputs shown side by side, of those that gained and of those that lost.
_ROW, _WIDTH = 30, 480  # Of the drawing of the scores, in pixels.


class VerdictSection(ReportSection):
    """The headline; what it rests on folds out."""

    title, anchor = "Verdict", "verdict"

    def values(self) -> Mapping[str, Any]:
        context = self.context
        made = Conclusion.of(context.state, context.header)
        rows = made.rows if made else ()
        forest = _forest(rows, context.reward_range) if rows else None
        head = made and made.headline(shell(context.header.id))
        return {
            **{"made": made, "head": head, "rows": rows, "figures": FIGURES, "forest": forest},
            "heads_of_slices": HEADS,
        }


def _forest(rows: Sequence[VerdictRow], reward_range: tuple[float, float]) -> Picture:
    low = min(reward_range[0], *(r.score.low for r in rows))
    high = max(reward_range[1], *(r.score.high for r in rows))
    template, marks = "report/templates/forest.svg.jinja", ticks(low, high)
    shapes = render(template, rows=rows, low=low, high=high, ticks=marks, width=_WIDTH, step=_ROW)
    words = " ".join(f"{r.name}: {number(r.score.mean)} ({r.score.ends()})." for r in rows)
    scores = [(r.name, r.score.mean, r.score.low, r.score.high, r.score.n) for r in rows]
    size, columns = (_WIDTH, _ROW * len(rows) + 36), ("row", "score", "low", "high", "n")
    return Picture("Scores on the test split", words, size, shapes, columns, scores)


@dataclass(frozen=True, slots=True)
class ComparedExample:
    """One test example under two rows, with what they earn. `result` is how the second does by
    itself: what earns nothing, or failed, is wrong."""

    first: Rollout
    second: Rollout
    before: float
    now: float
    result: Literal["wrong", "partly right", "right"]

    @property
    def difference(self) -> float:
        return self.now - self.before

    @property
    def change(self) -> Literal["worse", "better", "same"]:
        return "better" if self.now > self.before else "worse" if self.now < self.before else "same"


def pairs_of(first: Evaluation, second: Evaluation, bounds: Bounds) -> tuple[ComparedExample, ...]:
    """The examples of both, the failures that remain first; of equals, the greatest loss."""
    earlier = {r.example_id: (r, x) for r, x in zip(first.rollouts, first.rewards, strict=True)}
    pairs = list[ComparedExample]()
    for rollout, now in zip(second.rollouts, second.rewards, strict=True):
        if rollout.example_id in earlier:
            other, before = earlier[rollout.example_id]
            wrong = rollout.reward is None or now <= bounds[0]
            result = "wrong" if wrong else "right" if now >= bounds[1] else "partly right"
            pairs.append(ComparedExample(other, rollout, before, now, result))
    return tuple(sorted(pairs, key=lambda pair: (pair.result != "wrong", pair.now, -pair.before)))


def tally(pairs: Sequence[ComparedExample]) -> str:
    """'2 better, 1 worse, 3 the same (2 of them wrong both times)'."""
    better, worse, same = (sum(p.change == c for p in pairs) for c in ("better", "worse", "same"))
    wrong = sum(p.change == "same" and p.result == "wrong" for p in pairs)
    text = f"{better} better, {worse} worse, {same} the same"
    return f"{text} ({wrong} of them wrong both times)" if wrong else text


def result_of(context: Context, rows: Sequence[Evaluation]) -> Evaluation | None:
    """The verdict's own row, its last; None before. Raises StoreError when the stored one is
    damaged."""
    made = Conclusion.of(context.state, context.header)
    named = made.rows[-1].name if made and made.rows else None
    return next((row for row in rows[::-1] if row.name == named), None)


class JudgedSection(ReportSection):
    """Test inputs where the result earned more, and less, beside the answers of the row that gains
    are measured from; then every one of them, closed, the failures that remain first. With the
    `key` of a run, inputs link to their pages, and all of them are in the grid."""

    title, anchor = "Where it helped, and where it hurt", "test"

    def __init__(self, context: Context, key: str = "") -> None:
        super().__init__(context)
        self._rows: list[Evaluation] = []
        self._first = Codebook(())
        self._key = key

    def add(self, event: Event) -> None:
        match event:
            case Started(parameters):
                self._first = parameters.codebook
            case Compared(evaluation):
                if not self._rows or evaluation.name == self._rows[0].name:
                    self._rows[:1] = [evaluation]
                elif result_of(self.context, [evaluation]):
                    self._rows[1:] = [evaluation]
            case Stepped() | Amended(extended=True):
                self._rows = []
            case _:
                pass

    def values(self) -> Mapping[str, Any] | None:
        if len(self._rows) < 2 or self.context.state.conclusion is None:
            return None
        base, result = self._rows
        made = Conclusion.of(self.context.state, self.context.header)
        titles = {row.name: row.title or row.name for row in made.rows} if made else {}
        pairs = pairs_of(base, result, self.context.reward_range)
        gained = sorted((p for p in pairs if p.change == "better"), key=lambda p: -p.difference)
        lost = sorted((p for p in pairs if p.change == "worse"), key=lambda p: p.difference)
        better = [pair for pair in pairs[_CLOSELY:] if pair.change == "better"][:_BETTER]
        return {
            **{"key": self._key, "tally": tally(pairs), "answer_text": answer_text},
            **{"base": base.name, "result": result.name, "pairs": pairs, "most": _MOST_ROWS},
            **{"first": self._first, "closely": (*pairs[:_CLOSELY], *better)},
            **{"titles": titles, "codebook": self.context.codebook},
            **{"helped": gained[:_BESIDE], "hurt": lost[:_BESIDE], "judged_parts": judged_parts},
            "kinds": Counter(kind for p in pairs for kind in (p.result, p.change)),
        }


class PromptsSection(ReportSection):
    title, anchor, folded = "Prompts compared", "prompts", True

    def values(self) -> Mapping[str, Any] | None:
        made = Conclusion.of(self.context.state, self.context.header)
        rows = (
            [(r.name, r.title, r.prompt) for r in made.rows if r.prompt is not None] if made else []
        )
        if (present := self.context.header.present) is not None:
            rows = rows or [("present", "", present)]
        return {"prompts": rows} if rows else None
