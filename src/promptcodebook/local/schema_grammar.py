"""A schema as the grammar of the texts that satisfy it, for engines that follow grammars."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import Any

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
from promptcodebook.local.schema import LONGEST_TEXT, MOST_ITEMS, bound_schema, refuse

__all__ = ["schema_ebnf", "schema_grammar"]

_KEY = 64
"""Characters of such an entry's name."""
_DECIMALS = 3
_DEPTH = 3
"""How deep a value nests of which the schema says nothing."""
_LARGEST = 10**9 - 1
_SETS = 1000
"""The most sets of items met so far that a list of distinct items is spelled out in."""
_Tree = Mapping[str, Any]


def schema_grammar(schema: Mapping[str, object]) -> Node:
    """The texts that satisfy the schema (of those, the ones in its own order of properties)."""
    return _node(bound_schema(schema))


def schema_ebnf(schema: Mapping[str, object]) -> str:
    """The grammar as the engine reads it."""
    return _cached_ebnf(json.dumps(schema))


@lru_cache(maxsize=256)
def _cached_ebnf(schema: str) -> str:
    return ebnf(schema_grammar(json.loads(schema)))


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
    return row("{", Repeat(_listed(entry, 1, MOST_ITEMS), 0, 1), "}")


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
        raise refuse(f"no whole number from {low} to {high}", "a number")
    return low, high


def _anything(depth: int) -> Node:
    plain: list[Node | str] = [
        text(0, LONGEST_TEXT),
        any_number(_DECIMALS),
        "true",
        "false",
        "null",
    ]
    if depth:
        inner = _anything(depth - 1)
        plain += [row("[", Repeat(_listed(inner, 1, MOST_ITEMS), 0, 1), "]"), _entries(inner)]
    return Rule(choice(plain))
