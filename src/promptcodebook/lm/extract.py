"""Finds the typed value in a reply's text: thoughts and fences off, last valid object, repair.

Never adopts half an object: repair is for broken JSON, not for a reply cut at its cap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

__all__ = ["THOUGHT", "Found", "extract", "strip_fence", "strip_think"]

T = TypeVar("T", bound=BaseModel)
_FENCE = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_OPEN, _CLOSE = "<think>", "</think>"
THOUGHT = "think>"
"""What every text with thoughts in it contains."""
# An object may start at any brace; past this many the text is not an answer but noise.
_MAX_STARTS = 500
# Repair is quadratic on noise, and it runs in the event loop.
_MAX_REPAIRED = 20_000
# A wrapper or two around the value is common; a tower of them is not an answer.
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """`strict` = the text was the value and nothing else; `fault` says why `value` is None."""

    value: T | None
    strict: bool = False
    repaired: bool = False
    fault: str = ""


def strip_think(text: str) -> str:
    """The text without its leading thoughts, closed or (then all is thought) never closed."""
    body = text.strip()
    while body.startswith(_OPEN):
        _, closed, rest = body.partition(_CLOSE)
        if not closed:
            return ""
        body = rest.strip()
    # Templates that open the block for the model leave only its end in the reply.
    head, closed, rest = body.partition(_CLOSE)
    return rest.strip() if closed and _OPEN not in head else body


def strip_fence(text: str) -> str:
    """The inside of a text that is one ``` block, else the text."""
    match = _FENCE.match(text.strip())
    return match[1].strip() if match else text.strip()


def extract(text: str, shape: type[T], *, cut: bool = False) -> Found[T]:
    """The reply's value. `cut` = the reply ended at its length cap, so it is not repaired."""
    body = strip_think(text)
    fault = ""
    # The whole text first: a value may well speak of thoughts in one of its strings.
    for candidate in dict.fromkeys((strip_fence(text), strip_fence(body))):
        try:
            return Found(shape.model_validate_json(candidate), strict=True)
        except ValidationError as error:
            fault = _readable(error)
    value = _last_valid(body, shape)
    if value is None and _CLOSE in text:
        # The marker may stand in one of the value's strings: then it ended no thoughts.
        value = _last_valid(text, shape, around=_CLOSE)
    if value is None and not cut:
        value = _repaired(body, shape)
        if value is not None:
            return Found(value, repaired=True)
    return Found(value, fault="" if value is not None else fault)


def _last_valid(body: str, shape: type[T], around: str = "") -> T | None:
    for tree in reversed(list(_objects(body, around))):
        value = _valid(tree, shape)
        if value is not None:
            return value
    return None


def _objects(body: str, around: str) -> Iterator[dict[str, Any]]:
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
        return shape.model_validate_json(json.dumps(tree))
    except (ValueError, RecursionError):
        return None


def _repaired(body: str, shape: type[T]) -> T | None:
    start = body.find("{")
    if start < 0 or len(body) - start > _MAX_REPAIRED:
        return None
    import json_repair

    try:
        tree = cast("object", json_repair.loads(body[start:], skip_json_loads=True))
    except (ValueError, RecursionError):
        return None
    for found in reversed(list(_nested(tree))):
        value = _valid(found, shape)
        if value is not None:
            return value
    return None


def _readable(error: ValidationError) -> str:
    said: list[str] = []
    for each in error.errors(include_url=False, include_input=False)[:3]:
        if each["type"] == "json_invalid":
            return "it is not valid JSON"
        where = ".".join(str(part) for part in each["loc"])
        said.append(f"{where}: {each['msg']}" if where else each["msg"])
    return "; ".join(said)
