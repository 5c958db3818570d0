"""How the run was operated: what went wrong on the way, what it cost, and under which settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from promptcodebook.calls import ROLES, Limits, Usage
from promptcodebook.incidents import Incident
from promptcodebook.report.context import Context, step_name, without_credentials
from promptcodebook.report.html import MISSING, Column, Content, Html, el, together
from promptcodebook.report.svg import meter
from promptcodebook.store.events import Broke, Compared, Event, Stepped, Validated
from promptcodebook.store.header import differences
from promptcodebook.text import shorten
from promptcodebook.types import Failure, Rollout, Trace
from promptcodebook.units import duration, money, percent, spent_parts

_OWN_MODEL = "your own model"
_MOST_FAILURES, _MOST_SETTINGS, _TRACEBACK, _VALUE = 30, 120, 6000, 200
HIDDEN = ("roles.*.headers",)
"""Headers may hold secrets, which a report must not show."""
_INCIDENTS = (Column("incident", numeric=False), Column("times"), Column("", numeric=False))
_FAILURES = (
    Column("phase", numeric=False),
    Column("stage", numeric=False),
    Column("kind", numeric=False),
    Column("times"),
)
_SPEND = (
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
_MODELS = (
    Column("role", numeric=False),
    Column("model", numeric=False),
    Column("temperature"),
    Column("top-p"),
    Column("length cap"),
)
_SETTINGS = (
    Column("setting", numeric=False),
    Column("default", numeric=False),
    Column("this run", numeric=False),
)


class IncidentsSection:
    """Counts failures by stage and kind; keeps the first traceback."""

    title = "Incidents"
    anchor = "incidents"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._first: tuple[str, Failure] | None = None
        self._truncated = 0

    def add(self, event: Event) -> None:
        match event:
            case Stepped(step):
                self._add_traces(step_name(step.index), step.traces)
            case Broke(step, traces):
                self._add_traces(f"{step_name(step)}, which broke", traces)
            case Validated(step, _, evaluation):
                self._add("validation", f"validation, {step_name(step)}", evaluation.rollouts)
            case Compared(evaluation):
                self._add("test", f"judging {evaluation.name}", evaluation.rollouts)
            case _:
                pass

    def _add_traces(self, where: str, traces: Iterable[Trace]) -> None:
        for trace in traces:
            self._add("training", where, (trace.rollout,))
            self._add_failure("training", where, trace.rollout.example_id, trace.failure)

    def _add(self, phase: str, where: str, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self._truncated += rollout.truncated
            self._add_failure(phase, where, rollout.example_id, rollout.failure)

    def _add_failure(self, phase: str, where: str, example: str, failure: Failure | None) -> None:
        if failure is None:
            return
        self._failures[phase, failure.stage, failure.kind] += 1
        if self._first is None:
            self._first = (f"{where}, example {example}", failure)

    def render(self) -> Html:
        return together(self._counts(), self._failure_table(), self._first_failure())

    def _counts(self) -> Html:
        tallies = dict(self._context.tallies)
        known = [(i.value, tallies.pop(i.value, 0), i.meaning) for i in Incident]
        others = [(name, n, "") for name, n in sorted(tallies.items())]
        cut = ("truncated outputs", self._truncated, "answers scored as they stood at the cap")
        rows = [
            (el("code", name), f"{n:,}", words) for name, n, words in (*known, *others, cut) if n
        ]
        if not rows:
            return el("p.note", "No incident was counted.")
        return self._context.table(
            "Incidents as counted on our side, each when it happened, also those that a later try "
            "made good. What never happened is left out.",
            _INCIDENTS,
            rows,
        )

    def _failure_table(self) -> Html:
        if not self._failures:
            return el("p.note", "No rollout failed.")
        rows = [(*key, f"{n:,}") for key, n in self._failures.most_common(_MOST_FAILURES)]
        return self._context.table(
            "Chains that broke, by where and why. In training they join no update; at the test "
            "they count as the bottom of the range.",
            _FAILURES,
            rows,
        )

    def _first_failure(self) -> Html | None:
        if self._first is None:
            return None
        where, failure = self._first
        text = f"{failure.stage}: {failure.kind}: {failure.message}"
        if failure.traceback:
            text += f"\n\n{failure.traceback}"
        return el(
            "details",
            el("summary", f"The first failure ({where})"),
            el("pre", shorten(text, _TRACEBACK)),
        )


class SpendSection:
    """Everything paid in all sessions of the run, and nothing that came from a cache.

    An unknown price is shown as unknown, never as 0.
    """

    title = "Usage and cost"
    anchor = "cost"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """Usage is a sum of the store's own: nothing to gather."""

    def render(self) -> Html:
        usage = self._context.usage
        if not usage:
            return together(el("p.empty", "Nothing was paid for."), self._lost())
        total = sum(usage.values(), Usage())
        models = self._context.models
        rows = [
            _spend_cells(role, models.get(role) or _OWN_MODEL, spent, total.tokens)
            for role, spent in usage.items()
        ]
        rows.append(_spend_cells("all roles", "", total, total.tokens))
        table = self._context.table("Paid calls of the whole run by role.", _SPEND, rows)
        return together(table, self._lost(), self._of_limits(), self._unknown_prices())

    def _of_limits(self) -> Html | None:
        """All that was paid or lost beside what the budget allowed."""
        context = self._context
        if context.limits == Limits():
            return None
        spent = ", ".join(spent_parts(context.spent, context.limits))
        return el("p.note", f"Of the budget: {spent}.")

    def _lost(self) -> Html | None:
        """Apart from what was paid: it is unknown what of it a server bills."""
        lost = self._context.lost
        if not lost.calls:
            return None
        price = "" if not lost.cost else f" and {money(lost.cost)}"
        return el(
            "p.note",
            f"Lost to failures, beside the above: {lost.calls:,} "
            f"{'call' if lost.calls == 1 else 'calls'}, up to {lost.tokens:,} tokens{price}.",
        )

    def _unknown_prices(self) -> Html | None:
        usage = self._context.usage
        unknown = [role for role, u in usage.items() if u.cost is None]
        if not unknown:
            return None
        known = sum(u.cost or 0.0 for u in usage.values())
        return el(
            "p.note",
            f"The price of {', '.join(unknown)} is unknown, so the whole cost is unknown too; "
            f"the other roles come to {money(known)}. Add prices to pco.toml under [prices].",
        )


def _spend_cells(role: str, model: str, usage: Usage, tokens: int) -> tuple[Content, ...]:
    share = usage.tokens / tokens if tokens else 0.0
    return (
        role,
        model,
        f"{usage.calls:,}",
        f"{usage.prompt_tokens:,}",
        f"{usage.cached_prompt_tokens:,}",
        f"{usage.completion_tokens:,}",
        meter(share, percent(share)),
        duration(usage.latency_s / usage.calls) if usage.calls else MISSING,
        money(usage.cost),
    )


class SettingsSection:
    """Models by role, what differs from the defaults, and the data's fingerprints."""

    title = "Settings"
    anchor = "settings"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """Settings are part of the run's header: nothing to gather."""

    def render(self) -> Html:
        return together(self._models(), self._changes(), self._data())

    def _models(self) -> Html:
        rows = [
            (
                role,
                model or _OWN_MODEL,
                self._sampling(role, "temperature"),
                self._sampling(role, "top_p"),
                self._sampling(role, "max_tokens"),
            )
            for role, model in self._context.models.items()
        ]
        caption = f"Models of the {len(ROLES)} roles; in evaluation the executor is greedy."
        return self._context.table(caption, _MODELS, rows)

    def _sampling(self, role: str, key: str) -> str:
        value = self._context.setting(f"roles.{role}.{key}")
        return "server's own" if value is None else f"{value:g}"

    def _changes(self) -> Html:
        context = self._context
        own = [
            d
            for d in differences(context.defaults, context.header.settings, HIDDEN)
            if d.new is not None or context.setting(d.key) is None
        ]
        if not own:
            return el("p.note", "All settings are the defaults.")
        rows = [
            (el("code", d.key), value_text(d.old), value_text(d.new)) for d in own[:_MOST_SETTINGS]
        ]
        return context.table("What differs from the defaults.", _SETTINGS, rows)

    def _data(self) -> Html | None:
        prints = self._context.header.fingerprints
        if not prints:
            return None
        rows = [(split, el("code", value[:16])) for split, value in prints.items()]
        columns = (Column("split", numeric=False), Column("fingerprint", numeric=False))
        return self._context.table("The data, by split.", columns, rows)


def value_text(value: object) -> str:
    """A setting's value as a report may show it."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shorten(without_credentials(text), _VALUE)
