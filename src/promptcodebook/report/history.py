"""What every text of Θ went through: each rewrite, its step, gradient and word-level change.

A biography runs on to the end of training; the deployed state is marked in it. Of
another optimizer: the prompts that it tried.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from promptcodebook.report.context import Context, Section, state_name, step_name
from promptcodebook.report.pages import render
from promptcodebook.store.events import Candidate, Event, Started, Stepped
from promptcodebook.text import shorten
from promptcodebook.types import Directive, Parameters, Rewrite, Variable

FIRST, LAST, REFUSED = 6, 14, 4
"""Rewrites of one variable shown: on either side of the mark the first ones and the latest ones,
and the latest refused ones."""
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

    def shown(self, most: _Most) -> tuple[list[_Dated], int, list[_Dated]]:
        """The first ones, how many are left out, and the latest."""
        return self.first[: most.first], self.left_out(most), self._latest(most)

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
        # Up to the first colon, so that equal kinds are counted together.
        kind = dated.rewrite.reason.partition(":")[0].strip() or "no reason given"
        self.reasons[shorten(kind, 120)] += 1
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


class HistorySection(Section):
    """Θ over time: every c_k, θ, φ and ψ."""

    title = "What changed"
    anchor = "history"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
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

    def render(self) -> Markup:
        shown = self._shown(_SHARES[0])
        for most in _SHARES[1:]:
            if len(shown) > MOST_MARKUP:
                shown = self._shown(most)
        return shown

    def _shown(self, most: _Most) -> Markup:
        start, each = self._start, self._biographies.values()
        texts: dict[Variable, str] = dict(enumerate(start.codebook.texts)) if start else {}
        if start:
            texts |= {"encoder": start.encoder, "generator": start.generator}
            texts["critic"] = start.critic
        return render(
            "report/templates/history.html.jinja",
            context=self.context,
            texts=texts,
            directives=DIRECTIVES,
            most=most,
            deployed=state_name(self._deployed),
            biographies={v: self._biographies.get(v, _Biography()) for v in texts},
            kept=sum(b.deployed.count + b.later.count for b in each),
            later=sum(b.later.count for b in each),
            refused=sum(b.reasons.total() for b in each),
            left_out=sum(b.left_out(most) for b in each),
            step_name=step_name,
        )


def candidates_of(context: Context) -> tuple[Candidate, ...]:
    """What another optimizer tried, once there is a verdict; () of ours."""
    concluded = context.state.conclusion
    return concluded.candidates if concluded is not None else ()


class CandidatesSection(Section):
    """What another optimizer tried, as its verdict has it."""

    title = "Prompts tried"
    anchor = "candidates"

    def values(self) -> Mapping[str, Any]:
        return {"candidates": candidates_of(self.context)}
