"""E_θ: route an input to S distinct instincts (Eq. 3).

Deviation: a reply that is not a valid route is re-asked once with its fault quoted; then the valid
picks are kept and the rest filled by highest r̄, ties by lowest index (method decision 10).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from promptcodebook.calls import Message, Request, Usage
from promptcodebook.errors import ParseError, TruncatedReply
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.structured import Ask
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import TemplateSet
from promptcodebook.randomness import Draws
from promptcodebook.types import Codebook, Route

__all__ = [
    "Encoder",
    "RouteReply",
    "repair_route",
    "route_fault",
]


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


class RouteReply(BaseModel):
    """The demands it saw, S indices, and why."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    constraints: list[str] = Field(default_factory=list, max_length=32)
    selected_indices: list[int] = Field(max_length=1024)
    analysis: str = Field(default="", max_length=4000)


class Encoder:
    """Routes by asking a model; counts repairs and fallbacks."""

    def __init__(self, ask: Ask, templates: TemplateSet, select: int, tally: Tally) -> None:
        self._ask = ask
        self._templates = templates
        self._select = select
        self._tally = tally

    def messages(
        self, theta: str, codebook: Codebook, statistics: RoutingStatistics, task: str
    ) -> tuple[Message, ...]:
        """The chat; with our templates all but the input is a prefix shared by every input."""
        values = {
            "theta": theta,
            "select": self._select,
            "size": len(codebook),
            "last": len(codebook) - 1,
            "codebook": self._templates.lines.show(codebook, statistics),
            "task": task,
        }
        return self._templates["encoder"].fill(values)

    async def route(
        self, theta: str, codebook: Codebook, statistics: RoutingStatistics, task: str, draws: Draws
    ) -> tuple[Route, Usage]:
        """z = E_θ(x, C). Raises LMError only when the model cannot be reached."""
        size = len(codebook)
        request = Request(
            role="encoder",
            messages=self.messages(theta, codebook, statistics, task),
            sample=draws.sample("route"),
        )
        try:
            answer = await self._ask.typed(
                request,
                RouteReply,
                lambda reply: route_fault(reply.selected_indices, size, self._select),
            )
        except (ParseError, TruncatedReply) as error:
            self._tally(Incident.ROUTE_REPAIRS)
            self._tally(Incident.ROUTE_FALLBACKS)
            best = repair_route((), statistics.ema, self._select)
            return Route(best, repaired=True, fallback=True), error.usage
        reply = answer.value
        if answer.reasked:
            self._tally(Incident.ROUTE_REPAIRS)
        if answer.fault is not None:
            self._tally(Incident.ROUTE_FALLBACKS)
        route = Route(
            indices=repair_route(reply.selected_indices, statistics.ema, self._select),
            repaired=answer.reasked,
            fallback=answer.fault is not None,
            constraints=tuple(reply.constraints),
            analysis=reply.analysis,
        )
        return route, answer.usage
