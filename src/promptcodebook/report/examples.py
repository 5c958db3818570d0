"""A seeded handful of training rollouts, one of each kind, each with its whole trace."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from promptcodebook.randomness import keyed_int
from promptcodebook.report.context import Context
from promptcodebook.report.html import Html, el, together
from promptcodebook.report.traces import reward_text, trace_body
from promptcodebook.step import Step
from promptcodebook.store import Event, Stepped
from promptcodebook.types import Codebook, Trace

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
