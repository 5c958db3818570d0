"""E_θ: route an input to S distinct instincts (Eq. 3).

Deviation: a reply that is not a valid route is re-asked once with its fault quoted; then the valid
picks are kept and the rest filled by highest r̄, ties by lowest index (method decision 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.errors import ParseError, TruncatedReply
from promptcodebook.lm.base import Request
from promptcodebook.lm.structured import Ask
from promptcodebook.method.draws import Draws
from promptcodebook.method.replies import RouteReply
from promptcodebook.method.shown import codebook_lines
from promptcodebook.method.templates import Templates
from promptcodebook.types import Codebook, Message, Route, Tally, Usage

__all__ = ["Encoder", "Standing", "repair_route", "route_fault"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the codebook's entries have done, each of length K: r̄, the EMA of r, and counts."""

    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]

    @classmethod
    def fresh(cls, size: int) -> Standing:
        """Algorithm 1, line 2: r̄_k = 0 for all k."""
        return cls((0.0,) * size, (0.0,) * size, (0,) * size)


def route_fault(indices: Sequence[int], size: int, select: int) -> str | None:
    """What is wrong with a route, in words fit to quote; None for S distinct indices in range."""
    faults: list[str] = []
    outside = sorted({i for i in indices if not 0 <= i < size})
    if outside:
        faults.append(f"{outside} lie outside 0..{size - 1}")
    if len(set(indices)) < len(indices):
        faults.append("an index is named twice")
    if len(set(indices) - set(outside)) != select:
        faults.append(f"{len(set(indices) - set(outside))} valid indices instead of {select}")
    return "selected_indices: " + "; ".join(faults) if faults else None


def repair_route(indices: Sequence[int], ema: Sequence[float], select: int) -> tuple[int, ...]:
    """S valid distinct sorted indices: the valid picks in order, then the highest r̄."""
    picks = list(dict.fromkeys(i for i in indices if 0 <= i < len(ema)))[:select]
    by_rate = sorted((k for k in range(len(ema)) if k not in picks), key=lambda k: (-ema[k], k))
    return tuple(sorted([*picks, *by_rate[: select - len(picks)]]))


class Encoder:
    """Routes by asking a model; counts repairs and fallbacks."""

    def __init__(self, ask: Ask, templates: Templates, select: int, tally: Tally) -> None:
        self._ask = ask
        self._templates = templates
        self._select = select
        self._tally = tally

    def messages(
        self, theta: str, codebook: Codebook, standing: Standing, task: str
    ) -> tuple[Message, ...]:
        """The chat; with our templates all but the input is a prefix shared by every input."""
        paper = self._templates.name == "paper"
        shown = standing.ema if paper else standing.success
        rates = [r if n else None for r, n in zip(shown, standing.selected, strict=True)]
        values = {
            "theta": theta,
            "select": self._select,
            "size": len(codebook),
            "last": len(codebook) - 1,
            "codebook": codebook_lines(codebook, rates, self._templates.name),
            "task": task,
        }
        return self._templates["encoder"].fill(values)

    async def route(
        self, theta: str, codebook: Codebook, standing: Standing, task: str, draws: Draws
    ) -> tuple[Route, Usage]:
        """z = E_θ(x, C). Raises LMError only when the model cannot be reached."""
        size = len(codebook)
        request = Request(
            role="encoder",
            messages=self.messages(theta, codebook, standing, task),
            sample=draws.sample("route"),
        )
        try:
            answer = await self._ask.typed(
                request,
                RouteReply,
                lambda reply: route_fault(reply.selected_indices, size, self._select),
            )
        except (ParseError, TruncatedReply):
            self._tally("route_repairs")
            self._tally("route_fallbacks")
            best = repair_route((), standing.ema, self._select)
            return Route(best, repaired=True, fallback=True), Usage()
        reply = answer.value
        if answer.reasked:
            self._tally("route_repairs")
        if answer.fault is not None:
            self._tally("route_fallbacks")
        route = Route(
            indices=repair_route(reply.selected_indices, standing.ema, self._select),
            repaired=answer.reasked,
            fallback=answer.fault is not None,
            constraints=tuple(reply.constraints),
            analysis=reply.analysis,
        )
        return route, answer.usage
