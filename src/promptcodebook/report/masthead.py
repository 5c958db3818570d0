"""Which run this is: task, models, seed, versions, when, how it ended, what was set."""

from __future__ import annotations

import json
from datetime import datetime

from promptcodebook.config import Config
from promptcodebook.report.context import Column, Context, without_credentials
from promptcodebook.report.figures import count, duration, money, number, shorten, step_name
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.simulated.recipes import unfollowed
from promptcodebook.store import differences
from promptcodebook.types import ROLES, Usage

__all__ = ["masthead", "settings"]

_ENDED = {
    "finished": "finished",
    "early_stop": "stopped early: validation no longer gained",
    "target": "stopped early: the target score was reached",
    "budget": "stopped at its budget, can be resumed",
    "interrupted": "interrupted, can be resumed",
    "failed": "failed, can be resumed",
}
_HIDDEN = ("roles.*.headers",)
"""Headers may carry what nobody should read in a report."""


def masthead(context: Context) -> Html:
    """The top of the page: title, banner, and the run in a few facts."""
    header = context.header
    banner = (
        el(
            "p.banner",
            "Every number on this page comes from a simulated model: it shows that the machinery "
            "works and says nothing about any real model.",
        )
        if context.simulated
        else None
    )
    return el(
        "header",
        el("p.kicker", "promptcodebook report"),
        el("h1", header.id),
        banner,
        _beyond(context),
        el("dl.facts", [_fact(name, value) for name, value in _facts(context)]),
    )


def _beyond(context: Context) -> Html | None:
    """What the simulated model does not even try: nobody should take it for a failure to learn."""
    left = unfollowed(context.header.task) if context.simulated else ()
    if not left:
        return None
    return el(
        "p.note",
        f"The simulated model follows these {len(left)} kinds of constraint by accident only: ",
        ", ".join(left),
        ".",
    )


def _facts(context: Context) -> list[tuple[str, Content]]:
    header, state = context.header, context.state
    spent = sum(context.usage.values(), Usage())
    best = state.best
    facts: list[tuple[str, Content]] = [
        ("task", header.task or "own data"),
        ("preset", str(context.setting("preset"))),
        ("seed", context.seed),
        ("codebook", f"K = {len(context.codebook)}, S = {context.setting('select')}"),
        ("steps", count(state.step + 1)),
        ("best validation", f"{number(best.score)} at {step_name(best.step)}" if best else "none"),
        ("spent", f"{count(spent.calls)} calls, {count(spent.tokens)} tokens, {money(spent.cost)}"),
        ("started", _moment(header.created)),
        ("ran for", f"{duration(context.elapsed_s)}{_sessions(state.resumes)}"),
        ("ended", _ended(context)),
        ("written by", f"promptcodebook {header.version}"),
    ]
    return facts


def settings(context: Context) -> Html:
    """Models by role, what differs from the defaults, and the data's fingerprints."""
    return together(_models(context), _changed(context), _data(context))


def _models(context: Context) -> Html:
    def said(role: str, key: str) -> str:
        value = context.setting(f"roles.{role}.{key}")
        return "server's own" if value is None else f"{value:g}"

    columns = (
        Column("role", numeric=False),
        Column("model", numeric=False),
        Column("temperature"),
        Column("top-p"),
        Column("length cap"),
    )
    rows = [
        (
            role,
            model or "your own model",
            said(role, "temperature"),
            said(role, "top_p"),
            said(role, "max_tokens"),
        )
        for role, model in context.models.items()
    ]
    caption = f"Models of the {len(ROLES)} roles; in evaluation the executor is greedy."
    return context.table(caption, columns, rows)


def _changed(context: Context) -> Html:
    defaults = Config().model_dump(mode="json")
    own = [
        d
        for d in differences(defaults, context.header.config, _HIDDEN)
        if d.new is not None or context.setting(d.key) is None
    ]
    if not own:
        return el("p.note", "All settings are the defaults.")
    columns = (
        Column("setting", numeric=False),
        Column("default", numeric=False),
        Column("this run", numeric=False),
    )
    rows = [(el("code", d.key), _value(d.old), _value(d.new)) for d in own[:120]]
    return context.table("What differs from the defaults.", columns, rows)


def _data(context: Context) -> Html | None:
    prints = context.header.fingerprints
    if not prints:
        return None
    rows = [(split, el("code", value[:16])) for split, value in prints.items()]
    columns = (Column("split", numeric=False), Column("fingerprint", numeric=False))
    return context.table("The data, by split.", columns, rows)


def _fact(name: str, value: Content) -> Html:
    return el("div", el("dt", name), el("dd", value))


def _ended(context: Context) -> str:
    state = context.state
    if state.ended is None:
        return "not yet"
    said = _ENDED[state.ended]
    return f"{said} ({shorten(state.detail, 300)})" if state.detail else said


def _sessions(resumes: int) -> str:
    return f", in {resumes + 1} sessions" if resumes else ""


def _moment(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return text


def _value(value: object) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shorten(without_credentials(text), 200)
