"""What of JSON Schema can be enforced, and how: a schema -> bounded schema -> grammar.

Every string and list without a bound of its own gets one, so that no reply runs on; references are
put in their places. A keyword that cannot be enforced is refused by its name and place, and so is a
schema that refers to itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import Any, cast

from promptcodebook.errors import RequestRefused
from promptcodebook.local.grammar import (
    Literal,
    Node,
    Repeat,
    Rule,
    any_number,
    choice,
    ebnf,
    number,
    row,
    space,
    text,
    whole_number,
)

__all__ = ["bound_schema", "schema_ebnf", "schema_grammar"]

_LONGEST = 1000
"""Characters of a string without `maxLength`."""
_MOST = 32
"""Items of a list without `maxItems`, and entries of an object without `properties`."""
_KEY = 64
"""Characters of such an entry's name."""
_DEPTH = 3
"""How deep a value nests of which the schema says nothing."""
_LARGEST = 10**9 - 1
_DECIMALS = 3
_SETS = 1000
"""The most sets of items met so far that a list of distinct items is spelled out in."""

_NOTES = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
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
_Tree = Mapping[str, Any]


def bound_schema(schema: Mapping[str, object]) -> dict[str, Any]:
    """The same schema with a bound on every string and list, and no reference left.

    Raises RequestRefused for what cannot be enforced.
    """
    return _Bounding(schema).node(schema, "", ())


def schema_grammar(schema: Mapping[str, object]) -> Node:
    """The texts that satisfy the schema (of those, the ones in its own order of properties)."""
    return _node(bound_schema(schema))


def schema_ebnf(schema: Mapping[str, object]) -> str:
    """The grammar as the engine reads it."""
    return _cached_ebnf(json.dumps(schema))


@lru_cache(maxsize=256)
def _cached_ebnf(schema: str) -> str:
    return ebnf(schema_grammar(json.loads(schema)))


def _refuse(what: str, place: str) -> RequestRefused:
    return RequestRefused(
        f"the schema cannot be enforced: {what} (at {place or 'its root'})",
        hint="leave it out of the schema, and check the reply for it",
    )


class _Bounding:
    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root

    def node(self, node: object, place: str, within: tuple[str, ...]) -> dict[str, Any]:
        if node is True:
            return {}
        if not isinstance(node, Mapping):
            raise _refuse(f"{node!r} is no schema that anything satisfies", place)
        tree = {k: v for k, v in cast(_Tree, node).items() if k not in _NOTES}
        for key in ("$ref", "anyOf", "allOf", "enum", "const"):
            if key in tree:
                return self._special(key, tree, place, within)
        return self._typed(tree, place, within)

    def _special(
        self, key: str, tree: dict[str, Any], place: str, within: tuple[str, ...]
    ) -> dict[str, Any]:
        value = tree[key]
        beside = [k for k in tree if k != key and not (k == "type" and key in ("enum", "const"))]
        if beside:
            raise _refuse(f"{beside[0]!r} beside {key!r}", place)
        if key == "$ref":
            return self._reference(value, place, within)
        if key == "enum":
            return {"enum": _of_type(value, tree.get("type"), place)}
        if key == "const":
            return {"enum": _of_type([value], tree.get("type"), place)}
        options = [self.node(each, f"{place}/{key}/{i}", within) for i, each in enumerate(value)]
        if (key == "allOf" and len(options) != 1) or not options:
            raise _refuse(f"{key!r} of {len(options)}", place)
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _reference(self, target: object, place: str, within: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(target, str) or not target.startswith("#"):
            raise _refuse(f"a '$ref' to {target!r}, which is not in it", place)
        if target in within:
            raise _refuse(f"{target} refers to itself", place)
        node: Any = self._root
        for step in filter(None, target[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _refuse(f"there is no {target}", place)
            node = cast(_Tree, node)[name]
        return self.node(node, place, (*within, target))

    def _typed(self, tree: dict[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        kinds = tree.get("type")
        if isinstance(kinds, list):
            options = [
                self._typed({**_only(tree, kind), "type": kind}, place, within)
                for kind in cast("list[str]", kinds)
            ]
            self._check_known(tree, cast("list[str]", kinds), place)
            return options[0] if len(options) == 1 else {"anyOf": options}
        kind = str(kinds) if kinds is not None else _implied(tree)
        if kind == "":
            self._check_known(tree, [], place)
            return {}
        if kind not in _BY_TYPE:
            raise _refuse(f"the type {kind!r}", place)
        self._check_known(tree, [kind], place)
        if kind == "object":
            return self._object(tree, place, within)
        if kind == "array":
            return self._array(tree, place, within)
        if kind == "string":
            longest = tree.get("maxLength", max(_LONGEST, tree.get("minLength", 0)))
            return {"type": "string", "minLength": tree.get("minLength", 0), "maxLength": longest}
        return {"type": kind, **{k: v for k, v in tree.items() if k != "type"}}

    def _check_known(self, tree: dict[str, Any], kinds: Sequence[str], place: str) -> None:
        known = {"type"}.union(*(_BY_TYPE.get(kind, frozenset()) for kind in kinds))
        for key in tree:
            if key not in known:
                raise _refuse(f"the keyword {key!r}", place)

    def _object(self, tree: dict[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        fields = cast(_Tree, tree.get("properties") or {})
        required = [str(name) for name in tree.get("required", [])]
        missing = [name for name in required if name not in fields]
        if missing:
            raise _refuse(f"{missing[0]!r} is required and not among the properties", place)
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
        most = int(tree.get("maxItems", max(_MOST, least, len(first))))
        if tree.get("items") is False:
            most, items = min(most, len(first)), {}
        else:
            items = self.node(tree.get("items", True), f"{place}/items", within)
        if least > most:
            raise _refuse(f"at least {least} items and at most {most}", place)
        distinct = bool(tree.get("uniqueItems"))
        if distinct and most > 1 and (first or "enum" not in items):
            raise _refuse("'uniqueItems' of items that are no 'enum'", place)
        if distinct and least > len(items.get("enum", [None])):
            raise _refuse(f"at least {least} distinct items of {len(items['enum'])}", place)
        out: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": most}
        if first:
            out["prefixItems"] = first
        if distinct and most > 1:
            out["uniqueItems"] = True
            out["maxItems"] = min(most, len(items["enum"]))
        return {**out, "items": items}


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
        raise _refuse("an 'enum' without a value", place)
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


def _node(tree: _Tree) -> Node:
    """The grammar of a bounded schema."""
    if "enum" in tree:
        return Rule(choice(_json(value) for value in tree["enum"]))
    if "anyOf" in tree:
        return Rule(choice(_node(each) for each in tree["anyOf"]))
    match tree.get("type"):
        case "object":
            return Rule(_object(tree))
        case "array":
            return Rule(_distinct(tree) if tree.get("uniqueItems") else _array(tree))
        case "string":
            return text(tree["minLength"], tree["maxLength"])
        case "integer":
            return whole_number(*_bounds(tree, 0)) if len(tree) > 1 else any_number(0)
        case "number":
            ranges = [_bounds(tree, decimals) for decimals in range(_DECIMALS + 1)]
            return number(ranges) if len(tree) > 1 else any_number(_DECIMALS)
        case "boolean":
            return Rule(choice(["true", "false"]))
        case "null":
            return Literal("null")
        case _:
            return _anything(_DEPTH)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(tree: _Tree) -> Node:
    if "properties" not in tree:
        return _entries(_node(tree["additionalProperties"]))
    required = set(tree["required"])
    fields = [
        (row(f"{_json(name)}:", space(), _node(node)), name in required)
        for name, node in tree["properties"].items()
    ]
    return row("{", _fields(fields), "}")


def _fields(fields: Sequence[tuple[Node, bool]]) -> Node:
    """Properties in their order, those that are not required with or without; commas between."""
    nothing: Node = Literal("")
    after, first = nothing, nothing  # what may come after a property, and where none came yet
    for field, required in reversed(fields):
        following = row(",", space(), field, after)
        beginning = row(field, after)
        after, first = (
            (Rule(following), Rule(beginning))
            if required
            else (Rule(choice([following, after])), Rule(choice([beginning, first])))
        )
    return first


def _entries(value: Node) -> Node:
    entry = Rule(row(text(0, _KEY), ":", space(), value))
    return row("{", Repeat(_listed(entry, 1, _MOST), 0, 1), "}")


def _listed(item: Node, least: int, most: int) -> Node:
    """At least one item, commas between them."""
    if most <= 1:
        return item
    return row(item, Repeat(row(",", space(), item), max(0, least - 1), most - 1))


def _array(tree: _Tree) -> Node:
    least, most = tree["minItems"], tree["maxItems"]
    if most == 0:
        return Literal("[]")
    first = tree.get("prefixItems", [])
    if not first:
        items = _listed(_node(tree["items"]), least, most)
        return row("[", items if least else Repeat(items, 0, 1), "]")
    parts = [(_node(each), i < least) for i, each in enumerate(first[:most])]
    rest, left = _node(tree["items"]), most - len(first)
    tail: Node = Literal("")
    if left > 0:
        tail = Repeat(row(",", space(), rest), max(0, least - len(first)), left)
    return row("[", _prefix(parts, tail), "]")


def _prefix(parts: Sequence[tuple[Node, bool]], tail: Node) -> Node:
    """A list may end only where no further item is required."""
    node = tail
    for i, (part, required) in reversed(list(enumerate(parts))):
        here = row(*([",", space()] if i else []), part, node)
        node = here if required else choice([here, ""])
    return node


def _distinct(tree: _Tree) -> Node:
    """A list of distinct values: spelled out over the sets of those that came already, or, where
    these are too many, in the order of the schema."""
    values, least, most = tree["items"]["enum"], tree["minItems"], tree["maxItems"]
    sets = sum(comb(len(values), taken) for taken in range(most))
    spelled = _by_sets if sets <= _SETS else _in_order
    return row("[", spelled([_json(v) for v in values], least, most), "]")


def _by_sets(values: Sequence[str], least: int, most: int) -> Node:
    known: dict[frozenset[int], Node] = {}

    def rest(taken: frozenset[int]) -> Node:
        if taken not in known:
            left = [i for i in range(len(values)) if i not in taken] if len(taken) < most else []
            following = [row(values[i], rest(taken | {i})) for i in left]
            known[taken] = _going_on(following, bool(taken), len(taken) >= least)
        return known[taken]

    return rest(frozenset())


def _in_order(values: Sequence[str], least: int, most: int) -> Node:
    known: dict[tuple[int, int], Node] = {}

    def rest(start: int, taken: int) -> Node:
        if (start, taken) not in known:
            # Enough must be left for the least.
            end = len(values) - max(0, least - taken - 1) if taken < most else start
            following = [row(values[i], rest(i + 1, taken + 1)) for i in range(start, end)]
            known[start, taken] = _going_on(following, taken > 0, taken >= least)
        return known[start, taken]

    return rest(0, 0)


def _going_on(following: Sequence[Node], comma: bool, may_end: bool) -> Node:
    if not following:
        return Literal("")
    node = choice(following)
    if comma:
        node = row(",", space(), node)
    return Rule(choice([node, ""]) if may_end else node)


def _bounds(tree: _Tree, decimals: int) -> tuple[int, int]:
    """The range of the whole numbers that, divided by 10^decimals, are within the bounds."""
    scale = 10**decimals
    low, high = -_LARGEST * scale, _LARGEST * scale
    if (least := tree.get("minimum")) is not None:
        low = max(low, math.ceil(least * scale))
    if (above := tree.get("exclusiveMinimum")) is not None:
        low = max(low, math.floor(above * scale) + 1)
    if (most := tree.get("maximum")) is not None:
        high = min(high, math.floor(most * scale))
    if (below := tree.get("exclusiveMaximum")) is not None:
        high = min(high, math.ceil(below * scale) - 1)
    if low > high and decimals in (0, _DECIMALS) and tree.get("type") == "integer":
        raise _refuse(f"no whole number from {low} to {high}", "a number")
    return low, high


def _anything(depth: int) -> Node:
    plain: list[Node | str] = [
        text(0, _LONGEST),
        any_number(_DECIMALS),
        "true",
        "false",
        "null",
    ]
    if depth:
        inner = _anything(depth - 1)
        plain += [row("[", Repeat(_listed(inner, 1, _MOST), 0, 1), "]"), _entries(inner)]
    return Rule(choice(plain))
