"""Replies as typed values: asked for by schema, found in the text, re-asked once, or an error.

Tally names: `malformed` (a reply that is not strictly the JSON asked for), `truncated` (cut at its
cap before a value was complete; never also malformed), `faulty` (a value of the right form that
cannot be used as it is, such as a route of the wrong length), `repaired`, `reasked`,
`parse_failed`. Each reply counts once, when it is paid for: not again when a journal or a cache
gives it back. So the counts are those of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pydantic import BaseModel

from promptcodebook.errors import LMError, ParseError, TruncatedReply
from promptcodebook.keyed import keyed_int
from promptcodebook.lm.base import LM, Reply, Request
from promptcodebook.lm.extract import Found, extract, strip_think
from promptcodebook.lm.shapes import schema_of
from promptcodebook.types import Message, Tally, Usage

__all__ = ["Answer", "Ask", "TextAnswer"]

T = TypeVar("T", bound=BaseModel)
# How much of a faulty reply is quoted back: enough to be recognised, too little to fill a context.
_QUOTED = 4000


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A typed reply. `fault` is the semantic fault that one re-ask did not mend."""

    value: T
    reasked: bool = False
    repaired: bool = False
    fault: str | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """A plain reply, its thoughts stripped."""

    text: str
    truncated: bool = False
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class _Try(Generic[T]):
    reply: Reply
    found: Found[T]
    fault: str | None

    @property
    def cut(self) -> bool:
        return self.found.value is None and self.reply.finish == "length"

    @property
    def complaint(self) -> str | None:
        if self.cut:
            return "it was cut at its length limit; answer more briefly"
        return self.fault if self.found.value is not None else self.found.fault


class Ask:
    """Asks a model for text or for a typed value."""

    def __init__(self, lm: LM, tally: Tally) -> None:
        self._lm = lm
        self._tally = tally

    def _count(self, name: str, reply: Reply) -> None:
        if reply.source == "live":
            self._tally(name)

    async def text(self, request: Request) -> TextAnswer:
        """The reply's text; `truncated` is told (and tallied), judging it is the caller's part."""
        reply = await self._lm(request)
        truncated = reply.finish == "length"
        if truncated:
            self._count("truncated", reply)
        return TextAnswer(strip_think(reply.text), truncated, reply.usage)

    async def typed(
        self,
        request: Request,
        shape: type[T],
        fault: Callable[[T], str | None] | None = None,
    ) -> Answer[T]:
        """The reply as `shape`; one re-ask quotes what was wrong, be it form or `fault(value)`.

        Raises ParseError or TruncatedReply when no reply held a valid value; a value that is valid
        but still at fault is returned with its fault.
        """
        if request.schema is None:
            request = replace(request, schema=schema_of(shape))
        first = await self._try(request, shape, fault)
        if first.complaint is None and first.found.value is not None:
            return Answer(first.found.value, repaired=first.found.repaired, usage=first.reply.usage)
        self._count("reasked", first.reply)
        try:
            second = await self._try(_again(request, first.reply, first.complaint), shape, fault)
        except LMError:
            # The longer request may not fit where the first did: keep what we hold.
            if first.found.value is None:
                raise
            return _answer(first, first.reply.usage)
        usage = first.reply.usage + second.reply.usage
        for each in (second, first):
            if each.found.value is not None:
                return _answer(each, usage)
        raise self._failed(request, second)

    async def _try(
        self, request: Request, shape: type[T], fault: Callable[[T], str | None] | None
    ) -> _Try[T]:
        reply = await self._lm(request)
        cut = reply.finish == "length"
        found = extract(reply.text, shape, cut=cut)
        if found.value is None and cut:
            self._count("truncated", reply)
        elif not found.strict:
            self._count("malformed", reply)
        if found.repaired:
            self._count("repaired", reply)
        said = fault(found.value) if fault is not None and found.value is not None else None
        if said is not None:
            self._count("faulty", reply)
        return _Try(reply, found, said)

    def _failed(self, request: Request, last: _Try[T]) -> LMError:
        asked = request.schema.name if request.schema is not None else "value"
        where = f"{request.role} reply of {request.model or 'the model'}"
        if last.cut:
            return TruncatedReply(
                f"the {where} was cut at its length cap twice, before its {asked} was complete",
                hint=f"raise roles.{request.role}.max_tokens",
                role=request.role,
                model=request.model,
            )
        self._count("parse_failed", last.reply)
        return ParseError(
            f"the {where} never became a {asked}: {last.found.fault}",
            hint="pco doctor shows whether the endpoint enforces schemas",
            role=request.role,
            model=request.model,
        )


def _answer(tried: _Try[T], usage: Usage) -> Answer[T]:
    value = tried.found.value
    assert value is not None
    return Answer(value, True, tried.found.repaired, tried.fault, usage)


def _again(request: Request, reply: Reply, complaint: str | None) -> Request:
    said = strip_think(reply.text)[:_QUOTED] or "(empty)"
    ask = (
        f"Your reply cannot be used: {complaint}. "
        "Answer the request above again, with the corrected JSON object and nothing else."
    )
    turns = (*request.messages, Message("assistant", said), Message("user", ask))
    sample = keyed_int("reask", request.sample)
    return replace(request, messages=turns, sample=sample)
