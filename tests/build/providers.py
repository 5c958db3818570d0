"""Anthropic's interface on loopback. Every request is checked against the types of
the provider's own library, and every good reply is built from them."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import TypeAdapter

from promptcodebook.calls import Message, Reply, Request, Sampling, Schema
from promptcodebook.lm.endpoint import Endpoint, Transport, transport_to
from promptcodebook.lm.spec import Spec, parse_spec
from promptcodebook.lm.wire import ModelAddress

Tree = dict[str, Any]
# What the library's types leave out since new models refuse it; older ones take it.
_SAMPLING = {"temperature", "top_p", "top_k"}


@cache
def library(name: str) -> Any:
    """Imported by the test that needs it: a worker that collects the tests would wait seconds."""
    return import_module(name)


@cache
def _shape(name: str) -> TypeAdapter[Any]:
    """One of Anthropic's shapes, made once."""
    types = library("anthropic.types")
    home = types if name == "RawMessageStreamEvent" else types.message_create_params
    home = types.message_count_tokens_params if "Count" in name else home
    return TypeAdapter(getattr(home, name))


@dataclass(frozen=True)
class Sent:
    path: str
    headers: Mapping[str, str]
    body: Tree


@dataclass(frozen=True)
class Answer:
    """`events` = a stream; `hangs` = none comes; `drops` = the connection breaks after them. A
    library's shapes are made when they are sent: who collects the tests imports none for them."""

    body: object | Callable[[], object] = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Callable[[], Sequence[str]] = tuple
    hangs: bool = False
    drops: bool = False


class Site:
    def __init__(self) -> None:
        self.url = ""
        self.sent: list[Sent] = []
        self.faults: list[str] = []
        self._answers: deque[Answer] = deque()

    def script(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    @property
    def body(self) -> Tree:
        return self.sent[-1].body

    async def take(self, request: web.Request) -> web.StreamResponse:
        sent: Tree = json.loads(await request.read() or b"{}")
        self.sent.append(Sent(request.path, dict(request.headers), sent))
        try:
            _check(request.path, sent)
        except Exception as error:  # reported by the fixture, where the test sees it
            self.faults.append(f"{request.path}: {error}")
        answer = self._answers.popleft()
        if answer.hangs:
            await asyncio.sleep(60)
        events = answer.events()
        if answer.drops and not events:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if not events:
            body = answer.body() if callable(answer.body) else answer.body
            return web.json_response(body, status=answer.status, headers=answer.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event.encode())
        if answer.drops:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write_eof()
        return response


@asynccontextmanager
async def opened_site() -> AsyncGenerator[Site, None]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    site.url = f"http://{host}:{port}"
    try:
        yield site
    finally:
        await runner.cleanup()
        assert not site.faults


def _check(path: str, body: Tree) -> None:
    """Raises where the provider's own types do not take the request."""
    if path == "/v1/messages":
        kind = "Streaming" if body.get("stream") else "NonStreaming"
        _shape(f"MessageCreateParams{kind}").validate_python(body)
        params = library("anthropic.types").message_create_params
        unknown = body.keys() - _fields(params) - _SAMPLING
        assert not unknown, unknown
    elif path.endswith("count_tokens"):
        _shape("MessageCountTokensParams").validate_python(body)


def _fields(module: Any) -> set[str]:
    shapes = (module.MessageCreateParamsStreaming, module.MessageCreateParamsNonStreaming)
    return {name for shape in shapes for base in (shape,) for name in _annotations(base)}


def _annotations(shape: Any) -> set[str]:
    return {*shape.__required_keys__, *shape.__optional_keys__}


# Replies of Claude.


def says(*blocks: Tree | str, stop: str = "end_turn", **usage: int) -> Answer:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    counts = {"input_tokens": 7, "output_tokens": 3, **usage}
    tree = {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": counts}

    def message() -> Tree:
        shape = library("anthropic.types").Message
        return shape.model_validate(tree).model_dump(mode="json")

    return Answer(message)


def refuses(status: int, kind: str, message: str, **headers: str) -> Answer:
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Answer(error, status, headers)


def streams(*events: Tree, drops: bool = False) -> Answer:
    def text(event: Tree) -> str:
        made = _shape("RawMessageStreamEvent").validate_python(event)
        return f"event: {made.type}\ndata: {made.model_dump_json(exclude_none=True)}\n\n"

    return Answer(events=lambda: list(map(text, events)), drops=drops)


KEYS = {"ANTHROPIC_API_KEY": "sk-ant-very-secret-0"}


SCHEMA = Schema(
    "Pick",
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened_site() as opened:
        yield opened


@dataclass
class Provider:
    """A model whose provider is the site."""

    site: Site
    text: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {**KEYS, "ANTHROPIC_BASE_URL": self.site.url}

    @property
    def spec(self) -> Spec:
        return parse_spec(self.text, self.environment)

    def endpoint(self, timeout: float = 5.0, **options: Any) -> Endpoint:
        access = self.spec.credentials({}, self.environment)
        return Endpoint(self.spec, access, timeout=timeout, **options)

    async def ask(self, *asked: Request, **options: Any) -> list[Reply]:
        async with self.endpoint(**options) as lm:
            return [await lm(each) for each in asked]

    def transport(self) -> Transport:
        return transport_to(self.spec, self.spec.credentials({}, KEYS), 5.0)

    async def complete(self, **body: Any) -> dict[str, Any]:
        """What a body of OpenAI's wire is answered with."""
        where, transport = ModelAddress(self.spec.base_url, self.spec.model), self.transport()
        data = json.dumps({"model": self.spec.model, **body}).encode()
        try:
            _, answer, _ = await transport.send("POST", "/chat/completions", where, data)
        finally:
            await transport.close()
        return json.loads(answer)

    async def streamed(self, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream. Its end is the mark that OpenAI's clients wait for."""
        where, transport = ModelAddress(self.spec.base_url, self.spec.model), self.transport()
        data = json.dumps({"model": self.spec.model, "stream": True, **body}).encode()
        try:
            reply = await transport.open("/chat/completions", where, data)
            assert reply.headers["Content-Type"] == "text/event-stream"
            *events, last, rest = (await reply.whole()).decode().split("\n\n")
        finally:
            await transport.close()
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def request(*texts: str, schema: Schema | None = None, **sampling: Any) -> Request:
    messages = tuple(Message("user", text) for text in texts or ("hi",))
    drawn = Sampling(**{"max_tokens": 20, **sampling})
    return Request("executor", (Message("system", "be brief"), *messages), schema, sampling=drawn)


TEXT = {"type": "text"}


_TALK = json.loads(Path(__file__).with_name("conversation.json").read_text("utf-8"))
TOOL, CALL = _TALK["tool"], _TALK["call"]
CONVERSATION: list[dict[str, Any]] = _TALK["messages"]


USAGE = {"input_tokens": 5, "cache_read_input_tokens": 15, "output_tokens": 1}


BEGUN = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": USAGE,
    },
}  # fmt: skip


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def ended(reason: str) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    usage = {"output_tokens": 9}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
