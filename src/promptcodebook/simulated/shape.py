"""The form of reply a request asks for: JSON with which keys, or plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from promptcodebook.simulated.chat import ChatRequest
from promptcodebook.simulated.words import patterns

__all__ = ["Shape", "asked_shape"]

_KEY = re.compile(r"[\"'`]([A-Za-z][A-Za-z_ -]{1,40})[\"'`]\s*:")
_NAMED = re.compile(r"[\"`]([A-Za-z][A-Za-z_-]{1,40})[\"`]")
_WANTS_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_BULLET_KEY = re.compile(r"^\s*[-*]\s*([a-z]+_[a-z_]+)\s*:", re.MULTILINE)
_STRING_INSTINCT = re.compile(r"[\"'`]([A-Za-z_ ]*)[\"'`]\s*:\s*([\"{\[])")


@dataclass(frozen=True, slots=True)
class Shape:
    """Asked keys in order, by name; `json` says whether a JSON object is wanted at all."""

    json: bool
    keys: tuple[str, ...] = ()
    objects: frozenset[str] = frozenset()
    """Keys whose value is shown as an object keyed by index (or a schema of one)."""
    lists: frozenset[str] = frozenset()

    def meaning(self, key: str) -> str:
        return _meaning(key)

    def has(self, *meanings: str) -> bool:
        """Whether a key of each of these meanings is asked for."""
        found = {_meaning(k) for k in self.keys}
        return all(m in found for m in meanings)

    def fill(self, values: Mapping[str, object], plain: str = "") -> str:
        """A reply of this shape; `values` by meaning. `plain` when no JSON is asked for."""
        if not self.json:
            return plain
        said: dict[str, object] = {}
        for key in self.keys:
            meaning = _meaning(key)
            if meaning in values:
                said[key] = values[meaning]
        if not said:
            said = dict(values)
        return json.dumps(said, ensure_ascii=False)


@lru_cache(maxsize=512)
def _meaning(key: str) -> str:
    name = key.lower().strip().replace(" ", "_").replace("-", "_")
    for meaning, pattern in patterns("keys").items():
        if pattern.search(name):
            return meaning
    return ""


def asked_shape(request: ChatRequest, frame: str) -> Shape:
    """The shape asked for by the request's schema, else by its words."""
    if request.schema is not None:
        return _of_schema(request.schema)
    return _of_words(frame, request.json_mode)


def _of_schema(schema: Mapping[str, object]) -> Shape:
    properties = cast("Mapping[str, Mapping[str, object]]", schema.get("properties") or {})
    kinds = {key: str(node.get("type", "")) for key, node in properties.items()}
    return Shape(
        True,
        tuple(properties),
        frozenset(k for k, kind in kinds.items() if kind == "object"),
        frozenset(k for k, kind in kinds.items() if kind == "array"),
    )


@lru_cache(maxsize=512)
def _of_words(frame: str, json_mode: bool) -> Shape:
    if not json_mode and not _WANTS_JSON.search(frame):
        return Shape(False)
    keys = _KEY.findall(frame)
    nested = _nested(frame)
    names: Sequence[str] = [k for k in keys if k not in nested]
    names = names or _NAMED.findall(frame) or _BULLET_KEY.findall(frame)
    opened = {m[1].strip(): m[2] for m in _STRING_INSTINCT.finditer(frame)}
    return Shape(
        True,
        tuple(dict.fromkeys(k.strip() for k in names)),
        frozenset(k for k, mark in opened.items() if mark == "{"),
        frozenset(k for k, mark in opened.items() if mark == "["),
    )


def _nested(frame: str) -> set[str]:
    """Keys that stand inside an inner object of the JSON shown."""
    found: set[str] = set()
    for inner in re.findall(r"[\"'`]\s*:\s*\{([^{}]*)\}", frame):
        found.update(_KEY.findall(inner))
    return found
