"""The JSON schema of a reply's shape, as sent in `response_format`."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from promptcodebook.lm.base import Schema

__all__ = ["is_strict", "schema_of"]


@cache
def schema_of(shape: type[BaseModel]) -> Schema:
    """The shape's schema: its bounds and descriptions kept, titles dropped, no further fields."""
    body = cast("dict[str, Any]", _lean(shape.model_json_schema()))
    # A docstring speaks to us; what the model should know stands in the fields' descriptions.
    body.pop("description", None)
    return Schema(shape.__name__.strip("_"), body)


def _lean(node: object) -> object:
    if isinstance(node, list):
        return [_lean(each) for each in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    tree = cast("dict[str, object]", node)
    out = {key: _lean(value) for key, value in tree.items() if not _is_title(key, value)}
    if "properties" in tree:
        out["properties"] = {
            name: _lean(value)
            for name, value in cast("dict[str, object]", tree["properties"]).items()
        }
        out.setdefault("additionalProperties", False)
    return out


def _is_title(key: str, value: object) -> bool:
    # A property may itself be named 'title': its value is then a schema, not a string.
    return key == "title" and isinstance(value, str)


def is_strict(node: object) -> bool:
    """Whether 'strict' may be asked for: every object closed, every property required."""
    if isinstance(node, list):
        return all(is_strict(each) for each in cast("list[object]", node))
    if not isinstance(node, dict):
        return True
    tree = cast("dict[str, object]", node)
    if tree.get("type") == "object" or "properties" in tree:
        names = set(cast("dict[str, object]", tree.get("properties", {})))
        required = set(cast("list[str]", tree.get("required", [])))
        if tree.get("additionalProperties") is not False or names != required:
            return False
    return all(is_strict(each) for each in tree.values())
