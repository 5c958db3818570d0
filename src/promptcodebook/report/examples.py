"""A seeded handful of training rollouts, from the best to the failed, each with its whole trace."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from promptcodebook.randomness import keyed_int
from promptcodebook.report.context import Context
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.step import Step
from promptcodebook.store import Event, Stepped
from promptcodebook.text import shorten
from promptcodebook.types import Codebook, Gradients, Trace
from promptcodebook.units import number

__all__ = ["MOST", "ExamplesSection"]

MOST = 12
_LONG, _SHORT = 4000, 1500


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
    share: int
    rank: Callable[[Trace], float | None]
    best: list[tuple[float, int, _Sample]] = field(
        default_factory=lambda: list[tuple[float, int, _Sample]]()
    )

    def offer(self, draw: int, rank: float, sample: _Sample) -> None:
        insort(self.best, (rank, draw, sample), key=lambda entry: entry[:2])
        del self.best[MOST:]


class ExamplesSection:
    """Keeps at most a dozen candidates of each kind while the steps pass by."""

    title = "Examples"
    anchor = "examples"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._codebook: Codebook | None = None
        self._buckets = (
            _Bucket("failed", 2, _rank_failed),
            _Bucket("worst", 3, lambda t: t.rollout.reward),
            _Bucket("explored route", 2, _rank_explored),
            _Bucket("encoder's route", 2, _rank_routed),
            _Bucket("best", 3, lambda t: None if t.rollout.reward is None else -t.rollout.reward),
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
        """Each bucket's share, no input twice. Failures choose first and are shown last."""
        groups: list[list[tuple[str, _Sample]]] = []
        used: set[str] = set()
        for bucket in self._buckets:
            group: list[tuple[str, _Sample]] = []
            for _, _, sample in bucket.best:
                example = sample.trace.rollout.example_id
                if example not in used and len(group) < bucket.share:
                    used.add(example)
                    group.append((bucket.name, sample))
            groups.append(group)
        return [entry for group in reversed(groups) for entry in group]

    def _example(self, kind: str, sample: _Sample) -> Html:
        rollout = sample.trace.rollout
        reward = "failed" if rollout.reward is None else f"reward {number(rollout.reward, 2)}"
        summary = el(
            "summary",
            el("span.what", el("span.tag", kind), " ", rollout.example_id),
            el("span.tally", f"step {sample.step + 1}, {reward}"),
        )
        return el("details.example", summary, self._body(sample))

    def _body(self, sample: _Sample) -> Html:
        trace, rollout = sample.trace, sample.trace.rollout
        known = self._context.inputs.get(rollout.example_id)
        parts: list[Content] = [
            _part("input", None if known is None else _pre(known)),
            _part("route", _route(trace)),
            _part("instincts", _instincts(sample)),
            _part("prompt", _pre(rollout.prompt)),
            [_part(f"stage {s.name}", _stage(s.input, s.output)) for s in rollout.stages[:8]],
            _part("output", _pre(rollout.output)),
            _part("truncated", "the output was cut at its length cap" if rollout.truncated else ""),
            _part("feedback", _pre(rollout.feedback, _SHORT)),
            _part("verdict", _verdict(trace)),
            _gradients(trace.gradients),
            _part("failure", _failure(trace)),
        ]
        return el("dl.trace", parts)


def _part(name: str, body: Content) -> Html | None:
    if body is None or body == "":
        return None
    return el("div", el("dt", name), el("dd", body))


def _pre(text: str, limit: int = _LONG) -> Html | None:
    return el("p.pre", shorten(text, limit)) if text else None


def _route(trace: Trace) -> Html | None:
    route = trace.rollout.route
    if route is None:
        return None
    how = ["explored" if route.explored else "chosen by the encoder"]
    how += ["repaired"] if route.repaired else []
    how += ["partly filled in"] if route.fallback else []
    how += [route.fault] if route.fault else []
    lines = [f"{', '.join(map(str, route.indices))} ({', '.join(how)})"]
    lines += [f"constraints: {'; '.join(route.constraints)}"] if route.constraints else []
    lines += [route.analysis] if route.analysis else []
    return el("p.pre", shorten("\n".join(lines), _SHORT))


def _instincts(sample: _Sample) -> Html | None:
    if not sample.instincts:
        return None
    return el("ul.plain", [el("li", el("b.index", k), text) for k, text in sample.instincts])


def _stage(asked: str, answered: str) -> Html:
    return el("p.pre", f"{shorten(asked, _SHORT)}\n→ {shorten(answered, _SHORT)}")


def _verdict(trace: Trace) -> Html | None:
    if trace.verdict is None:
        return None
    figures = f"critic {number(trace.verdict.score, 2)}, penalty ρ {number(trace.penalty, 2)}"
    return together(el("p", figures), _pre(trace.verdict.feedback, _SHORT))


def _gradients(gradients: Gradients) -> list[Content]:
    named = [("g θ", gradients.encoder), ("g φ", gradients.generator)]
    named += [(f"g c{k}", text) for k, text in gradients.codebook.items()]
    named += [("g ψ", gradients.critic)]
    return [_part(name, _pre(text, _SHORT)) for name, text in named]


def _failure(trace: Trace) -> Html | None:
    failure = trace.rollout.failure or trace.failure
    if failure is None:
        return None
    return el("p.pre", shorten(f"{failure.stage}: {failure.kind}: {failure.message}", _SHORT))


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
