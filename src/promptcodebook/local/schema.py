"""What of JSON Schema can be enforced: a schema becomes the same schema with a bound on everything.

Strings and lists without a bound get one, so that every reply ends, and references are resolved. A
keyword that cannot be enforced is refused by name and place. So is a schema that refers to itself,
or that has too many parts once its references are resolved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from promptcodebook.errors import RequestRefused

LONGEST_TEXT = 1000
"""Characters of a string without `maxLength`."""
MOST_ITEMS = 32
"""Items of a list without `maxItems`, and entries of an object without `properties`."""

_NOTES = frozenset(
    (
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"),
        *("examples", "deprecated", "readOnly", "writeOnly"),
    )
)
_BY_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_SHAPES: Mapping[str, tuple[type, ...]] = {
    "properties": (dict,),
    "type": (str, list),
    **dict.fromkeys(("required", "prefixItems", "enum", "anyOf", "allOf"), (list,)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    "uniqueItems": (bool,),
}
"""What a keyword's value must be, where it is read as such."""
_MOST_PARTS = 5_000
"""Sub-schemas and values. To read more of them would keep all other callers waiting."""
_Tree = Mapping[str, Any]


def bound_schema(schema: Mapping[str, object]) -> dict[str, Any]:
    """The same schema with a bound on every string and list, and no reference left.

    Raises RequestRefused for what cannot be enforced.
    """
    return _Bounding(schema).node(schema, "", ())


def refuse(what: str, place: str) -> RequestRefused:
    return RequestRefused(
        f"the schema cannot be enforced: {what[:300]} (at {place[:300] or 'its root'})",
        hint="leave it out of the schema, and check the reply for it",
    )


class _Bounding:
    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._parts = 0

    def node(self, node: object, place: str, within: tuple[str, ...]) -> dict[str, Any]:
        self._count(1)
        if node is True:
            return {}
        if not isinstance(node, Mapping):
            raise refuse(f"{node!r} is no schema that anything satisfies", place)
        tree = {k: v for k, v in cast(_Tree, node).items() if k not in _NOTES}
        for key, value in tree.items():
            _check_shape(key, value, place)
        for key in ("$ref", "anyOf", "allOf", "enum", "const"):
            if key in tree:
                return self._special(key, tree, place, within)
        return self._typed(tree, place, within)

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MOST_PARTS:
            raise refuse(f"it has more than {_MOST_PARTS:,} parts", "")

    def _special(
        self, key: str, tree: dict[str, Any], place: str, within: tuple[str, ...]
    ) -> dict[str, Any]:
        value = tree[key]
        beside = [k for k in tree if k != key and not (k == "type" and key in ("enum", "const"))]
        if beside:
            raise refuse(f"{beside[0]!r} beside {key!r}", place)
        if key == "$ref":
            return self._reference(value, place, within)
        if key == "enum":
            self._count(len(value))
            return {"enum": _of_type(value, tree.get("type"), place)}
        if key == "const":
            return {"enum": _of_type([value], tree.get("type"), place)}
        options = [self.node(each, f"{place}/{key}/{i}", within) for i, each in enumerate(value)]
        if (key == "allOf" and len(options) != 1) or not options:
            raise refuse(f"{key!r} of {len(options)}", place)
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _reference(self, target: object, place: str, within: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(target, str) or not target.startswith("#"):
            raise refuse(f"a '$ref' to {target!r}, which is not in it", place)
        if target in within:
            raise refuse(f"{target} refers to itself", place)
        node: Any = self._root
        for step in filter(None, target[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise refuse(f"there is no {target}", place)
            node = cast(_Tree, node)[name]
        return self.node(node, place, (*within, target))

    def _typed(self, tree: dict[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        kinds = tree.get("type")
        if isinstance(kinds, list):
            listed = list(map(str, cast("list[object]", kinds)))
            self._count(len(listed))
            options = [
                self._typed({**_only(tree, kind), "type": kind}, place, within) for kind in listed
            ]
            self._check_known(tree, listed, place)
            if not options:
                raise refuse("'type' of 0", place)
            return options[0] if len(options) == 1 else {"anyOf": options}
        kind = str(kinds) if kinds is not None else _implied(tree)
        if kind == "":
            self._check_known(tree, [], place)
            return {}
        if kind not in _BY_TYPE:
            raise refuse(f"the type {kind!r}", place)
        self._check_known(tree, [kind], place)
        if kind == "object":
            return self._object(tree, place, within)
        if kind == "array":
            return self._array(tree, place, within)
        if kind == "string":
            least = tree.get("minLength", 0)
            longest = tree.get("maxLength", max(LONGEST_TEXT, least))
            if least > longest:
                raise refuse(f"at least {least} characters and at most {longest}", place)
            return {"type": "string", "minLength": least, "maxLength": longest}
        return {"type": kind, **{k: v for k, v in tree.items() if k != "type"}}

    def _check_known(self, tree: dict[str, Any], kinds: Sequence[str], place: str) -> None:
        known = {"type"}.union(*(_BY_TYPE.get(kind, frozenset()) for kind in kinds))
        for key in tree:
            if key not in known:
                raise refuse(f"the keyword {key!r}", place)

    def _object(self, tree: dict[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        fields = cast(_Tree, tree.get("properties") or {})
        required = [str(name) for name in tree.get("required", [])]
        missing = [name for name in required if name not in fields]
        if missing:
            raise refuse(f"{missing[0]!r} is required and not among the properties", place)
        more = tree.get("additionalProperties", True)
        if not fields and more is not False:
            values = self.node(more, f"{place}/additionalProperties", within)
            return {"type": "object", "additionalProperties": values}
        bounded = {k: self.node(v, f"{place}/{k}", within) for k, v in fields.items()}
        # What further properties may be is left unused: a text without them satisfies it too.
        return {
            "type": "object",
            "properties": bounded,
            "required": required,
            "additionalProperties": False,
        }

    def _array(self, tree: dict[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        first = [
            self.node(each, f"{place}/{i}", within)
            for i, each in enumerate(tree.get("prefixItems", []))
        ]
        least = int(tree.get("minItems", 0))
        most = int(tree.get("maxItems", max(MOST_ITEMS, least, len(first))))
        if tree.get("items") is False:
            most, items = min(most, len(first)), {}
        else:
            items = self.node(tree.get("items", True), f"{place}/items", within)
        if least > most:
            raise refuse(f"at least {least} items and at most {most}", place)
        distinct = bool(tree.get("uniqueItems"))
        if distinct and most > 1 and (first or "enum" not in items):
            raise refuse("'uniqueItems' of items that are no 'enum'", place)
        if distinct and least > len(items.get("enum", [None])):
            raise refuse(f"at least {least} distinct items of {len(items['enum'])}", place)
        out: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": most}
        if first:
            out["prefixItems"] = first
        if distinct and most > 1:
            out["uniqueItems"] = True
            out["maxItems"] = min(most, len(items["enum"]))
        return {**out, "items": items}


def _check_shape(key: str, value: object, place: str) -> None:
    """Raises RequestRefused for a value that the keyword cannot have."""
    shape = _SHAPES.get(key)
    if shape is None:
        return
    fits = isinstance(value, shape) and (bool in shape or not isinstance(value, bool))
    if isinstance(value, float):
        fits = fits and math.isfinite(value)
    elif fits and shape == (int,):
        fits = cast("int", value) >= 0
    if not fits:
        raise refuse(f"{key!r} is {value!r}", place)


def _only(tree: dict[str, Any], kind: str) -> dict[str, Any]:
    known = _BY_TYPE.get(kind, frozenset())
    return {k: v for k, v in tree.items() if k in known}


def _implied(tree: dict[str, Any]) -> str:
    """The type that keywords speak of where none is named; '' where they say nothing."""
    for kind in ("object", "array", "string"):
        if any(key in _BY_TYPE[kind] for key in tree):
            return kind
    return "number" if any(key in _BY_TYPE["number"] for key in tree) else ""


def _of_type(values: object, kind: object, place: str) -> list[Any]:
    """The values of an enum that are of its type, each once."""
    listed = cast("list[Any]", values) if isinstance(values, list) else []
    kinds = cast("list[str]", kind) if isinstance(kind, list) else [kind]
    kept = [v for v in listed if kind is None or any(_is(v, str(each)) for each in kinds)]
    if not kept:
        raise refuse("an 'enum' without a value", place)
    return list({json.dumps(v, sort_keys=True): v for v in kept}.values())


def _is(value: object, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)
