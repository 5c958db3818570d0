"""Replies as typed values: requested by schema, found in the text, and requested again once.
Reading is generous: null and "none" are no text, "7/10" is 0.7, "[3]" is an index, and one
unreadable field does not cost the others. A reply's incidents count once, when it is paid for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.base.randomness import keyed_int
from promptcodebook.base.text import is_refusal, strip_fence, strip_wrapping
from promptcodebook.calls import LM, Message, Reply, Request, Usage, schema_of
from promptcodebook.errors import LMError, ParseError, TruncatedReply

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")
_CUT = "it was cut at its length limit; answer more briefly"
_QUOTED = 4000  # of a faulty reply is quoted back: too little to fill a context


@dataclass(frozen=True, slots=True)
class TypedReply(Generic[V]):
    """A reply as typed value, or text without thoughts; the `fault` left; all `usage`."""

    value: V
    reply: Reply
    usage: Usage
    fault: str | None = None
    reasked: bool = False
    repaired: bool = False

    @property
    def truncated(self) -> bool:
        return self.reply.finish == "length"


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
    ) -> TypedReply[str]:
        """The reply's text; `truncated` is reported and counted, and the caller judges it. With
        `fault` a reply that is cut or at fault is asked for once more, quoting what was wrong."""

        async def once(request: Request) -> TypedReply[str]:
            reply = await self._lm(request)
            text, wrong = strip_think(reply.text), None
            if reply.finish == "length":
                self._count(Incident.TRUNCATED, reply)
                wrong = _CUT if fault is not None else None
            elif fault is not None and (wrong := fault(text)) is not None:
                self._count(Incident.FAULTY, reply)
            return TypedReply(text, reply, reply.usage, wrong)

        return await self._twice(request, once, "the text that was asked for")

    async def typed(
        self, request: Request, shape: type[T], fault: Callable[[T], str | None] | None = None
    ) -> TypedReply[T]:
        """The reply as `shape`; one re-ask quotes what was wrong: its form, or `fault(value)`.
        Raises ParseError or TruncatedReply when no reply held a valid value; a value that is valid
        but still at fault is returned with its fault."""
        schema = request.schema or schema_of(shape)
        asked = "\n".join(message.content for message in request.messages)

        async def once(request: Request) -> TypedReply[T | None]:
            reply = await self._lm(request)
            cut = reply.finish == "length"
            found = await extract(reply.text, shape, cut=cut, asked=asked)
            if found.value is None and cut:
                self._count(Incident.TRUNCATED, reply)
            elif not found.strict:
                self._count(Incident.MALFORMED, reply)
            if found.repaired:
                self._count(Incident.REPAIRED, reply)
            wrong = None
            if found.value is None:
                wrong = _CUT if cut else found.fault
            elif fault is not None and (wrong := fault(found.value)) is not None:
                self._count(Incident.FAULTY, reply)
            return TypedReply(found.value, reply, reply.usage, wrong, repaired=found.repaired)

        request = replace(request, schema=schema)
        answer = await self._twice(request, once, "the corrected JSON object")
        hint = "pco doctor shows whether the endpoint enforces schemas"
        return self._required(request, answer, schema.name, hint)

    async def line(
        self,
        request: Request,
        read: Callable[[str], T],
        fault: Callable[[T], str | None] | None = None,
    ) -> TypedReply[T]:
        """What `read` makes of the reply's first line, where templates ask for no JSON. `read`
        raises ValueError, which is quoted in one re-ask, as is `fault`. Raises ParseError or
        TruncatedReply when no reply held a line that can be read."""

        async def once(request: Request) -> TypedReply[T | None]:
            reply = await self._lm(request)
            line, _, rest = strip_think(reply.text).strip().partition("\n")
            wrong, value = None, None
            if reply.finish == "length" and not rest:
                self._count(Incident.TRUNCATED, reply)
                return TypedReply(None, reply, reply.usage, _CUT)
            try:
                value = read(strip_wrapping(line))
            except ValueError as error:
                self._count(Incident.MALFORMED, reply)
                return TypedReply(None, reply, reply.usage, str(error))
            if fault is not None and (wrong := fault(value)) is not None:
                self._count(Incident.FAULTY, reply)
            return TypedReply(value, reply, reply.usage, wrong)

        answer = await self._twice(request, once, "the single line")
        hint = f"choose a different model: roles.{request.role}.model"
        return self._required(request, answer, "line of the required form", hint)

    def _required(
        self, request: Request, answer: TypedReply[T | None], form: str, hint: str
    ) -> TypedReply[T]:
        """The answer, which has a value. Raises ParseError or TruncatedReply when it has none."""
        if answer.value is not None:
            return cast("TypedReply[T]", answer)
        where = f"{request.role} reply from {request.model or 'the model'}"
        kind: type[LMError] = TruncatedReply
        what = f"was cut off twice at its length cap, before its {form} was complete"
        if not answer.truncated:
            self._count(Incident.PARSE_FAILED, answer.reply)
            kind, what = ParseError, f"was not a {form} in two attempts: {answer.fault}"
        else:
            hint = f"raise roles.{request.role}.max_tokens"
        error = kind(f"the {where} {what}", hint=hint, role=request.role, model=request.model)
        error.usage = answer.usage
        raise error

    async def _twice(
        self, request: Request, once: Callable[[Request], Awaitable[TypedReply[V]]], wanted: str
    ) -> TypedReply[V]:
        first = await once(request)
        if first.fault is None:
            return first
        self._count(Incident.REASKED, first.reply)
        quote = strip_think(first.reply.text)[:_QUOTED] or "(empty)"
        ask = (
            f"Your reply cannot be used: {first.fault}. "
            f"Answer the request above again, with {wanted} and nothing else."
        )
        turns = (*request.messages, Message("assistant", quote), Message("user", ask))
        sample = keyed_int("reask", request.sample)
        try:
            second = await once(replace(request, messages=turns, sample=sample))
        except LMError:
            # The longer request may not fit where the first did: keep what we hold.
            if first.value is None:
                raise
            return replace(first, reasked=True)
        best = first if second.value is None and first.value is not None else second
        return replace(best, usage=first.usage + second.usage, reasked=True)


# A value in a text: strip its thoughts, find its JSON, repair it where it is broken.

_OPEN = "<think>"
_CLOSE = "</think>"
THOUGHT = "think>"  # what every text with thoughts in it contains
# An object may start at any brace; past this many the text is not an answer but noise.
_MAX_STARTS = 500
# The most characters in which a value with words around it is searched: no answer is longer.
_MAX_SEARCHED = 200_000
# Repair is quadratic on noise: so much takes less than two seconds.
_MAX_REPAIRED = 8_000
# Longer replies that are not plain JSON are read in a thread, so that other calls continue.
_QUICK = 2000
_HALF_PAIR = re.compile("[\ud800-\udfff]")
# Nothing in it is tried twice: a tower of thoughts is read in one pass.
_THOUGHTS = re.compile(r"\s*+(?:(?><think>.*?</think>)\s*+)*+", re.DOTALL)
_MAX_DEPTH = 20  # a wrapper or two around the value is common; a tower of them is not an answer


@dataclass(frozen=True, slots=True)
class Extraction(Generic[T]):
    """`strict` = the text was the value and nothing else; `fault` says why `value` is None."""

    value: T | None
    strict: bool = False
    repaired: bool = False
    fault: str = ""


_AMBIGUOUS = "it holds more than one object of that kind, or a broken one beside a good one"
_QUOTE = "its only object quotes the request"


async def extract(
    text: str, shape: type[T], *, cut: bool = False, asked: str = ""
) -> Extraction[T]:
    """The reply's value. `cut` = the reply ended at its length cap, so it is not repaired. The work
    is bounded, whatever the text; the same text always gives the same value.

    A model quotes what it judges, and that may hold an object such as it was `asked` for. So an
    object counts only where every other one of its kind in the text says the same. Beside words,
    it must be none of the request's."""
    fault, whole, strict = "", strip_fence(text), False
    # The whole text first: a value may well speak of thoughts in one of its strings.
    for candidate in dict.fromkeys((whole, strip_fence(strip_think(text)))):
        try:
            value = shape.model_validate_json(_whole(candidate))
        except ValidationError as error:
            fault = _readable(error)
            continue
        if candidate == whole or not _unopened(text):
            return Extraction(value, strict=True)
        strict = True
    if len(text) <= _QUICK:
        return _search(text, shape, cut, fault, strict, asked)
    return await asyncio.to_thread(_search, text, shape, cut, fault, strict, asked)


def _search(
    text: str, shape: type[T], cut: bool, fault: str, strict: bool, asked: str
) -> Extraction[T]:
    """The value somewhere in the text, or the one that it becomes when it is repaired. `strict`:
    there is nothing else behind its thoughts."""
    body = strip_think(text)
    if len(body) > _MAX_SEARCHED:
        return Extraction(None, fault=f"{fault} (and {len(body)} characters long)")
    aside, _ = _values(_objects(_unopened(text)[-_MAX_SEARCHED:]), shape)
    values, wrong = _values(_objects(body), shape)
    repaired = not values and not cut
    if repaired:
        values, wrong = _values(_repair(body), shape)
    if not values:
        return Extraction(None, fault=fault)
    value, _ = values[0]
    if wrong or any(each != value for each, _ in (*values, *aside)):
        return Extraction(None, fault=_AMBIGUOUS)
    held = _plain(asked)
    if all(_plain(written) in held for _, written in values):
        return Extraction(None, fault=_QUOTE)
    return Extraction(value, strict=strict, repaired=repaired)


def _plain(text: str) -> str:
    """The text as it is compared: without space and quotes, and with one form for a number."""
    text = re.sub(r"[\s\\\"'`]+", "", text)
    return re.sub(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)", lambda n: str(float(n[0])), text)


def strip_think(text: str) -> str:
    """The text without its leading thoughts, closed or (then all is thought) never closed."""
    at = _after_thoughts(text)
    return "" if text.startswith(_OPEN, at) else text[at + len(_unopened(text)) :].strip()


def _after_thoughts(text: str) -> int:
    leading = _THOUGHTS.match(text)
    return leading.end() if leading is not None else 0


def _unopened(text: str) -> str:
    """Thoughts that a template opened for the model, so that only their end is in the text. It may
    also be the model's own words, in front of a mark that it quotes."""
    at = _after_thoughts(text)
    close = text.find(_CLOSE, at)
    return text[at : close + len(_CLOSE)] if close >= 0 and text.find(_OPEN, at, close) < 0 else ""


def _whole(text: str) -> str:
    """The text with half surrogate pairs marked as lost: no JSON may hold them."""
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)


def _values(
    pieces: Iterable[dict[str, Any] | list[Any] | str], shape: type[T]
) -> tuple[list[tuple[T, str]], bool]:
    """The valid values among objects and texts, each with its text; and whether there is another
    that looks like one and is not valid, or not even an object."""
    names, values, wrong = shape.model_fields.keys(), list[tuple[T, str]](), False
    key = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b[\"']?\s*:")

    def read(tree: object, depth: int) -> bool:
        """Whether all within it that looks like a value is one. Depth-first: a valid object is
        taken with all that is in it."""
        if depth > _MAX_DEPTH or not isinstance(tree, dict | list):
            return True
        node, good = cast("dict[str, Any] | list[Any]", tree), True
        # A shape whose fields all have defaults would take any object: ask for one known field.
        if isinstance(node, dict) and names & node.keys():
            with suppress(ValueError, RecursionError):
                # JSON rules, not Python's: {"3": ...} is how JSON writes a mapping from integers.
                whole = _whole(json.dumps(node, ensure_ascii=False))
                values.append((shape.model_validate_json(whole), whole))
                return True
            good = False
        inner = [
            read(each, depth + 1) for each in (node.values() if isinstance(node, dict) else node)
        ]
        return good and all(inner)

    for piece in pieces:
        if isinstance(piece, str):
            good = not piece.startswith("{") or key.search(piece) is None
        else:
            good = read(piece, 0)
        wrong = wrong or not good
    return values, wrong


def _objects(body: str) -> Iterator[dict[str, Any] | str]:
    """The objects in the text, and the text between them: from a brace on where one is broken."""
    decoder = json.JSONDecoder()
    words, at = 0, body.find("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        yield body[words:at]
        try:
            tree, words = decoder.raw_decode(body, at)
        except (ValueError, RecursionError):  # also numbers too long to read
            words, at = at, body.find("{", at + 1)
        else:
            yield tree
            at = body.find("{", words)
    yield body[words:]


def _repair(body: str) -> list[Any]:
    start = body.find("{")
    if start < 0 or len(body) - start > _MAX_REPAIRED:
        return []
    import json_repair

    try:
        return [cast("object", json_repair.loads(body[start:], skip_json_loads=True))]
    except (ValueError, RecursionError):
        return []


def _readable(error: ValidationError) -> str:
    faults: list[str] = []
    for each in error.errors(include_url=False, include_input=False)[:3]:
        if each["type"] == "json_invalid":
            return "it is not valid JSON"
        where = ".".join(str(part) for part in each["loc"])
        faults.append(f"{where}: {each['msg']}" if where else each["msg"])
    return "; ".join(faults)


# What a field of a reply may look like, and still be read.

_LONGEST = 4000  # characters of a text that are read; a schema asks for far fewer
_MOST = 1024  # items of a list that are read
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
    """A text in any form: a list's or an object's texts in a row, '' for what says none or
    refuses to."""
    text = _text(value, 0)[:_LONGEST].strip()
    return "" if _NOTHING.fullmatch(text.rstrip(".!")) or is_refusal(text) else text


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
    """A number however it is given; "7/10" and "70 %" on the scale they name. Raises ValueError."""
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
        case list() | dict():
            items = list(cast("list[object]", value))[:_MOST]
        case str():
            items = re.findall(r"(?<![\d.])-?\d{1,6}(?![\d.])", value)[:_MOST]
        case _:
            items = [value]
    return [found for each in items if (found := _index_of(each)) is not None]


def _index_of(value: object) -> int | None:
    match value:
        case int() | float() if not isinstance(value, bool) and abs(value) < _LARGEST:
            return int(value) if value == int(value) else None
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
LenientIndices = Annotated[list[int], BeforeValidator(_read_indices)]
