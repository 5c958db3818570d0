"""The report of a run: one HTML file that needs no other file and no network.

A seeded handful of training rollouts, one of each kind, each with its whole trace.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from promptcodebook.errors import DiskFull
from promptcodebook.paths import write_whole
from promptcodebook.randomness import keyed_int
from promptcodebook.report.codebook import CodebookSection, RoutingSection, TheorySection
from promptcodebook.report.context import Context, Section, render_sections
from promptcodebook.report.curves import CurvesSection
from promptcodebook.report.history import CandidatesSection, HistorySection, candidates_of
from promptcodebook.report.judged import JudgedSection, PromptsSection, UseSection
from promptcodebook.report.operation import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.pages import digest, read_asset, read_style, render
from promptcodebook.report.private import withhold
from promptcodebook.report.router import RouterSection, learns_routes
from promptcodebook.report.summary import VerdictSection, facts
from promptcodebook.report.traces import parts_of_trace, reward_text
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


class ExamplesSection(Section):
    """Keeps a few candidates of each kind while the steps pass by."""

    title = "Training examples"
    anchor = "examples"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
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
        draw = keyed_int(self.context.seed, "report", step, trace.rollout.example_id)
        for bucket in self._buckets:
            rank = bucket.rank(trace)
            if rank is not None:
                bucket.offer(draw, rank, sample)

    def values(self) -> Mapping[str, Any]:
        inputs, own = self.context.inputs, self.context.own_words
        return {
            "examples": [
                {
                    "kind": kind,
                    "name": trace.rollout.example_id,
                    "tally": f"step {sample.step + 1}, {reward_text(trace.rollout)}",
                    "parts": parts_of_trace(
                        trace, inputs.get(trace.rollout.example_id), sample.instincts, own
                    ),
                }
                for kind, sample in self._choose()
                for trace in (sample.trace,)
            ]
        }

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
    style, script = read_style(), read_asset("chart.js")
    page = render(
        "report/templates/report.html.jinja",
        context=context,
        facts=facts(context),
        sections=sections,
        body=render_sections(sections, events),
        style=Markup(style),
        script=Markup(script),
        allowed=(digest(style), digest(script)),
    )
    return str(page)


def _sections(context: Context) -> tuple[Section, ...]:
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
