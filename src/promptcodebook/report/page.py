"""The report of a run: one HTML file that needs no other file and no network. Its last sections say
how the run was operated: what went wrong, what it cost, and under which settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from promptcodebook.base.incidents import Incident
from promptcodebook.base.paths import write_whole
from promptcodebook.base.sqlite import store_os_error
from promptcodebook.base.text import shell, shorten
from promptcodebook.base.units import spent_parts
from promptcodebook.calls import ROLES, Limits, Usage
from promptcodebook.errors import DiskFull
from promptcodebook.report import context as contexts
from promptcodebook.report import learned, traces, training, verdict
from promptcodebook.report.pages import digest, read_script, read_style, render
from promptcodebook.report.private import withhold
from promptcodebook.store.events import Broke, Compared, Event, Stepped, Validated
from promptcodebook.store.header import differences
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Failure, Rollout, Trace

_MOST_FAILURES, _MOST_SETTINGS, _TRACEBACK, _VALUE = 30, 120, 6000, 200
HIDDEN = ("roles.*.headers",)  # Headers may hold secrets, which a report must not show.


Known = Mapping[str, Example] | None  # Examples by their ids; of a run that has none at hand, None.


def write_report(store: RunStore, target: Path, known: Known = None) -> None:
    """Writes the report to `target`, all of it or nothing. Raises StoreError and DiskFull."""
    text = render_report(store, known)
    try:
        write_whole(target, text)
    except OSError as error:
        fault = store_os_error(error, target)
        if not isinstance(fault, DiskFull):
            fault.hint = f"give a writable location: pco report {shell(store.header.id)} -o FILE"
        raise fault from error


def render_report(store: RunStore, known: Known = None) -> str:
    """The report as a page. Of a run on private data (`Header.private`) it shows lengths in the
    place of texts."""
    private = store.header.private
    context = contexts.Context.of(store, {} if private else known or {})
    sections = [
        verdict.VerdictSection(context),
        learned.LearnedSection(context),
        verdict.JudgedSection(context),
        training.CurvesSection(context),
        learned.CandidatesSection(context),
        verdict.PromptsSection(context),
        traces.ExamplesSection(context),
        IncidentsSection(context),
        SpendSection(context),
        SettingsSection(context),
    ]
    events = (withhold(e) if private else e for e in store.events(full=True))
    style, script = read_style(), read_script()
    page = render(
        "report/templates/report.html.jinja",
        context=context,
        facts=contexts.facts(context),
        sections=contexts.render_sections(sections, events),
        style=Markup(style),
        script=Markup(script),
        allowed=(digest(style), digest(script)),
    )
    return str(page)


class IncidentsSection(contexts.ReportSection):
    title, anchor, folded = "Incidents", "incidents", True

    def __init__(self, context: contexts.Context) -> None:
        super().__init__(context)
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._first: tuple[str, Failure] | None = None
        self._truncated = 0

    def add(self, event: Event) -> None:
        match event:
            case Stepped(step):
                self._add("training", contexts.step_name(step.index), step.traces)
            case Broke(step, traces):
                self._add("training", f"{contexts.step_name(step)}, which failed", traces)
            case Validated(step, _, evaluation):
                self._add(
                    "validation", f"validation, {contexts.step_name(step)}", evaluation.rollouts
                )
            case Compared(evaluation):
                self._add("test", f"judging {evaluation.name}", evaluation.rollouts)
            case _:
                pass

    def _add(self, phase: str, where: str, run: Iterable[Rollout | Trace]) -> None:
        for each in run:
            rollout, later = (
                (each, None) if isinstance(each, Rollout) else (each.rollout, each.failure)
            )
            self._truncated += rollout.truncated
            for failure in filter(None, (rollout.failure, later)):
                self._failures[phase, failure.stage, failure.kind] += 1
                self._first = self._first or (f"{where}, example {rollout.example_id}", failure)

    def values(self) -> Mapping[str, Any] | None:
        if not (self._failures or self._truncated or any(self.context.tallies.values())):
            return None
        where, failure = self._first or ("", None)
        text = ""
        if failure is not None:
            text = f"{failure.stage}: {failure.kind}: {failure.message}\n\n{failure.traceback}"
        return {
            "meanings": {incident.value: incident.meaning for incident in Incident},
            "truncated": self._truncated,
            "failures": self._failures.most_common(_MOST_FAILURES),
            "where": where,
            "first": shorten(text.rstrip(), _TRACEBACK),
        }


class SpendSection(contexts.ReportSection):
    """Everything paid in all sessions. An unknown price is shown as unknown, never as 0."""

    title, anchor, folded = "Usage and cost", "cost", True

    def values(self) -> Mapping[str, Any] | None:
        context = self.context
        if not context.usage:
            return None
        limited = context.limits != Limits()
        return {
            "total": sum(context.usage.values(), Usage()),
            "of_limits": spent_parts(context.spent, context.limits) if limited else None,
        }


class SettingsSection(contexts.ReportSection):
    title, anchor, folded = "Settings", "settings", True

    def values(self) -> Mapping[str, Any]:
        context = self.context

        return {
            "roles": len(ROLES),
            "changes": [
                (d.key, value_text(d.old), value_text(d.new))
                for d in differences(context.defaults, context.header.settings, HIDDEN)
                if d.new is not None or context.setting(d.key) is None
            ][:_MOST_SETTINGS],
        }


def value_text(value: object) -> str:
    """A setting's value as a report may show it."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shorten(contexts.without_credentials(text), _VALUE)
