"""Usage and cost by role. An unknown price is shown as unknown, never as 0."""

from __future__ import annotations

from promptcodebook.report.context import Column, Context
from promptcodebook.report.figures import count, duration, money, percent
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.store import Event
from promptcodebook.types import Usage

__all__ = ["SpendSection"]

_COLUMNS = (
    Column("role", numeric=False),
    Column("model", numeric=False),
    Column("calls"),
    Column("prompt tokens"),
    Column("of them cached"),
    Column("completion tokens"),
    Column("share of tokens", numeric=False),
    Column("mean latency"),
    Column("cost"),
)


class SpendSection:
    """Everything paid in all sessions of the run, and nothing that came from a cache."""

    title = "Usage and cost"
    anchor = "cost"

    def __init__(self, context: Context) -> None:
        self._context = context

    def see(self, event: Event) -> None:
        """Usage is a sum of the store's own: nothing to gather."""

    def html(self) -> Html:
        usage = self._context.usage
        if not usage:
            return el("p.empty", "Nothing was paid for.")
        total = sum(usage.values(), Usage())
        models = self._context.models
        rows = [
            _row(role, models.get(role) or "your own model", spent, total.tokens)
            for role, spent in usage.items()
        ]
        rows.append(_row("all roles", "", total, total.tokens))
        table = self._context.table("Paid calls of the whole run by role.", _COLUMNS, rows)
        return together(table, self._unknown())

    def _unknown(self) -> Html | None:
        spent = self._context.usage
        missing = [role for role, u in spent.items() if u.cost is None]
        if not missing:
            return None
        known = sum(u.cost or 0.0 for u in spent.values())
        return el(
            "p.note",
            f"The price of {', '.join(missing)} is unknown, so the whole cost is unknown too; "
            f"the other roles come to {money(known)}. Add prices to pco.toml under [prices].",
        )


def _row(role: str, model: str, usage: Usage, tokens: int) -> tuple[Content, ...]:
    share = usage.tokens / tokens if tokens else 0.0
    bar = {
        "viewBox": "0 0 100 8",
        "class": "bar",
        "preserveAspectRatio": "none",
        "role": "img",
        "aria-label": percent(share),
    }
    track = {"width": 100, "height": 8, "rx": 2, "class": "track"}
    full = {"width": round(100 * share, 1), "height": 8, "rx": 2, "class": "fill"}
    return (
        role,
        model,
        count(usage.calls),
        count(usage.prompt_tokens),
        count(usage.cached_prompt_tokens),
        count(usage.completion_tokens),
        el(
            "svg",
            el("title", percent(share)),
            el("rect", attrs=track),
            el("rect", attrs=full),
            attrs=bar,
        ),
        duration(usage.latency_s / usage.calls) if usage.calls else "—",
        money(usage.cost),
    )
