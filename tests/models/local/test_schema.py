"""A schema as a grammar: what is drawn from it is JSON, satisfies the schema, and ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.errors import RequestRefused
from promptcodebook.lm.wire import schema_of
from promptcodebook.method import critic
from promptcodebook.method.init import instincts_schema
from promptcodebook.method.policy import route_schema
from promptcodebook.models.local.schema import schema_ebnf

_ROLES = {
    "route": route_schema(4, 16).body,
    "large route": route_schema(6, 40).body,
    "verdict": schema_of(critic.VerdictReply).body,
    "critique": critic.blame_schema(critic.CritiqueReply, (0, 3, 7)).body,
    "attribution": critic.blame_schema(critic.AttributionReply, (1, 2)).body,
    "attribution as printed": critic.blame_schema(critic.OneStringAttributionReply, (1,)).body,
    "rubric": schema_of(critic.RubricReply).body,
    "instincts": instincts_schema(8, 25).body,
}


_KINDS = ("object", "array", "string", "integer", "number", "boolean", "null")


_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|\[(?P<chars>(?:[^\]\\]|\\.)*)\]|(?P<rule>r\d+)'
    r"|\{(?P<least>\d+),?(?P<most>\d*)\}|(?P<mark>[?()|])"
)
_RANGE = re.compile(r"(\\x..|\\.|.)(?:-(\\x..|\\.|.))?")

# What to make of texts, characters, rows, choices and repetitions.
Meaning = Mapping[str, Callable[..., Any]]

EVERY: Meaning = {
    "text": lambda text: [text],
    "chars": list,
    "row": lambda parts: ["".join(each) for each in product(*parts)],
    "or": lambda parts: [text for part in parts for text in part],
    "times": lambda part, least, most: [t * n for n in range(least, most + 1) for t in part],
}
DRAWN: Meaning = {
    "text": st.just,
    "chars": lambda chars: (
        st.characters(exclude_characters=chars[1:], codec="utf-8")
        if chars[0] == "^"
        else st.sampled_from(chars)
    ),
    "row": lambda parts: st.tuples(*parts).map("".join),
    "or": st.one_of,
    "times": lambda part, least, most: (
        part.map(lambda text: text * least)  # a long block: one piece of it, over and over
        if least > 4
        else st.lists(part, min_size=least, max_size=min(most, least + 3)).map("".join)
    ),
}


def meaning(schema: Any, of: Meaning) -> Any:
    """The printed grammar of a schema, read back."""
    lines = [line.split(" ::= ", 1) for line in schema_ebnf(schema).text.strip("\n").split("\n")]
    bodies, known = dict(lines), dict[str, Any]()
    assert lines[0][0] == "root" and len(bodies) == len(lines)

    def rule(name: str) -> Any:
        if name not in known:
            assert not _TOKEN.sub("", bodies[name]).strip()
            known[name] = options(list(_TOKEN.finditer(bodies[name]))[::-1])
        return known[name]

    def options(left: list[re.Match[str]]) -> Any:
        found = [row(left)]
        while left and left[-1]["mark"] == "|":
            left.pop()
            found.append(row(left))
        return of["or"](found) if len(found) > 1 else found[0]

    def row(left: list[re.Match[str]]) -> Any:
        parts: list[Any] = []
        while left and left[-1]["mark"] not in ("|", ")"):
            token = left.pop()
            if token["least"] or token["mark"] == "?":
                least, most = (token["least"], token["most"]) if token["least"] else ("0", "1")
                parts[-1] = of["times"](parts[-1], int(least), int(most or least))
            elif token["mark"]:
                parts.append(options(left))
                assert left.pop()["mark"] == ")"
            elif token["text"]:
                parts.append(of["text"](json.loads(token["text"])))
            else:
                chars = token["chars"]
                parts.append(rule(token["rule"]) if chars is None else of["chars"](spelled(chars)))
        return of["row"](parts) if len(parts) > 1 else parts[0]

    return rule("root")


def spelled(chars: str) -> str:
    """A class of characters without its ranges and escapes; a ^ before it stays."""

    def code(text: str) -> int:
        return int(text[2:], 16) if text.startswith("\\x") else ord(text[-1])

    pairs = ((code(m[1]), code(m[2] or m[1])) for m in _RANGE.finditer(chars))
    return "".join(chr(each) for low, high in pairs for each in range(low, high + 1))


@cache
def _of_role(name: str) -> st.SearchStrategy[str]:
    return meaning(_ROLES[name], DRAWN)


def check(schema: Any, text: str) -> None:
    jsonschema.validate(json.loads(text), dict(schema))
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    assert re.search(r"\s\s|[\[{] | [\]},:]|[\n\t]", outside) is None, text


# To build the strategy of a route takes a second.
_SLOW = {"route": pytest.mark.slow, "large route": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(n, marks=_SLOW.get(n, ())) for n in _ROLES])
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_a_role_s_reply_satisfies_its_schema(name: str, data: st.DataObject) -> None:
    check(_ROLES[name], data.draw(_of_role(name)))


_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.text(max_size=5))
_FEW = st.integers(0, 3)


@st.composite
def _leaves(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from((*_KINDS[2:], "nullable", "enum", "const", "distinct")))
    low, more = draw(st.integers(0, 5)), draw(st.integers(0, 80))
    match kind:
        case "string":
            return {"type": kind, "minLength": low, "maxLength": low + more}
        case "integer" | "number":
            least = draw(st.integers(-1200, 1200)) / (1 if kind == "integer" else 4)
            return {"type": kind, "minimum": least, "maximum": least + more}
        case "nullable":
            return {"type": ["integer", "null"]}
        case "enum":
            return {"enum": draw(st.lists(_VALUES, min_size=1, max_size=4))}
        case "const":
            return {"const": draw(_VALUES)}
        case "distinct":
            size = draw(st.integers(1, 6))
            least = min(size, low)
            items = {"type": "array", "uniqueItems": True, "items": {"enum": list(range(size))}}
            return {**items, "minItems": least, "maxItems": max(2, least + 1)}
        case _:
            return {"type": kind}


@st.composite
def _nested(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    kind = draw(st.sampled_from(("object", "array", "anyOf")))
    if kind == "anyOf":
        return {"anyOf": draw(st.lists(inner, min_size=1, max_size=3))}
    if kind == "array":
        least, first = draw(_FEW), draw(st.lists(inner, max_size=2))
        bounds = {"minItems": least, "maxItems": least + draw(_FEW)}
        prefix = {"prefixItems": first} if first else {}
        return {"type": kind, "items": draw(inner), **bounds, **prefix}
    names = st.sampled_from(["a", "b", 'q"uote', "ü", "long name"])
    fields = draw(st.dictionaries(names, inner, max_size=3))
    required = [name for name in fields if draw(st.booleans())]
    closed = {"required": required, "additionalProperties": False}
    return {"type": kind, "properties": fields, **closed}


_PLAIN = st.sampled_from([{"type": kind} for kind in _KINDS[2:]])
_SCHEMAS = st.recursive(_leaves() | _PLAIN, _nested, max_leaves=6)


@given(schema=_SCHEMAS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_schema_that_is_taken_is_kept(schema: Any, data: st.DataObject) -> None:
    check(schema, data.draw(meaning(schema, DRAWN)))


@given(low=st.integers(-3000, 3000), width=st.integers(0, 500))
@settings(max_examples=15, deadline=None)
def test_a_range_of_whole_numbers_is_just_that(low: int, width: int) -> None:
    found = meaning({"type": "integer", "minimum": low, "maximum": low + width}, EVERY)
    assert sorted(map(int, found)) == list(range(low, low + width + 1))


def test_exclusive_bounds_and_decimals() -> None:
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    found = {float(text) for text in meaning(schema, EVERY)}
    assert (min(found), max(found), len(found)) == (0.001, 1.0, 1000)


def test_distinct_items_come_in_any_order_where_that_can_be_spelled_out() -> None:
    def orders(size: int, take: int) -> set[tuple[int, ...]]:
        items = {"enum": list(range(size))}
        schema = {"type": "array", "items": items, "minItems": take, "maxItems": take}
        return {tuple(json.loads(t)) for t in meaning(schema | {"uniqueItems": True}, EVERY)}

    assert orders(4, 2) == {(a, b) for a in range(4) for b in range(4) if a != b}
    many = orders(45, 3)  # 1,036 sets on the way: in the schema's order
    assert all(list(each) == sorted(set(each)) for each in many)
    assert len(many) == 45 * 44 * 43 // 6


def test_properties_stand_in_the_schema_s_order_and_optional_ones_may_be_missing() -> None:
    fields = {name: {"type": "null"} for name in "abc"}
    schema = {"type": "object", "properties": fields, "required": ["b"]}
    found = {tuple(json.loads(text)) for text in meaning(schema, EVERY)}
    assert found == {("b",), ("a", "b"), ("b", "c"), ("a", "b", "c")}


def test_references_are_followed() -> None:
    schema = {
        "$defs": {"Leaf": {"type": "boolean"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/Leaf"}},
        "required": ["x"],
    }
    found = {text.replace(" ", "") for text in meaning(schema, EVERY)}
    assert found == {'{"x":true}', '{"x":false}'}


@pytest.mark.parametrize(("schema", "message"), [
    ({"type": "string", "pattern": "a+"}, "'pattern' (at its root)"),
    ({"type": "object", "properties": {"a": {"format": "date"}}}, "'format' (at /a)"),
    ({"oneOf": [{"type": "null"}]}, "'oneOf'"),
    ({"allOf": [{"type": "null"}, {"type": "string"}]}, "'allOf' of 2"),
    ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "no whole number"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, "'uniqueItems'"),
    ({"type": "array", "minItems": 3, "maxItems": 1}, "at least 3 items and at most 1"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "refers to itself"),
    ({"$ref": "#/$defs/B"}, "there is no #/$defs/B"),
    ({"$ref": "http://x/y"}, "which is not in it"),
    ({"type": "object", "required": ["z"]}, "'z' is required"),
    ({"type": "date"}, "the type 'date'"),
    ({"enum": []}, "an 'enum' without a value"),
    ({"enum": [1], "minimum": 3}, "'minimum' beside 'enum'"),
    ({"type": "object", "properties": {"a": False}}, "no schema that anything satisfies"),
])  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        schema_ebnf(schema)
    assert message in str(caught.value)
    assert caught.value.hint
