"""A reply's text as a value: strip its thoughts, find its JSON, repair it where it is broken.

Reading takes bounded time for any text. Long texts that are not plain JSON are read in a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, SupportsIndex, TypeVar, cast

from pydantic import BaseModel, ValidationError

from promptcodebook.text import strip_fence

T = TypeVar("T", bound=BaseModel)
_OPEN = "<think>"
_CLOSE = "</think>"
THOUGHT = "think>"
"""What every text with thoughts in it contains."""
# An object may start at any brace; past this many the text is not an answer but noise.
_MAX_STARTS = 500
# The most characters in which a value with words around it is searched: no answer is longer.
_MAX_SEARCHED = 200_000
# Repair is quadratic on noise. What a model broke takes 2 to 10 steps a character.
_MAX_REPAIRED = 50_000
_STEPS, _STEPS_EACH, _MAX_STEPS = 10_000, 30, 120_000
# Longer replies that are not plain JSON are read in a thread, so that other calls continue.
_QUICK = 2000
_HALF_PAIR = re.compile("[\ud800-\udfff]")
# Nothing in it is tried twice: a tower of thoughts is read in one pass.
_THOUGHTS = re.compile(r"\s*+(?:(?><think>.*?</think>)\s*+)*+", re.DOTALL)
# A wrapper or two around the value is common; a tower of them is not an answer.
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Extraction(Generic[T]):
    """`strict` = the text was the value and nothing else; `fault` says why `value` is None."""

    value: T | None
    strict: bool = False
    repaired: bool = False
    fault: str = ""


async def extract(text: str, shape: type[T], *, cut: bool = False) -> Extraction[T]:
    """The reply's value. `cut` = the reply ended at its length cap, so it is not repaired.

    The work is bounded, whatever the text; the same text always gives the same value.
    """
    found = _strict(text, shape)
    if found.strict:
        return found
    if len(text) <= _QUICK:
        return _search(text, shape, cut, found.fault)
    return await asyncio.to_thread(_search, text, shape, cut, found.fault)


def _strict(text: str, shape: type[T]) -> Extraction[T]:
    """The value of a text that is that value alone, but for a fence and thoughts."""
    fault = ""
    # The whole text first: a value may well speak of thoughts in one of its strings.
    for candidate in dict.fromkeys((strip_fence(text), strip_fence(strip_think(text)))):
        try:
            return Extraction(shape.model_validate_json(_whole(candidate)), strict=True)
        except ValidationError as error:
            fault = _readable(error)
    return Extraction(None, fault=fault)


def _search(text: str, shape: type[T], cut: bool, fault: str) -> Extraction[T]:
    """The value somewhere in the text, or the one that it becomes when it is repaired."""
    body = strip_think(text)
    if len(body) > _MAX_SEARCHED:
        return Extraction(None, fault=f"{fault} (and {len(body)} characters long)")
    value = _last_valid(_objects(body), shape)
    if value is None and _CLOSE in text and len(text) <= _MAX_SEARCHED:
        # The marker may be part of one of the value's strings: then it ended no thoughts.
        value = _last_valid(_objects(text, around=_CLOSE), shape)
    if value is None and not cut:
        value = _repair(body, shape)
        if value is not None:
            return Extraction(value, repaired=True)
    return Extraction(value, fault="" if value is not None else fault)


def strip_think(text: str) -> str:
    """The text without its leading thoughts, closed or (then all is thought) never closed."""
    leading = _THOUGHTS.match(text)
    at = leading.end() if leading is not None else 0
    if text.startswith(_OPEN, at):
        return ""
    # Templates that open the block for the model leave only its end in the reply.
    close = text.find(_CLOSE, at)
    if close >= 0 and text.find(_OPEN, at, close) < 0:
        at = close + len(_CLOSE)
    return text[at:].strip()


def _whole(text: str) -> str:
    """The text with half surrogate pairs marked as lost: no JSON may hold them."""
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)


def _last_valid(trees: Iterable[dict[str, Any]], shape: type[T]) -> T | None:
    values = (_valid(tree, shape) for tree in reversed(list(trees)))
    return next((value for value in values if value is not None), None)


def _objects(body: str, around: str = "") -> Iterator[dict[str, Any]]:
    """Every outermost JSON object that has `around` in its text and those inside it, by start."""
    decoder = json.JSONDecoder()
    at = body.find("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            return
        try:
            tree, end = decoder.raw_decode(body, at)
        except (ValueError, RecursionError):  # also numbers too long to read
            end = at + 1
        else:
            if around in body[at:end]:
                yield from _nested(tree)
        at = body.find("{", end)


def _nested(tree: object, depth: int = 0) -> Iterator[dict[str, Any]]:
    # Inner objects first: a wrapper that is itself valid then wins over what it wraps.
    if depth > _MAX_DEPTH:
        return
    if isinstance(tree, dict):
        for value in cast("dict[str, Any]", tree).values():
            yield from _nested(value, depth + 1)
        yield cast("dict[str, Any]", tree)
    elif isinstance(tree, list):
        for value in cast("list[Any]", tree):
            yield from _nested(value, depth + 1)


def _valid(tree: dict[str, Any], shape: type[T]) -> T | None:
    # A shape whose fields all have defaults would take any object: ask for one known field.
    fields = shape.model_fields
    names = set(fields) | {f.alias for f in fields.values() if f.alias}
    if names and names.isdisjoint(tree):
        return None
    try:
        # JSON rules, not Python's: {"3": ...} is how JSON writes a mapping from integers.
        return shape.model_validate_json(_whole(json.dumps(tree, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def _repair(body: str, shape: type[T]) -> T | None:
    start = body.find("{")
    if start < 0 or len(body) - start > _MAX_REPAIRED:
        return None
    import json_repair

    most = min(_MAX_STEPS, _STEPS + _STEPS_EACH * (len(body) - start))
    try:
        metered = _Metered.of(body[start:], [most])
        tree = cast("object", json_repair.loads(metered, skip_json_loads=True))
    except (ValueError, RecursionError, _TooMuchWork):
        return None
    return _last_valid(_nested(tree), shape)


class _TooMuchWork(Exception):
    """The text was looked at more often than any repair needs."""


class _Metered(str):
    """A text that counts how often the repair looks at it, and raises when that is too often.

    It counts steps, not seconds: the result must not depend on the machine.
    """

    __slots__ = ("_left",)
    _left: list[int]

    @classmethod
    def of(cls, text: str, left: list[int]) -> _Metered:
        """`left` holds the steps left, shared by all texts that are made from this one."""
        metered = cls(text)
        metered._left = left
        return metered

    def _pay(self, characters: int) -> None:
        # Copying is quick, but not free.
        self._left[0] -= 1 + (characters >> 5)
        if self._left[0] < 0:
            raise _TooMuchWork

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        found = super().__getitem__(at)
        self._pay(len(found))
        return _Metered.of(found, self._left) if isinstance(at, slice) else found

    def __add__(self, other: str) -> str:
        self._pay(len(self))
        return _Metered.of(super().__add__(other), self._left)


def _readable(error: ValidationError) -> str:
    faults: list[str] = []
    for each in error.errors(include_url=False, include_input=False)[:3]:
        if each["type"] == "json_invalid":
            return "it is not valid JSON"
        where = ".".join(str(part) for part in each["loc"])
        faults.append(f"{where}: {each['msg']}" if where else each["msg"])
    return "; ".join(faults)
