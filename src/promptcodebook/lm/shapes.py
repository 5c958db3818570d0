"""The fields of typed replies: narrow in the schema that asks, generous in the reading.

What is asked for is bounded, so that the longest reply a schema allows fits into its role's
`max_tokens` (at three characters a token). What came is read as what it can only mean: null and
"none" are no text, "7/10" is 0.7, "[3]" is an index; one field that means nothing costs no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
    """A text however it is given: a list's or an object's texts in a row, '' for what says none."""
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
            told = ((key, _text(each, depth + 1)) for key, each in pairs)
            return " ".join(f"{key}: {each}" for key, each in told if each)
        case int() | float() if not isinstance(value, bool) and abs(value) < _LARGEST:
            return str(value)
        case _:
            return ""


def read_number(value: object) -> float:
    """A number however it is given; "7/10" and "70 %" are read on the scale that they name.

    Raises ValueError for what is none.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError("it is not a number")
    if isinstance(value, str):
        return _number_in(value.strip())
    if isinstance(value, int | float) and abs(value) < _LARGEST:
        return float(value)
    raise ValueError("it is not a number")


def _number_in(text: str) -> float:
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None and float(fraction[2]) > 0.0:
        return float(fraction[1]) / float(fraction[2])
    share = text.removesuffix("%").strip()
    plain = re.sub(r"\A(-?\d+),(\d+)\Z", r"\1.\2", share)
    if re.fullmatch(rf"-?(?:{_NUMBER}|\.\d{{1,30}})", plain) is None:
        raise ValueError("it is not a number")
    return float(plain) / (100.0 if share != text else 1.0)


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
