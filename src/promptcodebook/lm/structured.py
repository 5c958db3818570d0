"""Replies as typed values: requested by schema, found in the text, requested again once, or an
error.

Reading is generous: null and "none" are no text, "7/10" is 0.7, "[3]" is an index, and one
unreadable field does not cost the others. Incidents of a reply count once, when it is paid for, and
not again when a journal or a cache returns it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from promptcodebook.calls import LM, Message, Reply, Request, Usage
from promptcodebook.errors import LMError, ParseError, TruncatedReply
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.extraction import extract, strip_think
from promptcodebook.lm.wire import schema_of
from promptcodebook.randomness import keyed_int

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")
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


@dataclass(frozen=True, slots=True)
class _Try(Generic[V]):
    """One reply and what was read from it; `complaint` says what to ask for again."""

    reply: Reply
    value: V | None
    complaint: str | None = None
    repaired: bool = False


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
        """The reply's text; `truncated` is reported and counted, and the caller judges it.

        With `fault` a reply that is cut or at fault is asked for once more, quoting what was wrong.
        """

        async def once(request: Request) -> _Try[str]:
            reply = await self._lm(request)
            text, cut, wrong = strip_think(reply.text), reply.finish == "length", None
            if cut:
                self._count(Incident.TRUNCATED, reply)
            if fault is not None:
                wrong = _CUT if cut else fault(text)
            if wrong is not None and not cut:
                self._count(Incident.FAULTY, reply)
            return _Try(reply, text, wrong)

        tried, usage, _ = await self._twice(request, once, "the text that was asked for")
        cut = tried.reply.finish == "length"
        return TextAnswer(tried.value or "", cut, usage, tried.complaint)

    async def typed(
        self, request: Request, shape: type[T], fault: Callable[[T], str | None] | None = None
    ) -> Answer[T]:
        """The reply as `shape`; one re-ask quotes what was wrong: its form, or `fault(value)`.

        Raises ParseError or TruncatedReply when no reply held a valid value; a value that is valid
        but still at fault is returned with its fault.
        """
        if request.schema is None:
            request = replace(request, schema=schema_of(shape))

        async def once(request: Request) -> _Try[T]:
            reply = await self._lm(request)
            cut = reply.finish == "length"
            found = await extract(reply.text, shape, cut=cut)
            if found.value is None and cut:
                self._count(Incident.TRUNCATED, reply)
            elif not found.strict:
                self._count(Incident.MALFORMED, reply)
            if found.repaired:
                self._count(Incident.REPAIRED, reply)
            if found.value is None:
                return _Try(reply, None, _CUT if cut else found.fault)
            wrong = None if fault is None else fault(found.value)
            if wrong is not None:
                self._count(Incident.FAULTY, reply)
            return _Try(reply, found.value, wrong, found.repaired)

        tried, usage, reasked = await self._twice(request, once, "the corrected JSON object")
        if tried.value is None:
            raise self._failure(request, tried, usage)
        return Answer(tried.value, reasked, tried.repaired, tried.complaint, usage)

    async def _twice(
        self, request: Request, once: Callable[[Request], Awaitable[_Try[V]]], wanted: str
    ) -> tuple[_Try[V], Usage, bool]:
        """The best of at most two tries, what they took, and whether there were two."""
        first = await once(request)
        if first.complaint is None:
            return first, first.reply.usage, False
        self._count(Incident.REASKED, first.reply)
        try:
            second = await once(_reask(request, first.reply, first.complaint, wanted))
        except LMError:
            # The longer request may not fit where the first did: keep what we hold.
            if first.value is None:
                raise
            return first, first.reply.usage, True
        best = first if second.value is None and first.value is not None else second
        return best, first.reply.usage + second.reply.usage, True

    def _failure(self, request: Request, last: _Try[Any], usage: Usage) -> LMError:
        asked = request.schema.name if request.schema is not None else "value"
        where = f"{request.role} reply of {request.model or 'the model'}"
        error: LMError
        if last.reply.finish == "length":
            error = TruncatedReply(
                f"the {where} was cut at its length cap twice, before its {asked} was complete",
                hint=f"raise roles.{request.role}.max_tokens",
                role=request.role,
                model=request.model,
            )
        else:
            self._count(Incident.PARSE_FAILED, last.reply)
            error = ParseError(
                f"the {where} never became a {asked}: {last.complaint}",
                hint="pco doctor shows whether the endpoint enforces schemas",
                role=request.role,
                model=request.model,
            )
        error.usage = usage
        return error


def _reask(request: Request, reply: Reply, complaint: str, wanted: str) -> Request:
    quote = strip_think(reply.text)[:_QUOTED] or "(empty)"
    ask = (
        f"Your reply cannot be used: {complaint}. "
        f"Answer the request above again, with {wanted} and nothing else."
    )
    turns = (*request.messages, Message("assistant", quote), Message("user", ask))
    sample = keyed_int("reask", request.sample)
    return replace(request, messages=turns, sample=sample)


_LONGEST = 4000
"""Characters of a text that are read; a schema asks for far fewer."""
_MOST = 1024
"""Items of a list that are read."""
_NOTHING = re.compile(
    r"(?:none|null|nil|n/?a|not applicable|nothing|empty|-|—|no|"
    r"(?:there (?:is|are) )?(?:none|no) ?(?:errors?|issues?|problems?|flaws?)(?: found)?)",
    re.IGNORECASE,
)
_NUMBER = r"\d{1,9}(?:\.\d{1,30})?"
_FRACTION = re.compile(rf"({_NUMBER})\s*(?:/|out of|of)\s*({_NUMBER})", re.IGNORECASE)
_INDEX = re.compile(
    r"[\s\[(#*\"'`]*(?:(?:instincts?|entry|index|strategy|directive|item|number|no\.?|c)[\s_#:\[(]*)?"
    r"(\d{1,6})(?!\w|\.\d)",
    re.IGNORECASE,
)
_LINE = re.compile(
    # A line may begin with a number of its own: only "3:" and what is marked as an index is one.
    r"[\s*\"'`-]*(?:\[(\d{1,6})\]|(?:instinct|entry|strategy|directive|index|c|#)[\s_#\[]*(\d{1,6})\b"
    r"|(\d{1,6}):)[\s\])*:.,–—\"'`-]*",
    re.IGNORECASE,
)
_DEPTH = 5
_LARGEST = 10**15


class ReplyShape(BaseModel):
    """Base of the replies that are read generously; what was not asked for is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def bounded(characters: int) -> Any:
    """A text that may be left out and is asked to be no longer than that."""
    return Field(default="", json_schema_extra={"maxLength": characters})


def read_text(value: object) -> str:
    """A text in any form: a list's or an object's texts in a row, '' for what says none."""
    text = _text(value, 0)[:_LONGEST].strip()
    return "" if _NOTHING.fullmatch(text.rstrip(".!")) else text


def _text(value: object, depth: int) -> str:
    match value:
        case str():
            return value.strip()
        case list() if depth < _DEPTH:
            items = (_text(each, depth + 1) for each in cast("list[object]", value)[:_MOST])
            return " ".join(filter(None, items))
        case dict() if depth < _DEPTH:
            pairs = list(cast("dict[str, object]", value).items())[:_MOST]
            texts = ((key, _text(each, depth + 1)) for key, each in pairs)
            return " ".join(f"{key}: {each}" for key, each in texts if each)
        case int() | float() if not isinstance(value, bool) and abs(value) < _LARGEST:
            return str(value)
        case _:
            return ""


def read_number(value: object) -> float:
    """A number however it is given; "7/10" and "70 %" are read on the scale that they name.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        text = value.strip()
        fraction = _FRACTION.fullmatch(text)
        if fraction is not None and float(fraction[2]) > 0.0:
            return float(fraction[1]) / float(fraction[2])
        share = text.removesuffix("%").strip()
        plain = re.sub(r"\A(-?\d+),(\d+)\Z", r"\1.\2", share)
        if re.fullmatch(rf"-?(?:{_NUMBER}|\.\d{{1,30}})", plain):
            return float(plain) / (100.0 if share != text else 1.0)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return float(value)
    raise ValueError("it is not a number")


def leading_index(text: str) -> int | None:
    """The index that a text begins with: "3", "[3] ...", "C3", "instinct 3: ..."."""
    match = _INDEX.match(text)
    return None if match is None else int(match[1])


def _read_indices(value: object) -> list[int]:
    """Whole numbers out of a list, an object's keys or a text; what holds none is passed over."""
    match value:
        case list():
            found = [_index_of(each) for each in cast("list[object]", value)[:_MOST]]
        case dict():
            keys = list(cast("dict[str, object]", value))[:_MOST]
            found = [leading_index(key) for key in keys]
        case str():
            found = [int(n) for n in re.findall(r"(?<![\d.])-?\d{1,6}(?![\d.])", value)[:_MOST]]
        case _:
            found = [_index_of(value)]
    return [each for each in found if each is not None]


def _index_of(value: object) -> int | None:
    match value:
        case bool() | None:
            return None
        case int() | float():
            return int(value) if abs(value) < _LARGEST and value == int(value) else None
        case str():
            return int(value) if re.fullmatch(r"-\d{1,6}", value) else leading_index(value)
        case dict():
            tree = cast("dict[str, object]", value)
            named = (tree[key] for key in ("index", "id", "number") if key in tree)
            return next((_index_of(each) for each in named), None)
        case _:
            return None


def _read_texts(value: object) -> list[str]:
    items = cast("list[object]", value)[:_MOST] if isinstance(value, list) else [value]
    return [text for each in items if (text := read_text(each))]


def read_by_name(value: object) -> dict[str, str]:
    """Texts by the name of what they are about ('' = it names nothing), from an object, from a
    list of objects ({"index": 3, "text": "..."}) or of lines ("[3] ..."), or from one text."""
    found: dict[str, str] = {}
    for name, text in _named(value):
        if text:
            found[name] = f"{found[name]} {text}" if name in found else text
    return found


def _named(value: object) -> Iterator[tuple[str, str]]:
    match value:
        case list():
            for each in cast("list[object]", value)[:_MOST]:
                yield from _named(each)
        case dict():
            tree = cast("dict[str, object]", value)
            name = next((k for k in ("index", "instinct", "id", "number", "k") if k in tree), None)
            if name is not None and len(tree) > 1:
                yield (
                    str(tree[name]).strip(),
                    read_text([text for key, text in tree.items() if key != name]),
                )
                return
            for key, text in list(tree.items())[:_MOST]:
                yield key.strip(), read_text(text)
        case _:
            text = read_text(value)
            line = _LINE.match(text)
            rest = text[line.end() :] if line is not None else ""
            yield ((line[1] or line[2] or line[3]), rest) if line and rest else ("", text)


LenientText = Annotated[str, BeforeValidator(read_text)]
LenientTexts = Annotated[list[str], BeforeValidator(_read_texts)]
LenientNumber = Annotated[float, BeforeValidator(read_number)]
Indices = Annotated[list[int], BeforeValidator(_read_indices)]
