"""E_θ: route an input to S distinct instincts (Eq. 3).

Deviation: a reply that is not a valid route is re-asked once with its fault quoted; then the valid
picks are kept and the rest filled by highest r̄, ties by lowest index (method decision 10); an entry
that was never tried stands at the mean of those that were. S and K stand in the schema of the
reply, so that a server that enforces it lets no other route through.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from pydantic import Field

from promptcodebook.calls import LM, Message, Request, Schema, Usage
from promptcodebook.errors import LMError, ParseError, TruncatedReply
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.shapes import Indices, LenientText, LenientTexts, ReplyShape, bounded
from promptcodebook.lm.structured import Ask
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import TemplateSet
from promptcodebook.randomness import Draws
from promptcodebook.types import Codebook, Route

_MOST_CHARACTERS = 2000
"""Of a text that is embedded: the first half from its start, the rest its end."""
_SHOWN = 8
"""Wrong indices that a fault names at the most."""


def route_fault(indices: Sequence[int], size: int, select: int) -> str | None:
    """What is wrong with a route, in words fit to quote; None for S distinct indices in range."""
    faults: list[str] = []
    outside = sorted({i for i in indices if not 0 <= i < size})
    if outside:
        named = f"{outside[:_SHOWN]}{' and more' if len(outside) > _SHOWN else ''}"
        faults.append(f"{named} lie outside 0..{size - 1}")
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


class RouteReply(ReplyShape):
    """S indices, the demands it saw, and why."""

    selected_indices: Indices
    constraints: LenientTexts = Field(default_factory=list)
    analysis: LenientText = bounded(240)


_DEMANDS = {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 80}}


@lru_cache(maxsize=64)
def route_schema(select: int, size: int, template: str = "") -> Schema:
    """What a route may be: S distinct indices out of K, and short reasons.

    The fields stand in the order in which the template's text names them.
    """
    schema = schema_of(RouteReply)
    picks = {
        "type": "array",
        "minItems": select,
        "maxItems": select,
        "uniqueItems": True,
        "items": {"type": "integer", "enum": list(range(size))},
    }
    fields = cast("dict[str, Any]", schema.body["properties"])
    fields = {**fields, "selected_indices": picks, "constraints": _DEMANDS}
    # What the template does not name (-1) comes last.
    named = sorted(fields, key=lambda name: template.find(f'"{name}"') % (len(template) + 1))
    return Schema(
        schema.name, {**schema.body, "properties": {name: fields[name] for name in named}}
    )


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
            schema=route_schema(self._select, size, self._templates.sources["encoder"]),
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
            best = repair_route((), statistics.standing, self._select)
            cut = isinstance(error, TruncatedReply)
            fault = "it was cut at its length limit" if cut else "it was not the JSON asked for"
            return Route(best, repaired=True, fallback=True, fault=fault), error.usage
        reply = answer.value
        if answer.reasked:
            self._tally(Incident.ROUTE_REPAIRS)
        if answer.fault is not None:
            self._tally(Incident.ROUTE_FALLBACKS)
        route = Route(
            indices=repair_route(reply.selected_indices, statistics.standing, self._select),
            repaired=answer.reasked,
            fallback=answer.fault is not None,
            fault=answer.fault or "",
            constraints=tuple(reply.constraints),
            analysis=reply.analysis,
        )
        return route, answer.usage


class Embedder:
    """Reads inputs by the encoder's model: the vector that it makes of a text."""

    def __init__(self, lm: LM) -> None:
        self._lm = lm

    async def read(self, text: str) -> tuple[tuple[float, ...], Usage]:
        """Raises LMError where the model cannot be reached, or makes no embeddings."""
        if len(text) > _MOST_CHARACTERS:
            text = text[: _MOST_CHARACTERS // 2] + text[-_MOST_CHARACTERS // 2 :]
        # Nobody embeds nothing.
        message = Message("user", text if text.strip() else "-")
        reply = await self._lm(Request(role="encoder", messages=(message,), embeds=True))
        if not reply.vector:
            raise LMError(
                "the model answered a request for an embedding with a text",
                hint="router.features = 'words', or name a model that embeds: roles.encoder.model",
                role="encoder",
            )
        return reply.vector, reply.usage
