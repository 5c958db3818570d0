"""What a reader wants first: which run this is, and whether its result is worth deploying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from promptcodebook.calls import Limits
from promptcodebook.report.context import Context, state_name, step_name
from promptcodebook.report.html import MISSING, Column, Content, Html, el, together
from promptcodebook.report.svg import Numbers, Picture, ticks, word
from promptcodebook.run.verdict import FIGURES, Row, read_rows
from promptcodebook.store.events import Event
from promptcodebook.text import shorten
from promptcodebook.units import (
    count_text,
    duration,
    lost_text,
    money,
    number,
    spent_parts,
)

_ENDED = {
    "finished": "finished",
    "early_stop": "stopped early: validation no longer gained",
    "target": "stopped early: the target score was reached",
    "budget": "stopped at its budget, can be resumed",
    "interrupted": "interrupted, can be resumed",
    "failed": "failed, can be resumed",
}
_NO_VERDICT = "This run has no verdict yet: it has not reached its end."
_WIDTH, _RIGHT, _ROW, _TOP = 480, 62, 30, 10
_NAME, _LETTER = 24, 8
"""Letters of a row's name shown beside its interval, and the width of one, in pixels."""


def masthead(context: Context) -> Html:
    """The top of the page: title, banner, and the run in a few facts."""
    banner = el(
        "p.banner",
        "Every number on this page comes from a simulated model: it shows that the machinery "
        "works and says nothing about any real model.",
    )
    return el(
        "header",
        el("p.kicker", "promptcodebook report"),
        el("h1", context.header.id),
        banner if context.simulated else None,
        facts(context),
    )


def facts(context: Context) -> Html:
    """The run in a few words and figures."""
    header, state, deployed = context.header, context.state, context.deployed
    best, score = state.best, number(state.best.score if state.best else None, missing=MISSING)
    sizes = ", ".join(f"{n:,} {split}" for split, n in header.sizes.items())
    done, planned = state.step + 1, context.planned
    sessions = f", in {state.resumes + 1} sessions" if state.resumes else ""
    named: list[tuple[str, Content]] = [
        ("task", header.task or "own data"),
        ("model", _models(context)),
        ("preset", str(context.setting("preset"))),
        ("seed", context.seed),
        ("codebook", f"K = {len(context.codebook)}, S = {context.setting('select')}"),
        ("data", sizes or "sizes not recorded"),
        ("steps", f"{done:,}" if planned is None else f"{done:,} of {planned:,}"),
        ("best validation", f"{score} at {step_name(best.step)}" if best else "none"),
        ("deployed", state_name(deployed.step) if deployed else "nothing"),
        ("budget", _budget(context.limits)),
        ("spent", _spent(context)),
        ("started", _moment(header.created)),
        ("ran for", f"{duration(context.elapsed_s)}{sessions}"),
        ("ended", _ending(context)),
        *([("next", el("code", context.next))] if context.next else []),
        ("written by", f"promptcodebook {header.version}"),
    ]
    return el("dl.facts", [el("div", el("dt", name), el("dd", value)) for name, value in named])


def _models(context: Context) -> str:
    """The one that all roles ask; else the executor's, and who asks another."""
    names = {role: name or "your own model" for role, name in context.models.items()}
    if len(set(names.values())) == 1:
        return names["executor"]
    others = Counter(name for name in names.values() if name != names["executor"])
    roles = {name: [role for role, own in names.items() if own == name] for name in others}
    rest = (f"{', '.join(roles[name])}: {name}" for name in others)
    return "; ".join([f"executor: {names['executor']}", *rest])


def _budget(limits: Limits) -> str:
    amounts = [
        None if limits.calls is None else f"{limits.calls:,} calls",
        None if limits.tokens is None else f"{count_text(limits.tokens)} tokens",
        None if limits.usd is None else money(limits.usd),
    ]
    return ", ".join(filter(None, amounts)) or "no limit"


def _spent(context: Context) -> str:
    """Beside the limits of the budget; what was lost to failures is a part of it."""
    lost = f" (of it {lost_text(context.lost)})" if context.lost.calls else ""
    return ", ".join(spent_parts(context.spent, context.limits)) + lost


def _ending(context: Context) -> str:
    state = context.state
    if state.ended is None:
        return "not yet: it is running" if context.running else "no: it was cut off"
    ending = _ENDED[state.ended]
    return f"{ending} ({shorten(state.detail, 300)})" if state.detail else ending


def _moment(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return text


class VerdictSection:
    """The stored conclusion; before there is one, what has been judged so far."""

    title = "Verdict"
    anchor = "verdict"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """The conclusion is part of the run's state: nothing to gather."""

    def render(self) -> Html:
        conclusion = self._context.state.conclusion
        if conclusion is None:
            todo = self._context.next
            none = self._context.state.missing or _NO_VERDICT
            return together(
                el("p.empty", none),
                el("p.note", "Next: ", el("code", todo)) if todo else None,
                self._judged_so_far(),
            )
        look = {True: "good", False: "bad", None: "open"}[conclusion.worth]
        sentence = el(f"p.verdict.{look}", conclusion.text)
        rows = read_rows(conclusion.rows)
        if not rows:
            return sentence
        return together(
            sentence,
            self._figure(rows),
            self._context.table(
                "Test split, greedy; the last row is the result. "
                + "; ".join(f"{f.heading}: {f.means}" for f in FIGURES if f.means)
                + f"; {', '.join(f.heading for f in FIGURES if f.query)}: per query."
                + (" Rows for reference decide nothing." if any(r.reference for r in rows) else ""),
                (
                    Column("row", numeric=False),
                    *(Column(f.heading if f.write else f"{f.heading} (95 %)") for f in FIGURES),
                ),
                [(_name(row), *(_cell(*f.cell(row)) for f in FIGURES)) for row in rows],
            ),
        )

    def _figure(self, rows: Sequence[Row]) -> Html:
        drawing = _forest(rows, self._context.reward_range)
        scores = [(r.name, r.score.mean, r.score.low, r.score.high, r.score.n) for r in rows]
        return self._context.figure(
            f"Mean reward on the test split with its 95 % interval, n = {rows[0].score.n}.",
            el("div.forest", drawing.html()),
            self._context.files(drawing, Numbers(("row", "score", "low", "high", "n"), scores)),
        )

    def _judged_so_far(self) -> Html | None:
        marks = self._context.state.tests
        if not marks:
            return None
        columns = (Column("row", numeric=False), Column("score"), Column("answered only"))
        rows = [
            (m.name, number(m.score, missing=MISSING), number(m.answered, missing=MISSING))
            for m in marks
        ]
        return self._context.table("Judged so far on the test split.", columns, rows)


def _name(row: Row) -> Content:
    return together(
        el("strong", row.name),
        el("span.aside", row.title) if row.title else None,
        el("span.tag", "for reference") if row.reference else None,
    )


def _cell(text: str, ends: str = "") -> Content:
    if text == "-":
        return MISSING
    return together(text, el("span.aside", ends)) if ends else text


def _forest(rows: Sequence[Row], reward_range: tuple[float, float]) -> Picture:
    """A dot and its interval for each row, on one scale; the last row is highlighted."""
    low = min(reward_range[0], *(r.score.low for r in rows))
    high = max(reward_range[1], *(r.score.high for r in rows))
    names = [_shorten_name(row.name) for row in rows]
    left = max(84, _LETTER * max(map(len, names)) + 12)
    bottom = _TOP + _ROW * len(rows)
    inner = _WIDTH - left - _RIGHT

    def at(value: float) -> float:
        return round(left + (value - low) / (high - low) * inner, 1)

    shapes: list[Content] = []
    for tick in ticks(low, high):
        x = at(tick)
        shapes.append(el("line.rule", attrs={"x1": x, "x2": x, "y1": _TOP, "y2": bottom}))
        shapes.append(word("tick middle", x, bottom + 18, number(tick, 2)))
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        y = _TOP + _ROW * place + _ROW / 2
        look = "main" if place == len(rows) - 1 else "soft"
        score = row.score
        ends = {"x1": at(score.low), "x2": at(score.high), "y1": y, "y2": y}
        shapes.append(word("name", 0, y + 5, name))
        shapes.append(el(f"line.whisker.{look}", attrs=ends))
        shapes.append(el(f"circle.{look}", attrs={"cx": at(score.mean), "cy": y, "r": 5.5}))
        shapes.append(word("value", _WIDTH - _RIGHT + 20, y + 5, number(score.mean)))
    description = " ".join(f"{r.name}: {number(r.score.mean)} ({r.score.ends()})." for r in rows)
    return Picture("Scores on the test split", description, (_WIDTH, bottom + 26), shapes)


def _shorten_name(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
