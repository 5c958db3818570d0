"""The end of a run: the plain sentence, an interval for each way of prompting, and the table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import StoreError
from promptcodebook.intervals import Interval
from promptcodebook.report.context import Column, Context
from promptcodebook.report.figures import count, duration, interval, money, number
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.report.svg import picture, ticks
from promptcodebook.session.verdict import Row
from promptcodebook.store import Event

__all__ = ["VerdictSection"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 480, 84, 62, 30, 10
_MEANS = {
    "present": "your present prompt, or zero-shot",
    "concat": "every learned instinct in one prompt",
    "untrained": "the first codebook, routed",
    "learned": "the trained policy",
}
_COLUMNS = (
    Column("row", numeric=False),
    Column("score (95 %)"),
    Column("gain (95 %)"),
    Column("answered only"),
    Column("failed"),
    Column("truncated"),
    Column("calls"),
    Column("tokens"),
    Column("latency"),
    Column("money"),
    Column("prompt words"),
)


class VerdictSection:
    """Shows the stored conclusion; before there is one, what has been judged so far."""

    title = "Verdict"
    anchor = "verdict"

    def __init__(self, context: Context) -> None:
        self._context = context

    def see(self, event: Event) -> None:
        """The conclusion is part of the run's state: nothing to gather."""

    def html(self) -> Html:
        said = self._context.state.conclusion
        if said is None:
            return together(
                el("p.empty", "This run has no verdict yet: it has not reached its end."),
                self._so_far(),
            )
        look = {True: "good", False: "bad", None: "open"}[said.worth]
        sentence = el(f"p.verdict.{look}", said.text)
        rows = _rows(said.rows)
        if not rows:
            return sentence
        return together(
            sentence,
            self._context.figure(
                f"Mean reward on the test split with its 95 % interval, n = {rows[0].score.n}.",
                el("div.forest", _forest(rows, self._context.reward_range)),
            ),
            self._table(rows),
        )

    def _table(self, rows: Sequence[Row]) -> Html:
        cells = [_row(row) for row in rows]
        return self._context.table(
            "Test split, greedy. A failed example counts as the bottom of the reward range; "
            "calls, tokens, latency and money are per query. "
            "The gain is over the first row, paired by example.",
            _COLUMNS,
            cells,
        )

    def _so_far(self) -> Html | None:
        marks = self._context.state.judged
        if not marks:
            return None
        columns = (Column("row", numeric=False), Column("score"), Column("answered only"))
        rows = [(m.name, number(m.score), number(m.answered)) for m in marks]
        return self._context.table("Judged so far on the test split.", columns, rows)


def _rows(stored: Sequence[object]) -> tuple[Row, ...]:
    try:
        return TypeAdapter(tuple[Row, ...]).validate_python(stored)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"the stored verdict is damaged at {where}: {first['msg']}") from None


def _row(row: Row) -> tuple[Content, ...]:
    per = row.per_query
    return (
        together(el("strong", row.name), el("span.aside", _MEANS.get(row.name, ""))),
        _estimate(row.score),
        "—" if row.gain is None else _estimate(row.gain, signed=True),
        number(row.answered),
        row.failed,
        row.truncated,
        number(row.calls_per_query, 1),
        count(per.tokens),
        duration(per.latency_s),
        money(per.cost),
        number(row.prompt_words, 0),
    )


def _estimate(value: Interval, *, signed: bool = False) -> Html:
    mean = number(value.mean, signed=signed)
    return together(mean, el("span.aside", interval(value, signed=signed)))


def _forest(rows: Sequence[Row], reward_range: tuple[float, float]) -> Html:
    """A dot and its interval for each row, on one scale."""
    low = min(reward_range[0], *(r.score.low for r in rows))
    high = max(reward_range[1], *(r.score.high for r in rows))
    bottom = _TOP + _ROW * len(rows)
    inner = _WIDTH - _LEFT - _RIGHT

    def at(value: float) -> float:
        return round(_LEFT + (value - low) / (high - low) * inner, 1)

    shapes: list[Content] = []
    for tick in ticks(low, high):
        x = at(tick)
        shapes.append(el("line.rule", attrs={"x1": x, "x2": x, "y1": _TOP, "y2": bottom}))
        shapes.append(_word("tick middle", x, bottom + 18, number(tick, 2)))
    for place, row in enumerate(rows):
        y = _TOP + _ROW * place + _ROW / 2
        look = "main" if row.name == "learned" else "soft"
        score = row.score
        ends = {"x1": at(score.low), "x2": at(score.high), "y1": y, "y2": y}
        shapes.append(_word("name", 0, y + 5, row.name))
        shapes.append(el(f"line.whisker.{look}", attrs=ends))
        shapes.append(el(f"circle.{look}", attrs={"cx": at(score.mean), "cy": y, "r": 5.5}))
        shapes.append(_word("value", _WIDTH - _RIGHT + 20, y + 5, number(score.mean)))
    words = " ".join(f"{r.name}: {number(r.score.mean)} ({interval(r.score)})." for r in rows)
    return picture("Scores on the test split", words, (_WIDTH, bottom + 26), *shapes)


def _word(classes: str, x: float, y: float, text: str) -> Html:
    return el("text", text, attrs={"class": classes, "x": x, "y": y})
