"""How the run was operated: what went wrong on the way, what it cost, and under which settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from promptcodebook.calls import ROLES, Limits, Usage
from promptcodebook.incidents import Incident
from promptcodebook.report.context import Context, Section, step_name, without_credentials
from promptcodebook.store.events import Broke, Compared, Event, Stepped, Validated
from promptcodebook.store.header import differences
from promptcodebook.text import shorten
from promptcodebook.types import Failure, Rollout, Trace
from promptcodebook.units import spent_parts

_OWN_MODEL = "your own model"
_MOST_FAILURES, _MOST_SETTINGS, _TRACEBACK, _VALUE = 30, 120, 6000, 200
HIDDEN = ("roles.*.headers",)
"""Headers may hold secrets, which a report must not show."""


class IncidentsSection(Section):
    """Counts failures by stage and kind; keeps the first traceback."""

    title = "Incidents"
    anchor = "incidents"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
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

    def values(self) -> Mapping[str, Any]:
        tallies = dict(self.context.tallies)
        known = [(i.value, tallies.pop(i.value, 0), i.meaning) for i in Incident]
        others = [(name, n, "") for name, n in sorted(tallies.items())]
        cut = ("truncated outputs", self._truncated, "answers scored as they were at the cap")
        where, failure = self._first or ("", None)
        text = ""
        if failure is not None:
            text = f"{failure.stage}: {failure.kind}: {failure.message}"
            text += f"\n\n{failure.traceback}" if failure.traceback else ""
        return {
            "incidents": [each for each in (*known, *others, cut) if each[1]],
            "failures": self._failures.most_common(_MOST_FAILURES),
            "where": where,
            "first": shorten(text, _TRACEBACK),
        }


class SpendSection(Section):
    """Everything paid in all sessions of the run, and nothing that came from a cache.

    An unknown price is shown as unknown, never as 0.
    """

    title = "Usage and cost"
    anchor = "cost"

    def values(self) -> Mapping[str, Any]:
        context, usage = self.context, self.context.usage
        total = sum(usage.values(), Usage())
        rows = [(role, context.models.get(role) or _OWN_MODEL, u) for role, u in usage.items()]
        limited = context.limits != Limits()
        return {
            "rows": [*rows, ("all roles", "", total)] if rows else (),
            "tokens": total.tokens,
            # Apart from what was paid: it is unknown what of it a server bills.
            "lost": context.lost,
            "of_limits": spent_parts(context.spent, context.limits) if limited else None,
            "unpriced": [role for role, u in usage.items() if u.cost is None],
            "known": sum(u.cost or 0.0 for u in usage.values()),
        }


class SettingsSection(Section):
    """Models by role, what differs from the defaults, and the data's fingerprints."""

    title = "Settings"
    anchor = "settings"

    def values(self) -> Mapping[str, Any]:
        context = self.context
        return {
            "roles": len(ROLES),
            "models": [
                (role, model or _OWN_MODEL, *map(self._sampling, [role] * 3, _SAMPLING))
                for role, model in context.models.items()
            ],
            "changes": [
                (d.key, value_text(d.old), value_text(d.new))
                for d in differences(context.defaults, context.header.settings, HIDDEN)
                if d.new is not None or context.setting(d.key) is None
            ][:_MOST_SETTINGS],
            "prints": context.header.fingerprints,
        }

    def _sampling(self, role: str, key: str) -> str:
        value = self.context.setting(f"roles.{role}.{key}")
        return "server's own" if value is None else f"{value:g}"


_SAMPLING = ("temperature", "top_p", "max_tokens")


def value_text(value: object) -> str:
    """A setting's value as a report may show it."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shorten(without_credentials(text), _VALUE)
