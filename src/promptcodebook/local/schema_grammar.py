"""A schema as the grammar of the texts that satisfy it, for engines that follow grammars."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
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
    states,
    text,
    whole_number,
)
from promptcodebook.local.schema import LONGEST_TEXT, MOST_ITEMS, bound_schema, refuse

_KEY = 64
"""Characters of such an entry's name."""
_DECIMALS = 3
_DEPTH = 3
"""How deep a value nests of which the schema says nothing."""
_LARGEST = 10**9 - 1
_SETS = 1000
"""The most sets of items met so far that a list of distinct items is spelled out in."""
_STEPS = 20
"""Steps of spelling out such a list that take as long as a state."""
_LONGEST = 200_000
"""Characters of a schema."""
_MOST_STATES = 20_000
"""Of a grammar: engines compile that many in a second, and keep some 5 MB of them."""
_Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as the engine reads it, and about how many states it makes of it."""

    text: str
    states: int


def schema_grammar(schema: Mapping[str, object]) -> Node:
    """The texts that satisfy the schema (of those, the ones in its own order of properties).

    Raises RequestRefused for one that cannot be enforced, or is too large.
    """
    return _Building().node(bound_schema(schema))


def schema_ebnf(schema: Mapping[str, object]) -> Grammar:
    """The same for the engine."""
    try:
        written = json.dumps(schema)
        if len(written) > _LONGEST:
            raise refuse(f"it has more than {_LONGEST:,} characters", "")
        return _cached_ebnf(written)
    except RecursionError:
        raise refuse("it is nested too deeply", "") from None


@lru_cache(maxsize=64)
def _cached_ebnf(schema: str) -> Grammar:
    root = schema_grammar(json.loads(schema))
    return Grammar(ebnf(root), _affordable(states(root)))


def _affordable(count: int) -> int:
    if count > _MOST_STATES:
        raise refuse(
            f"a grammar of it has more than {_MOST_STATES:,} states: it allows too many characters",
            "",
        )
    return count


class _Building:
    """The grammar of a bounded schema. What it has so far is counted while it grows."""

    def __init__(self) -> None:
        self._states = 0

    def node(self, tree: _Tree) -> Node:
        if "enum" in tree:
            return self._leaf(Rule(choice(_json(value) for value in tree["enum"])))
        if "anyOf" in tree:
            return Rule(choice(self.node(each) for each in tree["anyOf"]))
        match tree.get("type"):
            case "object":
                return Rule(_object(tree, self.node))
            case "array" if tree.get("uniqueItems"):
                return self._leaf(Rule(_distinct(tree)))
            case "array":
                return Rule(_array(tree, self.node))
            case "integer" | "number" if len(tree) > 1:
                return self._leaf(_range(tree))
            case _:
                return _plain(tree)

    def _leaf(self, node: Node) -> Node:
        self._states = _affordable(self._states + states(node))
        return node


def _range(tree: _Tree) -> Node:
    if tree["type"] == "integer":
        return whole_number(*_bounds(tree, 0))
    return number([_bounds(tree, decimals) for decimals in range(_DECIMALS + 1)])


def _plain(tree: _Tree) -> Node:
    match tree.get("type"):
        case "string":
            return text(tree["minLength"], tree["maxLength"])
        case "integer":
            return any_number(0)
        case "number":
            return any_number(_DECIMALS)
        case "boolean":
            return Rule(choice(["true", "false"]))
        case "null":
            return Literal("null")
        case _:
            return _anything(_DEPTH)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(tree: _Tree, made: Callable[[_Tree], Node]) -> Node:
    if "properties" not in tree:
        return _entries(made(tree["additionalProperties"]))
    required = set(tree["required"])
    fields = [
        (row(f"{_json(name)}:", space(), made(node)), name in required)
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


def _array(tree: _Tree, made: Callable[[_Tree], Node]) -> Node:
    least, most = tree["minItems"], tree["maxItems"]
    if most == 0:
        return Literal("[]")
    first = tree.get("prefixItems", [])
    if not first:
        items = _listed(made(tree["items"]), least, most)
        return row("[", items if least else Repeat(items, 0, 1), "]")
    parts = [(made(each), i < least) for i, each in enumerate(first[:most])]
    rest, left = made(tree["items"]), most - len(first)
    tail: Node = Literal("")
    if left > 0:
        tail = Repeat(row(",", space(), rest), max(0, least - len(first)), left)
    return row("[", _prefix(parts, tail), "]")


def _prefix(parts: Sequence[tuple[Node, bool]], tail: Node) -> Node:
    """A list may end only where no further item is required."""
    node = tail
    for i, (part, required) in reversed(list(enumerate(parts))):
        here = row(*([",", space()] if i else []), part, node)
        node = Rule(here if required else choice([here, ""]))
    return node


def _distinct(tree: _Tree) -> Node:
    """A list of distinct values: spelled out over the sets of those that came already, or, where
    these are too many, in the order of the schema."""
    values, least, most = tree["items"]["enum"], tree["minItems"], tree["maxItems"]
    _affordable(len(values) * len(values) * most // _STEPS)
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
    whole = tree["type"] == "integer"
    if low > high and decimals == (0 if whole else _DECIMALS):
        what = "whole number" if whole else f"number of {_DECIMALS} decimals"
        raise refuse(f"no {what} is within its bounds", "a number")
    return low, high


@cache
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
