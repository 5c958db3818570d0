"""The report of a run: one HTML file that needs no other file and no network.

A seeded handful of training rollouts, one of each kind, each with its whole trace.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptcodebook.errors import DiskFull
from promptcodebook.paths import write_whole
from promptcodebook.randomness import keyed_int
from promptcodebook.report.codebook import CodebookSection, RoutingSection, TheorySection
from promptcodebook.report.context import Context, ReportSection, render_sections
from promptcodebook.report.curves import CurvesSection
from promptcodebook.report.history import CandidatesSection, HistorySection, candidates_of
from promptcodebook.report.html import Html, el, read_script, read_style, together
from promptcodebook.report.judged import JudgedSection, PromptsSection, UseSection
from promptcodebook.report.operation import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.private import withhold
from promptcodebook.report.router import RouterSection, learns_routes
from promptcodebook.report.summary import VerdictSection, masthead
from promptcodebook.report.traces import reward_text, trace_body
from promptcodebook.sqlite import store_os_error
from promptcodebook.store.events import Event, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Step, Trace

MOST = 5


@dataclass(frozen=True, slots=True)
class _Sample:
    """A trace, and the codebook's texts that it was routed over (before the step's rewrites)."""

    step: int
    trace: Trace
    instincts: tuple[tuple[int, str], ...]


@dataclass
class _Bucket:
    """The candidates that rank first; ties go by a draw keyed by seed, step and example."""

    name: str
    rank: Callable[[Trace], float | None]
    best: list[tuple[float, int, _Sample]] = field(
        default_factory=lambda: list[tuple[float, int, _Sample]]()
    )

    def offer(self, draw: int, rank: float, sample: _Sample) -> None:
        insort(self.best, (rank, draw, sample), key=lambda entry: entry[:2])
        del self.best[MOST:]


class ExamplesSection:
    """Keeps a few candidates of each kind while the steps pass by."""

    title = "Training examples"
    anchor = "examples"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._codebook: Codebook | None = None
        self._buckets = (
            _Bucket("failed", _rank_failed),
            _Bucket("worst", lambda t: t.rollout.reward),
            _Bucket("explored route", _rank_explored),
            _Bucket("encoder's route", _rank_routed),
            _Bucket("best", lambda t: None if t.rollout.reward is None else -t.rollout.reward),
        )

    def add(self, event: Event) -> None:
        if not isinstance(event, Stepped):
            return
        before = self._codebook or _before(event.step)
        for trace in event.step.traces:
            self._offer(event.step.index, trace, before)
        self._codebook = event.step.parameters.codebook

    def _offer(self, step: int, trace: Trace, codebook: Codebook) -> None:
        route = trace.rollout.route
        indices = () if route is None else route.indices
        texts = tuple((k, codebook[k].text) for k in indices if k < len(codebook))
        sample = _Sample(step, trace, texts)
        draw = keyed_int(self._context.seed, "report", step, trace.rollout.example_id)
        for bucket in self._buckets:
            rank = bucket.rank(trace)
            if rank is not None:
                bucket.offer(draw, rank, sample)

    def render(self) -> Html:
        chosen = self._choose()
        if not chosen:
            return el("p.empty", "No step was finished, so there is nothing to show.")
        note = (
            f"{len(chosen)} training rollouts, chosen by rank and seed. Texts that are very long "
            "are cut in their middle, and say so."
        )
        badge = " All models here are simulated." if self._context.simulated else ""
        return together(el("p.note", note + badge), [self._example(n, s) for n, s in chosen])

    def _choose(self) -> list[tuple[str, _Sample]]:
        """One of each kind, no input twice. Failures choose first and are shown last."""
        groups: list[list[tuple[str, _Sample]]] = []
        used: set[str] = set()
        for bucket in self._buckets:
            group: list[tuple[str, _Sample]] = []
            for _, _, sample in bucket.best:
                example = sample.trace.rollout.example_id
                if example not in used and not group:
                    used.add(example)
                    group.append((bucket.name, sample))
            groups.append(group)
        return [entry for group in reversed(groups) for entry in group]

    def _example(self, kind: str, sample: _Sample) -> Html:
        rollout = sample.trace.rollout
        summary = el(
            "summary",
            el("span.what", el("span.tag", kind), " ", rollout.example_id),
            el("span.tally", f"step {sample.step + 1}, {reward_text(rollout)}"),
        )
        known, own = self._context.inputs.get(rollout.example_id), self._context.own_words
        return el(
            "details.example", summary, trace_body(sample.trace, known, sample.instincts, own)
        )


def _rank_failed(trace: Trace) -> float | None:
    if trace.rollout.failure is not None:
        return 0.0
    return 1.0 if trace.failure is not None else None


def _rank_explored(trace: Trace) -> float | None:
    route = trace.rollout.route
    return 0.0 if route is not None and route.explored else None


def _rank_routed(trace: Trace) -> float | None:
    route = trace.rollout.route
    return 0.0 if route is not None and not route.explored else None


def _before(step: Step) -> Codebook:
    """The codebook that a step began with, where no earlier step is known."""
    codebook = step.parameters.codebook
    for rewrite in step.rewrites:
        if rewrite.kept and isinstance(rewrite.variable, int):
            codebook = codebook.reword(rewrite.variable, rewrite.before)
    return codebook


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
