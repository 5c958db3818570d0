"""The verdict and what it rests on: its rows, single test examples, the prompts that it compared,
and how its result is put to use."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.report.context import Context, Section
from promptcodebook.report.pages import Picture, render, ticks
from promptcodebook.report.traces import judged_parts
from promptcodebook.run.verdict import FIGURES, Row, read_rows
from promptcodebook.store.events import Amended, Compared, Event, RunState, Started, Stepped
from promptcodebook.text import shorten
from promptcodebook.types import Codebook, Evaluation, Rollout
from promptcodebook.units import number, plural

UNJUDGED = "It is not judged to its end yet, so there is no result to set beside the first row."
"""Said where rows are judged and no verdict is reached."""
MOST, _OF_A_KIND = 12, 5  # Test examples shown, and wins (or losses) among them at first.
_TITLE = 160
_WIDTH, _RIGHT, _ROW, _TOP = 480, 62, 30, 10
_NAME, _LETTER = 24, 8  # Letters of a row's name that are shown, and the width of one in pixels.


def _rows_of(state: RunState) -> tuple[Row, ...]:
    """Raises StoreError where the stored verdict is damaged."""
    return read_rows(state.conclusion.rows) if state.conclusion is not None else ()


class VerdictSection(Section):
    title, anchor = "Verdict", "verdict"

    def values(self) -> Mapping[str, Any]:
        rows = _rows_of(self.context.state)
        forest = _forest(rows, self.context.reward_range) if rows else None
        conclusion = self.context.state.conclusion
        return {"conclusion": conclusion, "rows": rows, "figures": FIGURES, "forest": forest}


def _forest(rows: Sequence[Row], reward_range: tuple[float, float]) -> Picture:
    low = min(reward_range[0], *(r.score.low for r in rows))
    high = max(reward_range[1], *(r.score.high for r in rows))
    names = [r.name if len(r.name) <= _NAME else f"{r.name[: _NAME - 1]}…" for r in rows]
    left = max(84, _LETTER * max(map(len, names)) + 12)
    bottom = _TOP + _ROW * len(rows)

    def at(value: float) -> float:
        return round(left + (value - low) / (high - low) * (_WIDTH - left - _RIGHT), 1)

    shapes = render(
        "report/templates/forest.svg.jinja",
        ticks=[(at(tick), number(tick, 2)) for tick in ticks(low, high)],
        rows=[
            (_TOP + _ROW * (place + 0.5), name, s.mean, *map(at, (s.mean, s.low, s.high)))
            for place, (name, s) in enumerate(zip(names, (r.score for r in rows), strict=True))
        ],
        top=_TOP,
        bottom=bottom,
        right=_WIDTH - _RIGHT + 20,
    )
    words = " ".join(f"{r.name}: {number(r.score.mean)} ({r.score.ends()})." for r in rows)
    scores = [(r.name, r.score.mean, r.score.low, r.score.high, r.score.n) for r in rows]
    size, columns = (_WIDTH, bottom + 26), ("row", "score", "low", "high", "n")
    return Picture("Scores on the test split", words, size, shapes, columns, scores)


@dataclass(frozen=True, slots=True)
class Pair:
    """One test example under two rows; `difference` is the second's reward less the first's."""

    first: Rollout
    second: Rollout
    difference: float

    @property
    def outcome(self) -> str:
        return "tie" if not self.difference else "win" if self.difference > 0 else "loss"


def pairs_of(first: Evaluation, second: Evaluation) -> tuple[Pair, ...]:
    """The examples of both: wins, losses, ties; of each the greatest difference first."""
    earlier = {r.example_id: (r, x) for r, x in zip(first.rollouts, first.rewards, strict=True)}
    pairs = [
        Pair(earlier[r.example_id][0], r, x - earlier[r.example_id][1])
        for r, x in zip(second.rollouts, second.rewards, strict=True)
        if r.example_id in earlier
    ]
    order = {"win": 0, "loss": 1, "tie": 2}
    return tuple(sorted(pairs, key=lambda pair: (order[pair.outcome], -abs(pair.difference))))


def tally(pairs: Sequence[Pair]) -> str:
    """'2 wins, 1 loss, 0 ties'."""
    return ", ".join(
        plural(sum(p.outcome == kind for p in pairs), kind, nouns)
        for kind, nouns in (("win", "wins"), ("loss", "losses"), ("tie", "ties"))
    )


def result_of(state: RunState, rows: Sequence[Evaluation]) -> Evaluation | None:
    """The row that the verdict is about, its last; None until there is a verdict. Raises StoreError
    where the stored verdict is damaged."""
    judged = _rows_of(state)
    return next((row for row in rows[::-1] if judged and row.name == judged[-1].name), None)


class JudgedSection(Section):
    """Keeps the row that gains are measured from, and the result."""

    title, anchor = "Test examples", "test"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rows: list[Evaluation] = []
        self._first = Codebook(())

    def add(self, event: Event) -> None:
        match event:
            case Started(parameters):
                self._first = parameters.codebook
            case Compared(evaluation):
                if not self._rows or result_of(self.context.state, [evaluation]):
                    self._rows[1:] = [evaluation]
            case Stepped() | Amended(extended=True):
                self._rows = []
            case _:
                pass

    def values(self) -> Mapping[str, Any]:
        if self._rows and self.context.state.conclusion is None:
            return {"empty": UNJUDGED}
        if len(self._rows) < 2:
            return {"empty": "Nothing was compared on the test split yet."}
        base, result = self._rows
        pairs = pairs_of(base, result)
        kinds = ([p for p in pairs if p.outcome == kind] for kind in ("win", "loss"))
        chosen = [pair for kind in kinds for pair in kind[:_OF_A_KIND]]
        chosen += [pair for pair in pairs if pair not in chosen][: MOST - len(chosen)]
        chosen.sort(key=pairs.index)
        return {
            "empty": "",
            "note": f"{result.name} against {base.name} on {plural(len(pairs), 'test example')}: "
            f"{tally(pairs)}. Shown here, a sample: {tally(chosen)}, the greatest differences "
            "first.",
            "examples": [self._example(pair, base.name, result.name) for pair in chosen],
        }

    def _example(self, pair: Pair, first: str, second: str) -> Mapping[str, Any]:
        name, context = pair.second.example_id, self.context
        known = context.inputs.get(name, "")
        sides = ((first, pair.first), (second, pair.second))
        return {
            "outcome": pair.outcome,
            "title": shorten(" ".join((known or name).split()), _TITLE),
            "change": " → ".join(number(r.reward, 2, missing="failed") for _, r in sides),
            "parts": [("example", name), *([("input", known)] if known else [])],
            "sides": [judged_parts(context, row, r, self._first) for row, r in sides],
        }


class PromptsSection(Section):
    title, anchor = "Prompts compared", "prompts"

    def values(self) -> Mapping[str, Any]:
        state, present = self.context.state, self.context.header.present
        known = [(r.name, r.title, r.prompt) for r in _rows_of(state) if r.prompt is not None]
        if not known and present is not None:
            known = [("present", "", present)]
        return {"prompts": known}


class UseSection(Section):
    title, anchor = "How to use this result", "use"

    def values(self) -> Mapping[str, Any]:
        conclusion = self.context.state.conclusion
        rows = [row for row in _rows_of(self.context.state) if not row.reference]
        deploy = conclusion.deploy if conclusion is not None and rows else ""
        learned = bool(rows) and deploy == rows[-1].name and self.context.deployed is not None
        return {
            "concluded": conclusion is not None,
            "deploy": deploy,
            "kind": "learned" if learned else "untrained" if deploy == UNTRAINED else "prompt",
            "typed": f"pco prompt {self.context.header.id} --row {shlex.quote(deploy)}",
        }
