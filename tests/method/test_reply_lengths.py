"""The longest reply that a schema allows fits into its role's cap, by construction.

At three characters a token: plain English has four or more. Numbers, which no schema bounds, count
as twenty characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from promptcodebook.audit.report import hazards_schema
from promptcodebook.calls import Role, Schema
from promptcodebook.config.schema import default_roles
from promptcodebook.lm.structured import ReplyShape
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.critic import (
    CritiqueReply,
    OneStringCritiqueReply,
    RubricReply,
    VerdictReply,
)
from promptcodebook.method.gradients import (
    AttributionReply,
    OneStringAttributionReply,
    blame_schema,
)
from promptcodebook.method.init import instincts_schema
from promptcodebook.method.policy import route_schema
from promptcodebook.safety import SafetyClause
from promptcodebook.tasks.pupa.judge import Comparison, LeakCount
from promptcodebook.tasks.rewards.make import Judgement

CHARACTERS_A_TOKEN = 3
NUMBER = 20


def longest(node: Mapping[str, Any]) -> int:
    """Characters of the longest JSON value that the schema allows; KeyError where it sets none."""
    if "enum" in node:
        return max(len(json.dumps(each)) for each in node["enum"])
    match node["type"]:
        case "object":
            assert node["additionalProperties"] is False
            inside = (len(name) + 6 + longest(n) for name, n in node["properties"].items())
            return 2 + sum(inside)
        case "array":
            return 2 + node["maxItems"] * (2 + longest(node["items"]))
        case "string":
            return 2 + int(node["maxLength"])
        case "integer" | "number":
            return NUMBER
        case _:
            return 5


CLAUSE = SafetyClause.read()
SCHEMAS: list[tuple[Role, Schema]] = [
    *(("encoder", route_schema(*sizes)) for sizes in [(1, 1), (4, 16), (8, 32), (32, 128)]),
    *(("updater", instincts_schema(*sizes)) for sizes in [(1, 25), (16, 25), (16, 60), (128, 25)]),
    ("critic", schema_of(VerdictReply)),
    ("critic", schema_of(RubricReply)),
    ("judge", hazards_schema()),
    ("judge", schema_of(Judgement)),
    ("judge", schema_of(Comparison)),
    ("judge", schema_of(LeakCount)),
    *(
        ("critic", blame_schema(shape, tuple(range(10, 10 + select))))
        for shape in (CritiqueReply, OneStringCritiqueReply)
        for select in (1, 4, 8, 32)
    ),
    *(
        ("critic", CLAUSE.widen(blame_schema(CritiqueReply, active), active))
        for active in (tuple(range(10, 10 + select)) for select in (1, 4, 8, 32))
    ),
    ("critic", CLAUSE.widen(schema_of(VerdictReply), tuple(range(10, 42)))),
    *(
        ("attribution", blame_schema(shape, tuple(range(10, 10 + select))))
        for shape in (AttributionReply, OneStringAttributionReply)
        for select in (1, 4, 8, 32)
    ),
]


@pytest.mark.parametrize(("role", "schema"), SCHEMAS, ids=lambda each: str(each)[:30])
def test_the_longest_legal_reply_fits_its_role_s_cap(role: str, schema: Schema):
    cap = default_roles()[role].max_tokens
    assert cap is not None
    assert longest(schema.body) <= cap * CHARACTERS_A_TOKEN


def test_every_typed_reply_is_among_them():
    def shapes(base: type[ReplyShape]) -> set[str]:
        below = (shape for shape in base.__subclasses__() if shape.__module__.startswith("prompt"))
        return {name for shape in below for name in {shape.__name__, *shapes(shape)}}

    asked = {schema.name for _, schema in SCHEMAS}
    # A claim is a part of a reply; what is read is asked for under the names without "Read".
    parts = {"HazardClaim", "HarmReply", "ReadVerdict", "ReadCritique", "ReadOneStringCritique"}
    assert shapes(ReplyShape) == asked | parts


def test_a_route_is_a_fraction_of_it():
    """One that a weak model fills to the brim costs seconds, not a minute."""
    assert longest(route_schema(4, 16).body) < 800
