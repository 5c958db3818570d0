"""The report of a run: one HTML file that needs nothing beside it and calls nobody."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from promptcodebook.errors import DiskFull
from promptcodebook.paths import write_whole
from promptcodebook.report.assets import read_script, read_style
from promptcodebook.report.codebook import CodebookSection, RoutingSection, TheorySection
from promptcodebook.report.context import Context, ReportSection, render_sections
from promptcodebook.report.curves import CurvesSection
from promptcodebook.report.examples import ExamplesSection
from promptcodebook.report.history import CandidatesSection, HistorySection, candidates_of
from promptcodebook.report.html import Html, el, together
from promptcodebook.report.judged import JudgedSection, PromptsSection, UseSection
from promptcodebook.report.operation import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.private import withhold
from promptcodebook.report.router import RouterSection, learns_routes
from promptcodebook.report.summary import VerdictSection, masthead
from promptcodebook.sqlite import store_os_error
from promptcodebook.store import RunStore


def write_report(store: RunStore, target: Path, inputs: Mapping[str, str] | None = None) -> None:
    """Writes the report to `target`, all of it or nothing. Raises StoreError and DiskFull."""
    text = render_report(store, inputs)
    try:
        write_whole(target, text)
    except OSError as error:
        fault = store_os_error(error, target)
        if not isinstance(fault, DiskFull):
            fault.hint = f"name a place you may write to: pco report {store.header.id} -o FILE"
        raise fault from error


def render_report(store: RunStore, inputs: Mapping[str, str] | None = None) -> str:
    """The report as a page; `inputs` are the examples' texts by id, where they are known.

    Of a run on private data (`Header.private`) it shows lengths in the place of such texts.

    The run's events pass by once, one at a time: memory does not grow with the run's length.
    """
    private = store.header.private
    context = Context.of(store, {} if private else inputs or {})
    sections = _sections(context)
    events = (withhold(e) if private else e for e in store.events(full=True))
    return _page(context, sections, render_sections(sections, events))


def _sections(context: Context) -> tuple[ReportSection, ...]:
    return (
        VerdictSection(context),
        UseSection(context),
        JudgedSection(context),
        PromptsSection(context),
        CurvesSection(context),
        CodebookSection(context),
        RoutingSection(context),
        *((RouterSection(context),) if learns_routes(context) else ()),
        CandidatesSection(context) if candidates_of(context) else HistorySection(context),
        ExamplesSection(context),
        IncidentsSection(context),
        SpendSection(context),
        TheorySection(context),
        SettingsSection(context),
    )


def _page(context: Context, sections: Sequence[ReportSection], body: Html) -> str:
    style, script = read_style(), read_script()
    links = [el("a", s.title, attrs={"href": f"#{s.anchor}"}) for s in sections]
    contents = el("nav", links, attrs={"aria-label": "Contents"})
    page = el(
        "html",
        el("head", _head(context.header.id, style, script)),
        el("body", masthead(context), contents, el("main", body), _raw("script", script)),
        attrs={"lang": "en"},
    )
    return f"<!doctype html>\n{page.markup}\n"


def _head(title: str, style: str, script: str) -> Html:
    # The one style sheet and the one script are allowed by their digests; other scripts, images,
    # fonts and connections are not.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return together(
        el("meta", attrs={"charset": "utf-8"}),
        el("meta", attrs={"http-equiv": "Content-Security-Policy", "content": policy}),
        el("meta", attrs={"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("meta", attrs={"name": "referrer", "content": "no-referrer"}),
        el("meta", attrs={"name": "color-scheme", "content": "light dark"}),
        el("title", f"{title} · promptcodebook"),
        _raw("style", style),
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _raw(name: str, text: str) -> Html:
    """A style sheet or script of our own, and no text of the run."""
    return Html(f"<{name}>{text}</{name}>")
