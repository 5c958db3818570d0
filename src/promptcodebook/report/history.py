"""What every text of Θ went through: each rewrite, its step, gradient and word-level change.

A biography runs on to the end of training; the deployed state is marked in it. Of
another optimizer: the prompts that it tried.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from promptcodebook.report.context import Context, state_name, step_name
from promptcodebook.report.html import MISSING, Column, Content, Html, el, together
from promptcodebook.store.events import Candidate, Event, Started, Stepped
from promptcodebook.text import shorten, word_changes
from promptcodebook.types import Directive, Parameters, Rewrite, Variable
from promptcodebook.units import number

FIRST, LAST, REFUSED = 6, 14, 4
"""Rewrites of one variable shown: on either side of the mark the first ones and the latest ones,
and the latest refused ones."""
_GRADIENT, _TEXT, _TITLE, _REASON = 700, 2400, 400, 300
"""Characters shown of each."""
DIRECTIVES: tuple[tuple[Directive, str, str], ...] = (
    ("encoder", "θ", "encoder: directive and selection criteria"),
    ("generator", "φ", "generator: directive and style guide"),
    ("critic", "ψ", "critic: directive and evaluation criteria"),
)


@dataclass(frozen=True, slots=True)
class _Dated:
    step: int
    rewrite: Rewrite


def _none() -> list[_Dated]:
    return []


def _latest(size: int) -> deque[_Dated]:
    return deque(maxlen=size)


@dataclass(frozen=True, slots=True)
class _Most:
    """How many rewrites of one variable are shown, on either side of the mark."""

    first: int = FIRST
    last: int = LAST
    refused: int = REFUSED


_SHARES = (_Most(), _Most(3, 5, 2), _Most(1, 2, 1), _Most(1, 1, 1))
"""Fewer where the section would be too large to be mailed."""
MOST_MARKUP = 5_000_000
"""Characters that the section may have."""


@dataclass
class _Stretch:
    """Kept rewrites in order: all are counted, the first and the latest remembered."""

    first: list[_Dated] = field(default_factory=_none)
    last: deque[_Dated] = field(default_factory=lambda: _latest(LAST))
    count: int = 0

    def add(self, dated: _Dated) -> None:
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(dated)
        else:
            self.last.append(dated)

    def left_out(self, most: _Most) -> int:
        return self.count - len(self.first[: most.first]) - len(self._latest(most))

    def entries(self, look: str, most: _Most) -> list[Content]:
        """List items, with one for what was left out."""
        missing = self.left_out(most)
        return [
            [kept_entry(d.step, d.rewrite, look) for d in self.first[: most.first]],
            el("li.gap", f"{_rewrites(missing)} left out") if missing else None,
            [kept_entry(d.step, d.rewrite, look) for d in self._latest(most)],
        ]

    def _latest(self, most: _Most) -> list[_Dated]:
        """The latest of those that are not among the first shown."""
        return [*self.first[most.first :], *self.last][-most.last :]


@dataclass
class _Biography:
    """A bounded memory of one variable, up to the deployed state and after it, with full counts."""

    deployed: _Stretch = field(default_factory=_Stretch)
    later: _Stretch = field(default_factory=_Stretch)
    refused: deque[_Dated] = field(default_factory=lambda: _latest(REFUSED))
    reasons: Counter[str] = field(default_factory=lambda: Counter[str]())

    def refuse(self, dated: _Dated) -> None:
        self.reasons[_kind(dated.rewrite.reason)] += 1
        self.refused.append(dated)

    def left_out(self, most: _Most) -> int:
        return self.deployed.left_out(most) + self.later.left_out(most)

    def tally(self) -> str:
        """'5 kept (2 not deployed), 1 refused'."""
        kept, refused = self.deployed.count + self.later.count, self.reasons.total()
        later = f" ({self.later.count} not deployed)" if self.later.count else ""
        words = [f"{kept} kept{later}" if kept else "never rewritten"]
        words += [f"{refused} refused"] if refused else []
        return ", ".join(words)


class HistorySection:
    """Θ over time: every c_k, θ, φ and ψ."""

    title = "What changed"
    anchor = "history"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._deployed = context.deployed.step if context.deployed else -1
        self._biographies: dict[Variable, _Biography] = {}
        self._start: Parameters | None = None

    def add(self, event: Event) -> None:
        match event:
            case Started(parameters, _):
                self._start = parameters
            case Stepped(step):
                for rewrite in step.rewrites:
                    self._add_rewrite(_Dated(step.index, rewrite))
            case _:
                pass

    def _add_rewrite(self, dated: _Dated) -> None:
        biography = self._biographies.setdefault(dated.rewrite.variable, _Biography())
        if not dated.rewrite.kept:
            biography.refuse(dated)
        elif dated.step <= self._deployed:
            biography.deployed.add(dated)
        else:
            biography.later.add(dated)

    def render(self) -> Html:
        start = self._start
        if start is None:
            return el("p.empty", "This run has no codebook.")
        shown = self._shown(start, _SHARES[0])
        for most in _SHARES[1:]:
            if len(shown.markup) > MOST_MARKUP:
                shown = self._shown(start, most)
        return shown

    def _shown(self, start: Parameters, most: _Most) -> Html:
        texts = {"encoder": start.encoder, "generator": start.generator, "critic": start.critic}
        return together(
            el("p.note", self._sum(most)),
            el("h3", "Instincts"),
            [self._instinct(k, text, most) for k, text in enumerate(start.codebook.texts)],
            el("h3", "Directives"),
            [
                self._details(v, together(el("b.index", symbol), words), texts[v], most)
                for v, symbol, words in DIRECTIVES
            ],
        )

    def _sum(self, most: _Most) -> str:
        each = self._biographies.values()
        kept = sum(b.deployed.count + b.later.count for b in each)
        later = sum(b.later.count for b in each)
        refused = sum(b.reasons.total() for b in each)
        left_out = sum(b.left_out(most) for b in each)
        words = [f"{kept:,} rewrites were kept and {refused:,} refused."]
        if later:
            words.append(
                f"Deployed is {state_name(self._deployed)}: {_rewrites(later)} made after it "
                f"{'is' if later == 1 else 'are'} below the mark."
            )
        if left_out:
            words.append(
                f"Of a variable that changed often, the first {most.first} and the latest "
                f"{most.last} are shown, before the mark and after it; {left_out:,} between them "
                "are left out here and kept in the run."
            )
        return " ".join(words)

    def _instinct(self, k: int, origin: str, most: _Most) -> Html:
        text = el("span.text", shorten(self._context.codebook[k].text, _TITLE))
        return self._details(k, together(el("b.index", k), text), origin, most)

    def _details(self, variable: Variable, title: Content, origin: str, most: _Most) -> Html:
        biography = self._biographies.get(variable, _Biography())
        timeline: list[Content] = [
            el("li", el("b.when", "at first"), el("blockquote", shorten(origin, _TEXT))),
            biography.deployed.entries("li", most),
            self._mark(variable),
            biography.later.entries("li.later", most),
        ]
        return el(
            "details.history",
            el("summary", el("span.what", title), el("span.tally", biography.tally())),
            el("ol.timeline", timeline),
            _refusals(biography.reasons, list(biography.refused)[-most.refused :]),
        )

    def _mark(self, variable: Variable) -> Html | None:
        """The mark of the deployed state. ψ has none: no policy carries it."""
        if variable == "critic":
            return None
        return el("li.deployed", f"deployed up to here ({state_name(self._deployed)})")


def word_diff(before: str, after: str) -> Html:
    """The new text with what was added in `ins` and what was taken out in `del`."""
    tags = {"added": "ins", "removed": "del"}
    return together(
        [
            piece if change == "same" else el(tags[change], piece)
            for change, piece in word_changes(before, after)
        ]
    )


def kept_entry(step: int, rewrite: Rewrite, look: str = "li", beside: Content = None) -> Html:
    """A rewrite that was kept, as an item of a timeline: what changed, and why; `beside` its
    date."""
    before, after = shorten(rewrite.before, _TEXT), shorten(rewrite.after, _TEXT)
    return el(
        look,
        el("b.when", step_name(step)),
        beside,
        _tidied(rewrite),
        el("blockquote.diff", word_diff(before, after)),
        _gradient(rewrite.gradient),
    )


def refused_entry(step: int, rewrite: Rewrite) -> Html:
    """A rewrite that was refused, as an item of a timeline: the text, and why."""
    return el(
        "li",
        el("b.when", step_name(step)),
        el("p.reason", f"refused: {shorten(rewrite.reason or 'no reason given', _REASON)}"),
        el("blockquote.refused", shorten(rewrite.after, _TEXT) or "(no text)"),
        _gradient(rewrite.gradient),
    )


def _tidied(rewrite: Rewrite) -> Html | None:
    """Why the maintenance of the codebook wrote it, where no gradient did."""
    if rewrite.origin == "gradient":
        return None
    return el("p.reason", f"{rewrite.origin}: {shorten(rewrite.reason, _REASON)}")


def _refusals(reasons: Counter[str], latest: Sequence[_Dated]) -> Html | None:
    if not reasons:
        return None
    kinds = [el("li", f"{n} × {kind}") for kind, n in reasons.most_common(6)]
    entries = [refused_entry(dated.step, dated.rewrite) for dated in latest]
    return el(
        "details.refusals",
        el("summary", f"{reasons.total()} refused"),
        el("ul", kinds),
        el("ol.timeline", entries),
    )


def _gradient(text: str) -> Html | None:
    if not text:
        return None
    return el("div.gradient", el("b", "gradient"), el("p.pre", shorten(text, _GRADIENT)))


def _kind(reason: str) -> str:
    """The reason up to its first colon, so that equal kinds are counted together."""
    return shorten(reason.partition(":")[0].strip() or "no reason given", 120)


def _rewrites(count: int) -> str:
    return f"{count:,} rewrite" if count == 1 else f"{count:,} rewrites"


def candidates_of(context: Context) -> tuple[Candidate, ...]:
    """What another optimizer tried, once there is a verdict; () of ours."""
    concluded = context.state.conclusion
    return concluded.candidates if concluded is not None else ()


class CandidatesSection:
    """What another optimizer tried, as its verdict has it."""

    title = "Prompts tried"
    anchor = "candidates"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """The conclusion is part of the run's state: nothing to gather."""

    def render(self) -> Html:
        rows: list[tuple[Content, ...]] = [
            (
                n,
                number(each.score, missing=MISSING),
                each.n,
                each.rollouts,
                together(
                    el("span.tag", "kept") if each.kept else None,
                    el("p.pre", shorten(each.prompt, _TEXT)),
                ),
            )
            for n, each in enumerate(candidates_of(self._context), 1)
        ]
        columns = ("#", "validation score", "examples of it", "rollouts")
        return self._context.table(
            "The prompts that the optimizer ran, in order. The score is the mean reward on those "
            "examples of the validation split that a prompt was run on (of the training split "
            "where there is no other); one that was run on few of them was given up early.",
            (*map(Column, columns), Column("prompt", numeric=False)),
            rows,
        )
