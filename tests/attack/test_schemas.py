"""Schemas that a caller of `pco lm serve` sends to use up its memory and its time."""

import asyncio
import time
from typing import Any

import pytest

from promptcodebook.calls import Message
from promptcodebook.errors import ServerFault
from promptcodebook.models.local import openvino
from promptcodebook.models.local.engine import Job
from promptcodebook.models.local.openvino import HiddenStates, OpenVinoEngine
from tests.build.local_http import CHAT, up
from tests.build.openvino import _HEADER, RUNTIME, Pipeline
from tests.build.proxied import ask

# The bound of an answer, on a busy machine; what the attacks aim at is minutes.
_QUICK_S = 5.0


def nested(kind: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        if kind == "list":
            schema = {"type": "array", "items": schema}
        elif kind == "object":
            schema = {"type": "object", "properties": {"a": schema}}
        else:
            schema = {"anyOf": [schema, {"type": "null"}]}
    return schema


def doubled(depth: int) -> dict[str, Any]:
    """Each definition names the next one twice: together they are 2^depth of the last."""
    defined: dict[str, Any] = {f"d{depth}": {"type": "boolean"}}
    for n in range(depth):
        following = {"$ref": f"#/$defs/d{n + 1}"}
        defined[f"d{n}"] = {"type": "object", "properties": {"a": following, "b": following}}
    return {"$ref": "#/$defs/d0", "$defs": defined}


WIDE = {"type": "number", "minimum": -123456.789, "maximum": 654321.987}
REFUSED: dict[str, Any] = {
    "many values": {"enum": [f"value {n}" for n in range(50_000)]},
    "long values": {"enum": ["x" * 30_000, "y" * 30_000]},
    "many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}},
    "a long note": {"type": "string", "description": "x" * 300_000},
    "a deep list": nested("list", 400),
    "a deep object": nested("object", 400),
    "a deep choice": nested("anyOf", 400),
    "doubled references": doubled(40),
    "a chain of references": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(400)} | {"d400": {}},
    },
    "a long text": {"type": "string", "maxLength": 10**9},
    "a text that must be long": {"type": "string", "minLength": 10**9},
    "a long list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 10**9},
    "wide ranges": {"type": "object", "properties": {f"p{n}": WIDE for n in range(3000)}},
    "distinct values": {
        "type": "array",
        "uniqueItems": True,
        "maxItems": 400,
        "items": {"enum": list(range(400))},
    },
    "a huge bound": {"type": "number", "minimum": int("9" * 4200)},
    "an infinite bound": {"type": "integer", "minimum": float("inf")},
    "no number": {"type": "number", "minimum": 3, "maximum": 2},
}
for keyword, values in {
    "properties": ([], 5, {"a": 5}), "required": (5, "a", [5]), "items": (5, []), "enum": ({}, 5),
    "prefixItems": ({}, 5), "anyOf": ({}, 5, [5]), "$ref": (5, {}), "type": (5, {}, ["string", 5]),
    "minLength": ("x", -1, True, 1.5), "maxLength": ("x", None, []), "minItems": ("x", -1),
    "maxItems": ("x", -1), "minimum": ("x", [], True), "exclusiveMaximum": ({},),
    "additionalProperties": (5, "x"), "uniqueItems": ("x",), "allOf": (5,),
}.items():  # fmt: skip
    for value in values:
        kind = {
            "minLength": "string", "maxLength": "string", "minimum": "number",
            "exclusiveMaximum": "integer", "properties": "object", "required": "object",
            "additionalProperties": "object",
        }.get(keyword)  # fmt: skip
        named = {"type": kind} if kind else {"type": "array"} if "tems" in keyword else {}
        REFUSED[f"{keyword} = {value!r}"] = {**named, keyword: value}


def engine(*pipelines: Pipeline) -> OpenVinoEngine:
    """Our engine; the pipelines in it are loaded one after the other."""
    left = iter(pipelines or (Pipeline(),))
    return OpenVinoEngine(RUNTIME, lambda: next(left), "tiny", _HEADER, HiddenStates("", "t", 64))


def wanting(schema: Any) -> dict[str, Any]:
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": CHAT, "max_tokens": 4, "response_format": wrapped}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_schema_that_costs_too_much_or_is_none_is_a_400(name: str) -> None:
    async with up(engine()) as url:
        begun = time.perf_counter()
        status, answer, _ = await ask(url, json=wanting(REFUSED[name]))
        took = time.perf_counter() - begun
    assert status == 400, answer
    refusals = "the schema", "is nested too deeply, or holds a number out of range"
    assert any(refusal in answer["error"]["message"] for refusal in refusals), answer
    assert took < _QUICK_S


async def test_a_large_schema_that_people_use_is_taken() -> None:
    properties: dict[str, Any] = {f"field {n}": {"type": "string"} for n in range(150)}
    properties["kind"] = {"enum": [f"kind {n}" for n in range(500)]}
    properties["share"] = {"type": "number", "minimum": 0, "maximum": 1}
    async with up(engine()) as url:
        for schema in ({"type": "object", "properties": properties}, nested("object", 20)):
            assert (await ask(url, json=wanting(schema)))[0] == 200


async def test_what_the_pipeline_keeps_of_grammars_is_bounded() -> None:
    """openvino-genai forgets no grammar: the pipeline that has too many makes room for another."""
    pipelines = [Pipeline() for _ in range(9)]
    async with up(engine(*pipelines)) as url:
        for n in range(150):
            values = [f"{n:03} {k:03} {'x' * 80}" for k in range(220)]
            status, answer, _ = await ask(url, json=wanting({"enum": values}))
            assert (status, answer.get("error")) == (200, None)
        repeated = wanting({"enum": ["a" * 5000]})
        for _ in range(120):
            assert (await ask(url, json=repeated))[0] == 200
    asked = [len(pipeline.handles) for pipeline in pipelines]
    # 19,800 states each: some 101 of them are the two millions that are kept.
    assert sum(asked) == 270 and asked[0] in range(100, 104)
    assert sum(count > 0 for count in asked) == 2, "the same schema is kept once"


async def test_many_at_once_keep_no_more_than_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openvino, "_MOST_STATES", 1000)
    pipelines = [Pipeline() for _ in range(9)]
    local = engine(*pipelines)
    schemas = [{"enum": [f"{n}" * 400]} for n in range(1, 10)]
    jobs = [Job((Message("user", "hi"),), schema=schema) for schema in schemas]
    made = await asyncio.gather(*map(local.generate, jobs))
    await local.close()
    assert [each.text for each in made] == ["hello"] * 9
    assert [len(each.handles) for each in pipelines if each.handles] == [3, 3, 3]


async def test_a_model_that_cannot_be_loaded_again_is_tried_at_the_next_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openvino, "_MOST_STATES", 1000)

    def gone() -> Pipeline:
        raise RuntimeError("somewhere in gguf.cpp\n  no such file\n")

    left, hidden = iter((Pipeline, gone, Pipeline)), HiddenStates("", "t", 64)
    local = OpenVinoEngine(RUNTIME, lambda: next(left)(), "tiny", _HEADER, hidden)
    schemas = ({"enum": ["x" * 2000]}, {"enum": ["y"]})
    large, small = (Job((Message("user", "hi"),), schema=schema) for schema in schemas)
    await local.generate(large)
    with pytest.raises(ServerFault, match="could not be reloaded: no such file"):
        await local.generate(small)
    assert (await local.generate(small)).text == "hello"
    await local.close()


async def test_parts_that_are_no_text_are_refused_and_not_dropped() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "What is in it?"}
    async with up(engine()) as url:
        for part, message in [
            (image, "image_url"),
            ({"type": "input_audio", "input_audio": {}}, "input_audio"),
            ({"type": "text"}, "no text"),
            ({"type": "text", "text": 5}, "no text"),
            ("bare", "object"),
        ]:
            messages = [{"role": "user", "content": [text, part]}]
            status, answer, _ = await ask(url, json={"messages": messages})
            assert (status, answer["error"]["param"]) == (400, "messages")
            assert message in answer["error"]["message"]
