"""What every variable said over time: each rewrite, its step, gradient and word-level change."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from promptcodebook.report.context import Context
from promptcodebook.report.diff import word_diff
from promptcodebook.report.figures import count, shorten, step_name
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.store import Event, Started, Stepped
from promptcodebook.types import Parameters, Rewrite

__all__ = ["HistorySection"]

FIRST, LAST, REFUSED = 6, 14, 4
"""Rewrites of one variable shown: the first ones, the latest ones, and the latest refused ones."""
_GRADIENT = 700
_TEXT = 2400
_DIRECTIVES = (
    ("encoder", "θ", "encoder: directive and selection criteria"),
    ("generator", "φ", "generator: directive and style guide"),
    ("critic", "ψ", "critic: directive and evaluation criteria"),
)


@dataclass(frozen=True, slots=True)
class _Dated:
    step: int
    rewrite: Rewrite


def _latest(size: int) -> deque[_Dated]:
    return deque(maxlen=size)


@dataclass
class _Variable:
    """A bounded memory of one variable, with full counts."""

    first: list[_Dated] = field(default_factory=lambda: list[_Dated]())
    last: deque[_Dated] = field(default_factory=lambda: _latest(LAST))
    refused: deque[_Dated] = field(default_factory=lambda: _latest(REFUSED))
    reasons: Counter[str] = field(default_factory=lambda: Counter[str]())
    kept: int = 0

    def add(self, dated: _Dated) -> None:
        if not dated.rewrite.kept:
            self.reasons[_reason(dated.rewrite.reason)] += 1
            self.refused.append(dated)
            return
        self.kept += 1
        if len(self.first) < FIRST:
            self.first.append(dated)
        else:
            self.last.append(dated)

    @property
    def left_out(self) -> int:
        return self.kept - len(self.first) - len(self.last)


class HistorySection:
    """Θ over time: θ, φ, ψ and every c_k."""

    title = "What changed"
    anchor = "history"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._variables: dict[str, _Variable] = {}
        self._start: Parameters | None = None

    def see(self, event: Event) -> None:
        match event:
            case Started(parameters, _):
                self._start = parameters
            case Stepped(step):
                for rewrite in step.rewrites:
                    memory = self._variables.setdefault(rewrite.variable, _Variable())
                    memory.add(_Dated(step.index, rewrite))
            case _:
                pass

    def html(self) -> Html:
        start = self._start
        if start is None:
            return el("p.empty", "The run ended before it had a codebook.")
        texts = {"encoder": start.encoder, "generator": start.generator, "critic": start.critic}
        directives = [
            self._details(variable, together(el("b.index", symbol), words), texts[variable])
            for variable, symbol, words in _DIRECTIVES
        ]
        instincts = [
            self._details(f"c{k}", together(el("b.index", k), self._now(k)), text)
            for k, text in enumerate(start.codebook.texts)
        ]
        return together(
            el("p.note", self._sum()),
            el("h3", "Instincts"),
            instincts,
            el("h3", "Directives"),
            directives,
        )

    def _sum(self) -> str:
        kept = sum(v.kept for v in self._variables.values())
        refused = sum(v.reasons.total() for v in self._variables.values())
        said = f"{count(kept)} rewrites were kept and {count(refused)} refused."
        deployed = self._context.kept
        if deployed is not None and deployed.step < self._context.state.step:
            said += f" The policy that is deployed is the one {_after(deployed.step)}."
        hidden = sum(v.left_out for v in self._variables.values())
        if not hidden:
            return said
        return (
            f"{said} Of a variable that changed often the first {FIRST} and the latest {LAST} "
            f"are shown; {count(hidden)} between them are left out here and kept in the run."
        )

    def _now(self, k: int) -> Content:
        return el("span.text", shorten(self._context.codebook[k].text, 400))

    def _details(self, variable: str, title: Content, origin: str) -> Html:
        memory = self._variables.get(variable, _Variable())
        refused = memory.reasons.total()
        tally = f"{memory.kept} kept" if memory.kept else "never rewritten"
        tally += f", {refused} refused" if refused else ""
        body: list[Content] = [
            el("li", el("b.when", "at first"), el("blockquote", shorten(origin, _TEXT))),
            [_entry(dated) for dated in memory.first],
            el("li.gap", f"{count(memory.left_out)} rewrites left out")
            if memory.left_out
            else None,
            [_entry(dated) for dated in memory.last],
        ]
        return el(
            "details.history",
            el("summary", el("span.what", title), el("span.tally", tally)),
            el("ol.timeline", body),
            _refusals(memory.reasons, memory.refused),
        )


def _entry(dated: _Dated) -> Html:
    rewrite = dated.rewrite
    return el(
        "li",
        el("b.when", step_name(dated.step)),
        el("blockquote.diff", word_diff(_cut(rewrite.before), _cut(rewrite.after))),
        _gradient(rewrite.gradient),
    )


def _refusals(reasons: Counter[str], latest: Sequence[_Dated]) -> Html | None:
    if not reasons:
        return None
    listed = [el("li", f"{n} × {reason}") for reason, n in reasons.most_common(6)]
    shown = [
        el(
            "li",
            el("b.when", step_name(dated.step)),
            el("p.reason", f"refused: {shorten(dated.rewrite.reason or 'no reason given', 300)}"),
            el("blockquote.refused", _cut(dated.rewrite.after) or "(no text)"),
            _gradient(dated.rewrite.gradient),
        )
        for dated in latest
    ]
    return el(
        "details.refusals",
        el("summary", f"{reasons.total()} refused"),
        el("ul", listed),
        el("ol.timeline", shown),
    )


def _gradient(text: str) -> Html | None:
    if not text:
        return None
    return el("div.gradient", el("b", "gradient"), el("p.pre", shorten(text, _GRADIENT)))


def _after(step: int) -> str:
    return "before any of them" if step < 0 else f"after {step_name(step)}"


def _cut(text: str) -> str:
    return shorten(text, _TEXT)


def _reason(reason: str) -> str:
    """The reason up to its first colon, so that equal kinds are counted together."""
    return shorten(reason.partition(":")[0].strip() or "no reason given", 120)
