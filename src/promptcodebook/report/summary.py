"""What a reader wants first: which run this is, and whether its result is worth deploying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from promptcodebook.calls import Limits
from promptcodebook.report.charts import ticks
from promptcodebook.report.context import Context, Section, state_name, step_name
from promptcodebook.report.pages import MISSING, Numbers, Picture, render
from promptcodebook.run.verdict import FIGURES, Row, read_rows
from promptcodebook.text import shorten
from promptcodebook.units import count_text, duration, lost_text, money, number, spent_parts

_ENDED = {
    "finished": "finished",
    "early_stop": "stopped early: validation no longer gained",
    "target": "stopped early: the target score was reached",
    "budget": "stopped at its budget, can be resumed",
    "interrupted": "interrupted, can be resumed",
    "failed": "failed, can be resumed",
}
_WIDTH, _RIGHT, _ROW, _TOP = 480, 62, 30, 10
_NAME, _LETTER = 24, 8
"""Letters of a row's name shown beside its interval, and the width of one, in pixels."""


def facts(context: Context) -> list[tuple[str, str | int]]:
    """The run in a few words and figures."""
    header, state, deployed = context.header, context.state, context.deployed
    best, score = state.best, number(state.best.score if state.best else None, missing=MISSING)
    sizes = ", ".join(f"{n:,} {split}" for split, n in header.sizes.items())
    done, planned = state.step + 1, context.planned
    sessions = f", in {state.resumes + 1} sessions" if state.resumes else ""
    return [
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
        *([("next", context.next)] if context.next else []),
        ("written by", f"promptcodebook {header.version}"),
    ]


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


class VerdictSection(Section):
    """The stored conclusion; before there is one, what has been judged so far."""

    title = "Verdict"
    anchor = "verdict"

    def values(self) -> Mapping[str, Any]:
        conclusion = self.context.state.conclusion
        rows = read_rows(conclusion.rows) if conclusion is not None else ()
        forest = _forest(rows, self.context.reward_range) if rows else None
        return {"conclusion": conclusion, "rows": rows, "figures": FIGURES, "forest": forest}


def _forest(rows: Sequence[Row], reward_range: tuple[float, float]) -> Picture:
    """A dot and its interval for each row, on one scale; the last row is highlighted."""
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
            (
                _TOP + _ROW * (place + 0.5),
                name,
                r.score.mean,
                *map(at, (r.score.mean, r.score.low, r.score.high)),
            )
            for place, (name, r) in enumerate(zip(names, rows, strict=True))
        ],
        top=_TOP,
        bottom=bottom,
        right=_WIDTH - _RIGHT + 20,
    )
    words = " ".join(f"{r.name}: {number(r.score.mean)} ({r.score.ends()})." for r in rows)
    scores = [(r.name, r.score.mean, r.score.low, r.score.high, r.score.n) for r in rows]
    numbers = Numbers(("row", "score", "low", "high", "n"), scores)
    return Picture("Scores on the test split", words, (_WIDTH, bottom + 26), shapes, numbers)
