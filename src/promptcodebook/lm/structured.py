"""Replies as typed values: asked for by schema, found in the text, re-asked once, or an error.

Counted are MALFORMED (a reply that is not strictly the JSON asked for), TRUNCATED (cut at its cap
before a value was complete; never also malformed), FAULTY (a value of the right form that cannot be
used as it is, such as a route of the wrong length), REPAIRED, REASKED and PARSE_FAILED. Each reply
counts once, when it is paid for: not again when a journal or a cache gives it back. So the counts
are those of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pydantic import BaseModel

from promptcodebook.calls import LM, Message, Reply, Request, Usage
from promptcodebook.errors import LMError, ParseError, TruncatedReply
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.extraction import Extraction, read, strip_think
from promptcodebook.lm.wire import schema_of
from promptcodebook.randomness import keyed_int

T = TypeVar("T", bound=BaseModel)
_CUT = "it was cut at its length limit; answer more briefly"
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
    """A plain reply, its thoughts stripped. `fault` is the one that a re-ask did not mend."""

    text: str
    truncated: bool = False
    usage: Usage = Usage()
    fault: str | None = None


class Ask:
    """Asks a model for text or for a typed value."""

    def __init__(self, lm: LM, tally: Tally) -> None:
        self._lm = lm
        self._tally = tally

    def _count(self, incident: Incident, reply: Reply) -> None:
        if reply.source == "live":
            self._tally(incident)

    async def text(
        self, request: Request, fault: Callable[[str], str | None] | None = None
    ) -> TextAnswer:
        """The reply's text; `truncated` is told (and tallied), judging it is up to the caller.

        With `fault` a reply that is cut or at fault is asked for once more, quoting what was wrong;
        what is still wrong comes back with its fault.
        """
        first, reply = await self._text(request, fault)
        if first.fault is None:
            return first
        self._count(Incident.REASKED, reply)
        try:
            again = _reask(request, reply, first.fault, "the text that was asked for")
            second, _ = await self._text(again, fault)
        except LMError:
            # The longer request may not fit where the first did: keep what we hold.
            return first
        return replace(second, usage=first.usage + second.usage)

    async def _text(
        self, request: Request, fault: Callable[[str], str | None] | None
    ) -> tuple[TextAnswer, Reply]:
        reply = await self._lm(request)
        text, truncated = strip_think(reply.text), reply.finish == "length"
        wrong = None
        if truncated:
            self._count(Incident.TRUNCATED, reply)
        if fault is not None:
            wrong = _CUT if truncated else fault(text)
            if wrong is not None and not truncated:
                self._count(Incident.FAULTY, reply)
        return TextAnswer(text, truncated, reply.usage, wrong), reply

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
        if first.complaint is None and first.extraction.value is not None:
            return Answer(
                first.extraction.value, repaired=first.extraction.repaired, usage=first.reply.usage
            )
        self._count(Incident.REASKED, first.reply)
        try:
            again = _reask(request, first.reply, first.complaint, "the corrected JSON object")
            second = await self._try(again, shape, fault)
        except LMError:
            # The longer request may not fit where the first did: keep what we hold.
            if first.extraction.value is None:
                raise
            return _answer_of(first, first.reply.usage)
        usage = first.reply.usage + second.reply.usage
        for each in (second, first):
            if each.extraction.value is not None:
                return _answer_of(each, usage)
        error = self._failure(request, second)
        error.usage = usage
        raise error

    async def _try(
        self, request: Request, shape: type[T], fault: Callable[[T], str | None] | None
    ) -> _Try[T]:
        reply = await self._lm(request)
        cut = reply.finish == "length"
        extraction = await read(reply.text, shape, cut)
        if extraction.value is None and cut:
            self._count(Incident.TRUNCATED, reply)
        elif not extraction.strict:
            self._count(Incident.MALFORMED, reply)
        if extraction.repaired:
            self._count(Incident.REPAIRED, reply)
        wrong = (
            fault(extraction.value) if fault is not None and extraction.value is not None else None
        )
        if wrong is not None:
            self._count(Incident.FAULTY, reply)
        return _Try(reply, extraction, wrong)

    def _failure(self, request: Request, last: _Try[T]) -> LMError:
        asked = request.schema.name if request.schema is not None else "value"
        where = f"{request.role} reply of {request.model or 'the model'}"
        if last.cut:
            return TruncatedReply(
                f"the {where} was cut at its length cap twice, before its {asked} was complete",
                hint=f"raise roles.{request.role}.max_tokens",
                role=request.role,
                model=request.model,
            )
        self._count(Incident.PARSE_FAILED, last.reply)
        return ParseError(
            f"the {where} never became a {asked}: {last.extraction.fault}",
            hint="pco doctor shows whether the endpoint enforces schemas",
            role=request.role,
            model=request.model,
        )


@dataclass(frozen=True, slots=True)
class _Try(Generic[T]):
    reply: Reply
    extraction: Extraction[T]
    fault: str | None

    @property
    def cut(self) -> bool:
        return self.extraction.value is None and self.reply.finish == "length"

    @property
    def complaint(self) -> str | None:
        if self.cut:
            return _CUT
        return self.fault if self.extraction.value is not None else self.extraction.fault


def _answer_of(tried: _Try[T], usage: Usage) -> Answer[T]:
    value = tried.extraction.value
    assert value is not None
    return Answer(value, True, tried.extraction.repaired, tried.fault, usage)


def _reask(request: Request, reply: Reply, complaint: str | None, wanted: str) -> Request:
    quote = strip_think(reply.text)[:_QUOTED] or "(empty)"
    ask = (
        f"Your reply cannot be used: {complaint}. "
        f"Answer the request above again, with {wanted} and nothing else."
    )
    turns = (*request.messages, Message("assistant", quote), Message("user", ask))
    sample = keyed_int("reask", request.sample)
    return replace(request, messages=turns, sample=sample)
