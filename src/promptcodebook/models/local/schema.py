"""A JSON schema as the grammar of its texts, which xgrammar and llguidance read. Engines' own
grammars allow endless white space, which a weak model fills up to its cap. Here at most one space
follows a comma or a colon, every string and list is bounded, and properties come in the schema's
order. What cannot be enforced is refused by name and place; so is what is too large.

Enforced: type, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
uniqueItems (over an enum), minLength, maxLength, minimum, maximum, exclusiveMinimum,
exclusiveMaximum, enum, const, anyOf, $ref and $defs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb
from typing import Any, NamedTuple, cast

from promptcodebook.errors import RequestRefused

_LONGEST_TEXT = 1000  # characters of a string without `maxLength`
# Items of a list without `maxItems`, and entries of an object without `properties`.
_MOST_ITEMS = 32
_LONGEST_KEY = 64  # characters of such an entry's name
_DECIMALS = 3
_LARGEST = 10**9 - 1
_DEPTH = 3  # how deep a value nests of which the schema says nothing
# Characters in a block of a long string. A counted repetition has as many states as it counts, and
# each costs a pass over the vocabulary; blocks share theirs (measured: docs/smollm2.md).
_BLOCK = 32
_SETS = 1000  # the most sets of items met so far that a list of distinct items is spelled out in
_STEPS = 20  # steps of spelling out such a list that take as long as a state
_LONGEST_SCHEMA = 200_000  # characters
# Sub-schemas and values. To read more of them would keep all other callers waiting.
_MOST_PARTS = 5_000
# Of a grammar: engines compile that many in a second, and keep some 5 MB of them.
_MOST_STATES = 20_000

_NOTES = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"),
    *("examples", "deprecated", "readOnly", "writeOnly"),
}
# The type that a keyword speaks of, and what its value must be; () = anything.
_KEYWORDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "properties": ("object", (dict,)),
    "required": ("object", (list,)),
    "additionalProperties": ("object", ()),
    "items": ("array", ()),
    "prefixItems": ("array", (list,)),
    "uniqueItems": ("array", (bool,)),
    **dict.fromkeys(("minItems", "maxItems"), ("array", (int,))),
    **dict.fromkeys(("minLength", "maxLength"), ("string", (int,))),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("number", (int, float))
    ),
    **dict.fromkeys(("enum", "anyOf", "allOf"), ("", (list,))),
    "type": ("", (str, list)),
}
_VALUES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# Names of rules in one, each in the group; texts and characters match without it.
_NAMES = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|(r\d+)')
_Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar, and about how many states an engine makes of it."""

    text: str
    states: int


def schema_ebnf(schema: Mapping[str, object]) -> Grammar:
    """The texts that satisfy the schema, properties in its order. Raises RequestRefused when it
    cannot be enforced."""
    try:
        if len(written := json.dumps(schema)) > _LONGEST_SCHEMA:
            raise _refuse(f"it has more than {_LONGEST_SCHEMA:,} characters")
        return _cached(written)
    except RecursionError:
        raise _refuse("it is nested too deeply") from None


@lru_cache(maxsize=64)
def _cached(schema: str) -> Grammar:
    return _Writer(json.loads(schema)).grammar()


def _refuse(what: str, place: str = "") -> RequestRefused:
    message = f"the schema cannot be enforced: {what[:300]} (at {place[:300] or 'its root'})"
    return RequestRefused(message, hint="leave it out of the schema, and check the reply for it")


class RulePiece(NamedTuple):
    """A piece of a rule as it is written; `level` 1 = a row, 2 = a choice, 0 = anything else. An
    engine makes a state of each character, as often as it is repeated."""

    text: str
    states: int
    level: int = 0

    def within(self, level: int) -> str:
        return f"({self.text})" if self.level > level else self.text


def _row(*parts: RulePiece | str) -> RulePiece:
    """One after the other; a plain string means itself."""
    made = (_literal(part) if isinstance(part, str) else part for part in parts)
    found = [part for part in made if part.states] or [_NOTHING]
    if len(found) == 1:
        return found[0]
    return RulePiece(" ".join(p.within(0) for p in found), sum(p.states for p in found), 1)


def _choice(options: Iterable[RulePiece | str]) -> RulePiece:
    parts = (_literal(option) if isinstance(option, str) else option for option in options)
    found = list({part.text: part for part in parts}.values())
    if len(found) == 1:
        return found[0]
    return RulePiece(" | ".join(p.within(1) for p in found), sum(p.states for p in found), 2)


def _repeat(part: RulePiece, least: int, most: int) -> RulePiece:
    times = f"{{{least}}}" if least == most else f"{{{least},{most}}}"
    return RulePiece(f"{part.within(0)}{'?' if times == '{0,1}' else times}", part.states * most)


def _optional(part: RulePiece) -> RulePiece:
    return _repeat(part, 0, 1)


def _literal(text: str) -> RulePiece:
    return RulePiece(json.dumps(text, ensure_ascii=False), len(text))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_NOTHING, _SPACE, _DIGIT = _literal(""), _optional(_literal(" ")), RulePiece("[0-9]", 1)
_ESCAPED = _row("\\", RulePiece(r"[\"\\/bfnrt]", 1))
_CHARACTER = _choice([RulePiece(r"[^\"\\\x00-\x1f\x7f]", 1), _ESCAPED])


class _Writer:
    """Writes the grammar of one schema. A rule is a named part, which an engine compiles once."""

    def __init__(self, root: _Tree) -> None:
        self._root = root
        self._read = 0
        self._states = 0
        self._rules: dict[str, RulePiece] = {}
        self._known: dict[object, RulePiece] = {}
        self._enums: dict[str, list[str]] = {}  # by rule: the values as they are written

    def grammar(self) -> Grammar:
        """The root and the rules it needs. Raises RequestRefused."""
        root = self._node(self._root, "", ())
        found, left = {"root": root}, [root]
        while left:
            for name in filter(None, _NAMES.findall(left.pop().text)):
                if name not in found:
                    found[name] = self._rules[name]
                    left.append(found[name])
        lines = [f"{name} ::= {part.text}" for name, part in found.items()]
        states = sum(part.states for part in found.values())
        return Grammar("\n".join([*lines, ""]), states)

    def _afford(self, states: int) -> None:
        if states > _MOST_STATES:
            most = f"{_MOST_STATES:,} states: it allows too many characters"
            raise _refuse(f"its grammar has more than {most}")

    def _count(self, parts: int) -> None:
        self._read += parts
        if self._read > _MOST_PARTS:
            raise _refuse(f"it has more than {_MOST_PARTS:,} parts")

    def _rule(self, part: RulePiece) -> RulePiece:
        self._states += part.states
        self._afford(self._states)
        name = f"r{len(self._rules)}"
        self._rules[name] = part
        return RulePiece(name, 1)

    def _once(self, key: object, make: Callable[[], RulePiece]) -> RulePiece:
        if key not in self._known:
            self._known[key] = self._rule(make())
        return self._known[key]

    def _string(self, least: int, most: int) -> RulePiece:
        """A JSON string of `least` to `most` characters; none of them needs a `\\u....`."""

        def text() -> RulePiece:
            char, left = self._once("character", lambda: _CHARACTER), most - least
            body = [_repeat(char, least, least)] if least else []
            if left >= 2 * _BLOCK:
                block = self._once("block", lambda: _repeat(char, _BLOCK, _BLOCK))
                blocks = left // _BLOCK - 1
                rest = _repeat(char, 0, left - blocks * _BLOCK)
                body += [self._rule(_repeat(block, 0, blocks)), self._rule(rest)]
            elif left:
                body.append(_repeat(char, 0, left))
            return _row('"', *body, '"')

        return self._once((least, most), text)

    def _any_number(self, decimals: int) -> RulePiece:
        """A number of up to nine digits before the point and `decimals` behind it."""
        whole = _choice(["0", _row(RulePiece("[1-9]", 1), _repeat(_DIGIT, 0, 8))])
        behind = [_optional(_row(".", _repeat(_DIGIT, 1, decimals)))] if decimals else []
        number = _row(_optional(_literal("-")), whole, *behind)
        return self._once(("number", decimals), lambda: number)

    def _anything(self, depth: int) -> RulePiece:
        def options() -> RulePiece:
            plain = [self._string(0, _LONGEST_TEXT), self._any_number(_DECIMALS)]
            options: list[RulePiece | str] = [*plain, "true", "false", "null"]
            if depth:
                inner = self._anything(depth - 1)
                some = _optional(_listed(inner, 1, _MOST_ITEMS))
                options += [_row("[", some, "]"), self._entries(inner)]
            return _choice(options)

        return self._once(depth, options)

    def _entries(self, value: RulePiece) -> RulePiece:
        entry = self._rule(_row(self._string(0, _LONGEST_KEY), ":", _SPACE, value))
        return _row("{", _optional(_listed(entry, 1, _MOST_ITEMS)), "}")

    def _node(self, node: object, place: str, within: tuple[str, ...]) -> RulePiece:
        self._count(1)
        if node is True:
            return self._anything(_DEPTH)
        if not isinstance(node, Mapping):
            raise _refuse(f"{node!r} is a schema that nothing satisfies", place)
        tree = {k: v for k, v in cast(_Tree, node).items() if k not in _NOTES}
        for key, value in tree.items():
            _check_shape(key, value, place)
        for key in ("$ref", "anyOf", "allOf", "enum", "const"):
            if key in tree:
                return self._special(key, tree, place, within)
        return self._typed(tree, place, within)

    def _special(self, key: str, tree: _Tree, place: str, within: tuple[str, ...]) -> RulePiece:
        value = tree[key]
        beside = [k for k in tree if k != key and not (k == "type" and key in ("enum", "const"))]
        if beside:
            raise _refuse(f"{beside[0]!r} beside {key!r}", place)
        if key == "$ref":
            return self._reference(value, place, within)
        if key in ("enum", "const"):
            return self._enum(value if key == "enum" else [value], tree.get("type"), place)
        options = [self._node(each, f"{place}/{key}/{i}", within) for i, each in enumerate(value)]
        if (key == "allOf" and len(options) != 1) or not options:
            raise _refuse(f"{key!r} of {len(options)}", place)
        return options[0] if len(options) == 1 else self._rule(_choice(options))

    def _enum(self, values: list[Any], kind: Any, place: str) -> RulePiece:
        self._count(len(values))
        kinds = [kind] if isinstance(kind, str) else kind
        if kinds is not None:
            types = [_VALUES.get(str(each), (dict,)) for each in kinds]
            values = [v for v in values if any(_has_type(v, each) for each in types)]
        if not values:
            raise _refuse("an 'enum' without a value", place)
        texts = [*map(_json, {json.dumps(v, sort_keys=True): v for v in values}.values())]
        rule = self._rule(_choice(texts))
        self._enums[rule.text] = texts
        return rule

    def _reference(self, target: object, place: str, within: tuple[str, ...]) -> RulePiece:
        if not isinstance(target, str) or not target.startswith("#"):
            raise _refuse(f"a '$ref' to {target!r}, outside the schema", place)
        if target in within:
            raise _refuse(f"{target} refers to itself", place)
        node: Any = self._root
        for step in filter(None, target[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _refuse(f"there is no {target}", place)
            node = cast(_Tree, node)[name]
        return self._node(node, place, (*within, target))

    def _typed(self, tree: _Tree, place: str, within: tuple[str, ...]) -> RulePiece:
        given = tree.get("type")
        homes = {_KEYWORDS.get(key, ("", ()))[0] for key in tree}
        implied = next((k for k in ("object", "array", "string", "number") if k in homes), "")
        several = isinstance(given, list)
        kinds = list(map(str, cast("list[object]", given))) if several else [given or implied]
        fitting = {"number" if kind == "integer" else kind for kind in kinds}
        for key in tree:
            if key != "type" and _KEYWORDS.get(key, ("", ()))[0] not in fitting - {""}:
                raise _refuse(f"the keyword {key!r}", place)
        self._count(len(kinds) if several else 0)
        options = [self._of_kind(kind, tree, place, within) for kind in kinds]
        if not options:
            raise _refuse("a 'type' without a value", place)
        return options[0] if len(options) == 1 else self._rule(_choice(options))

    def _of_kind(self, kind: str, tree: _Tree, place: str, within: tuple[str, ...]) -> RulePiece:
        match kind:
            case "object":
                return self._object(tree, place, within)
            case "array":
                return self._array(tree, place, within)
            case "string":
                least = tree.get("minLength", 0)
                longest = tree.get("maxLength", max(_LONGEST_TEXT, least))
                if least > longest:
                    raise _refuse(f"at least {least} characters and at most {longest}", place)
                return self._string(least, longest)
            case "integer" | "number":
                return self._number(kind, tree)
            case "boolean":
                return self._rule(_choice(["true", "false"]))
            case "null":
                return _literal("null")
            case "":
                return self._anything(_DEPTH)
            case _:
                raise _refuse(f"the type {kind!r}", place)

    def _number(self, kind: str, tree: _Tree) -> RulePiece:
        decimals = 0 if kind == "integer" else _DECIMALS
        if not any(_KEYWORDS.get(key, ("", ()))[0] == "number" for key in tree):
            return self._any_number(decimals)
        spans = [_between(*_bounds(tree, d), d) for d in range(decimals + 1)]
        if not spans[-1]:
            what = f"number of {_DECIMALS} decimals" if decimals else "whole number"
            raise _refuse(f"no {what} is within its bounds", "a number")
        return self._rule(_choice(option for each in spans for option in each))

    def _object(self, tree: _Tree, place: str, within: tuple[str, ...]) -> RulePiece:
        """Properties in their order, those that are not required with or without."""
        fields = cast(_Tree, tree.get("properties") or {})
        required = [str(name) for name in tree.get("required", [])]
        if missing := [name for name in required if name not in fields]:
            raise _refuse(f"{missing[0]!r} is required but not among the properties", place)
        more = tree.get("additionalProperties", True)
        if not fields and more is not False:
            values = self._node(more, f"{place}/additionalProperties", within)
            return self._rule(self._entries(values))
        # What further properties may be is left unused: a text without them satisfies it too.
        written = [
            _row(f"{_json(name)}:", _SPACE, self._node(node, f"{place}/{name}", within))
            for name, node in fields.items()
        ]
        after, first = _NOTHING, _NOTHING  # after a property, and where none came yet
        for name, field in reversed(list(zip(fields, written, strict=True))):
            following, beginning = _row(",", _SPACE, field, after), _row(field, after)
            if name not in required:
                following = _choice([following, after])
                beginning = _choice([beginning, first])
            after, first = self._rule(following), self._rule(beginning)
        return self._rule(_row("{", first, "}"))

    def _array(self, tree: _Tree, place: str, within: tuple[str, ...]) -> RulePiece:
        prefix = enumerate(tree.get("prefixItems", []))
        first = [self._node(each, f"{place}/{i}", within) for i, each in prefix]
        least = int(tree.get("minItems", 0))
        most = int(tree.get("maxItems", max(_MOST_ITEMS, least, len(first))))
        items = _NOTHING
        if tree.get("items") is False:
            most = min(most, len(first))
        else:
            items = self._node(tree.get("items", True), f"{place}/items", within)
        if least > most:
            raise _refuse(f"at least {least} items and at most {most}", place)
        if tree.get("uniqueItems") and most > 1:
            values = self._enums.get(items.text, [])
            if first or not values:
                raise _refuse("'uniqueItems' for items without an 'enum'", place)
            if least > len(values):
                raise _refuse(f"at least {least} distinct items out of {len(values)}", place)
            return self._rule(self._distinct(values, least, min(most, len(values))))
        if not most:
            return self._rule(_literal("[]"))
        if not first:
            some = _listed(items, least, most)
            return self._rule(_row("[", some if least else _optional(some), "]"))
        # It may end only where no further item is required.
        left, tail = most - len(first), _NOTHING
        if left > 0:
            tail = _repeat(_row(",", _SPACE, items), max(0, least - len(first)), left)
        for i, part in reversed(list(enumerate(first[:most]))):
            here = _row(*([",", _SPACE] if i else []), part, tail)
            tail = self._rule(here if i < least else _choice([here, ""]))
        return self._rule(_row("[", tail, "]"))

    def _distinct(self, values: Sequence[str], least: int, most: int) -> RulePiece:
        """Distinct values: by the sets that came already or, if too many, in the schema's order."""
        size = len(values)
        self._afford(size * size * most // _STEPS)
        by_sets = sum(comb(size, taken) for taken in range(most)) <= _SETS

        @cache
        def rest(used: frozenset[int], taken: int) -> RulePiece:
            """What may come after `taken` values; none of those that are `used` up."""
            # Enough must be left for the least.
            end = size if by_sets else size - max(0, least - taken - 1)
            following: list[RulePiece] = []
            for i in range(end if taken < most else 0):
                if i not in used:
                    after: frozenset[int] = frozenset([*used, i] if by_sets else range(i + 1))
                    following.append(_row(values[i], rest(after, taken + 1)))
            if not following:
                return _NOTHING
            node = _choice(following)
            if taken:
                node = _row(",", _SPACE, node)
            return self._rule(_choice([node, ""]) if taken >= least else node)

        return _row("[", rest(frozenset[int](), 0), "]")


def _listed(item: RulePiece, least: int, most: int) -> RulePiece:
    if most <= 1:
        return item
    return _row(item, _repeat(_row(",", _SPACE, item), max(0, least - 1), most - 1))


def _check_shape(key: str, value: object, place: str) -> None:
    """Raises RequestRefused for a value that the keyword cannot have."""
    shape = _KEYWORDS.get(key, ("", ()))[1]
    fits = not shape or _has_type(value, shape)
    if isinstance(value, float) and shape:
        fits = fits and math.isfinite(value)
    elif fits and shape == (int,):
        fits = cast("int", value) >= 0
    if not fits:
        raise _refuse(f"{key!r} is {value!r}", place)


def _has_type(value: object, types: tuple[type, ...]) -> bool:
    """As `isinstance`, but a truth value is no number."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


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
    return low, high


def _between(low: int, high: int, decimals: int) -> list[RulePiece]:
    """The numbers from low to high, divided by 10^decimals, as JSON writes them."""
    if low > high:
        return []
    below = _by_length(max(1, -high), -low, decimals) if low < 0 else []
    above = _by_length(max(0, low), high, decimals) if high >= 0 else []
    return [*(_row("-", each) for each in below), *above]


def _by_length(low: int, high: int, decimals: int) -> list[RulePiece]:
    """From low to high, 0 or more: a part for each number of digits. None begins with 0."""
    found: list[RulePiece] = []
    least = decimals + 1
    for size in range(max(least, len(str(low))), max(least, len(str(high))) + 1):
        first = 0 if size == least else 10 ** (size - 1)
        start, end = max(low, first), min(high, 10**size - 1)
        if start <= end:
            found.append(_digits(f"{start:0{size}d}", f"{end:0{size}d}", decimals))
    return found


def _digits(low: str, high: str, decimals: int) -> RulePiece:
    """As many digits as low and high have, from the one to the other."""
    if not low:
        return _NOTHING
    point = "." if len(low) == decimals else ""
    zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)

    def those(first: int, last: int, least: str, most: str) -> RulePiece:
        return _row(point, RulePiece(f"[{first}-{last}]", 1), _digits(least, most, decimals))

    first, last, options = int(low[0]), int(high[0]), list[RulePiece]()
    if first == last:
        return those(first, last, low[1:], high[1:])
    if low[1:] != zeros:
        options.append(those(first, first, low[1:], nines))
        first += 1
    if high[1:] != nines:
        options.append(those(last, last, zeros, high[1:]))
        last -= 1
    if first <= last:
        options.append(those(first, last, zeros, nines))
    return _choice(options)
