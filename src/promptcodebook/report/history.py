"""What every text of Θ went through: each rewrite, its step, gradient and word-level change, with
the deployed state marked. Of another optimizer: the prompts that it tried."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

from promptcodebook.base.text import shorten
from promptcodebook.report.context import Context, ReportSection, state_name, step_name
from promptcodebook.report.pages import render
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.types import Parameters, Rewrite, Variable

FIRST, LAST, REFUSED = 6, 14, 4  # Rewrites of a variable shown, on either side of the mark.
MOST_MARKUP = 5_000_000  # Characters that the section may have.


class _Most(NamedTuple):
    first: int
    last: int
    refused: int


# Fewer where the section would be too large to be mailed.
_SHARES = (_Most(FIRST, LAST, REFUSED), _Most(3, 5, 2), _Most(1, 2, 1), _Most(1, 1, 1))
_Dated = tuple[int, Rewrite]  # A rewrite with its step.


@dataclass
class _Stretch:
    """Kept rewrites: all are counted, the first and the latest remembered."""

    first: list[_Dated] = field(default_factory=list[_Dated])
    last: deque[_Dated] = field(default_factory=lambda: deque[_Dated](maxlen=LAST))
    count: int = 0

    def add(self, dated: _Dated) -> None:
        self.count += 1
        (self.first if len(self.first) < FIRST else self.last).append(dated)

    def shown(self, most: _Most) -> tuple[list[_Dated], int, list[_Dated]]:
        """The first, how many are left out, and the latest."""
        first = self.first[: most.first]
        latest = [*self.first[most.first :], *self.last][-most.last :]
        return first, self.count - len(first) - len(latest), latest


@dataclass
class _Biography:
    """One variable up to the deployed state and after it."""

    deployed: _Stretch = field(default_factory=_Stretch)
    later: _Stretch = field(default_factory=_Stretch)
    refused: deque[_Dated] = field(default_factory=lambda: deque[_Dated](maxlen=REFUSED))
    reasons: Counter[str] = field(default_factory=lambda: Counter[str]())

    def add(self, dated: _Dated, *, deployed: bool) -> None:
        if dated[1].kept:
            (self.deployed if deployed else self.later).add(dated)
            return
        # Up to the first colon, so that equal kinds are counted together.
        kind = dated[1].reason.partition(":")[0].strip() or "no reason given"
        self.reasons[shorten(kind, 120)] += 1
        self.refused.append(dated)

    def tally(self) -> str:
        """'5 kept (2 not deployed), 1 refused'."""
        kept, refused = self.deployed.count + self.later.count, self.reasons.total()
        later = f" ({self.later.count} not deployed)" if self.later.count else ""
        words = [f"{kept} kept{later}" if kept else "never rewritten"]
        words += [f"{refused} refused"] if refused else []
        return ", ".join(words)


class HistorySection(ReportSection):
    """Every text over time: the instincts and the three directives."""

    title, anchor = "What changed", "history"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deployed = context.deployed_as.step
        self._biographies: dict[Variable, _Biography] = {}
        self._start: Parameters | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start = event.parameters
        if isinstance(event, Stepped):
            step = event.step
            for rewrite in step.rewrites:
                biography = self._biographies.setdefault(rewrite.variable, _Biography())
                biography.add((step.index, rewrite), deployed=step.index <= self._deployed)

    def render(self) -> Markup:
        shown = Markup()
        for most in _SHARES:
            shown = self._shown(most)
            if len(shown) <= MOST_MARKUP:
                break
        return shown

    def _shown(self, most: _Most) -> Markup:
        texts = self._start.texts if self._start else {}
        return render(
            "report/templates/history.html.jinja",
            context=self.context,
            texts=texts,
            most=most,
            deployed=state_name(self._deployed),
            biographies={v: self._biographies.get(v, _Biography()) for v in texts},
            step_name=step_name,
        )


class CandidatesSection(ReportSection):
    title, anchor = "Prompts tried", "candidates"


def candidate_sections(context: Context) -> list[ReportSection]:
    """Of a run of another optimizer, once there is a verdict."""
    concluded = context.state.conclusion
    return [CandidatesSection(context)] if concluded is not None and concluded.candidates else []
