"""The screen of one run: its verdict, curves, test examples, spending and failures, as the report
has them; and the tabs of all screens of a run."""

from __future__ import annotations

from collections.abc import Iterator

from promptcodebook.report.codebook import TheorySection
from promptcodebook.report.context import ReportSection, render_sections
from promptcodebook.report.curves import CurvesSection
from promptcodebook.report.history import CandidatesSection, candidates_of
from promptcodebook.report.html import Content
from promptcodebook.report.judged import JudgedSection, PromptsSection, UseSection
from promptcodebook.report.operation import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.router import RouterSection, learns_routes
from promptcodebook.report.summary import VerdictSection, facts
from promptcodebook.store import Compared, Event
from promptcodebook.viewer.frame import ALL_SIMULATED, Screen, address
from promptcodebook.viewer.watched import Look, Watched


def run_screen(watched: Watched) -> Screen:
    """The run as it stands now."""
    look = watched.look()
    context = look.context
    sections: list[ReportSection] = [VerdictSection(context), CurvesSection(context)]
    sections += [RouterSection(context)] if learns_routes(context) else []
    sections += [CandidatesSection(context)] if candidates_of(context) else []
    sections += [
        JudgedSection(context),
        PromptsSection(context),
        SpendSection(context),
        IncidentsSection(context),
        UseSection(context),
        TheorySection(context),
        SettingsSection(context),
    ]
    body = [facts(context), render_sections(sections, with_tests(watched, look))]
    return screen_of(look, look.context.header.name or look.context.header.id, body)


def with_tests(watched: Watched, look: Look) -> Iterator[Event]:
    """The run's events, the rows of its present verdict with their texts."""
    rows = watched.tests()
    for event in look.events:
        if not isinstance(event, Compared):
            yield event
    for row in rows:
        yield Compared(row)


def screen_of(
    look: Look, title: str, body: Content, above: tuple[tuple[str, str], ...] = ()
) -> Screen:
    """A screen of this run, which follows it while it is written; `above` are those between."""
    key, header = look.key, look.context.header
    own = header.name or header.id
    places = [("Runs", "/"), *([(own, address("run", key))] if title != own else []), *above]
    tabs = (
        ("Run", address("run", key)),
        ("Codebook", address("run", key, "codebook")),
        ("Examples", address("run", key, "examples")),
    )
    return Screen(
        title,
        body,
        above=places,
        tabs=tabs,
        live=address("live", "run", key),
        mark=look.mark,
        simulated=ALL_SIMULATED if look.context.simulated else "",
    )
