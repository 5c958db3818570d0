"""Anthropic's and Gemini's interfaces on loopback. Every request is checked against the types of
the provider's own library, and every good reply is built from them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter

Tree = dict[str, Any]
_SAMPLING = {"temperature", "top_p", "top_k"}
"""What the library's types leave out since new models refuse it; older ones take it."""


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


def google_type(name: str) -> type[BaseModel]:
    return getattr(library("google.genai.types"), name)


@dataclass(frozen=True)
class Sent:
    path: str
    headers: Mapping[str, str]
    body: Tree


@dataclass(frozen=True)
class Answer:
    """`events` = a stream; `hangs` = none comes; `drops` = the connection breaks after them."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[str] = ()
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
        body: Tree = json.loads(await request.read() or b"{}")
        self.sent.append(Sent(request.path, dict(request.headers), body))
        try:
            _check(request.path, body)
        except Exception as error:  # reported by the fixture, where the test sees it
            self.faults.append(f"{request.path}: {error}")
        answer = self._answers.popleft()
        if answer.hangs:
            await asyncio.sleep(60)
        if answer.drops and not answer.events:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if not answer.events:
            return web.json_response(answer.body, status=answer.status, headers=answer.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in answer.events:
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
    elif path.endswith("enerateContent"):
        _check_gemini(dict(body))


def _fields(module: Any) -> set[str]:
    shapes = (module.MessageCreateParamsStreaming, module.MessageCreateParamsNonStreaming)
    return {name for shape in shapes for base in (shape,) for name in _annotations(base)}


def _annotations(shape: Any) -> set[str]:
    return {*shape.__required_keys__, *shape.__optional_keys__}


def _check_gemini(body: Tree) -> None:
    for each in body.pop("contents"):
        google_type("Content").model_validate(each)
    for name, shape in _PARTS.items():
        for each in _list(body.pop(name, None)):
            google_type(shape).model_validate(each)
    assert not body, body


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


_PARTS = {
    "systemInstruction": "Content",
    "generationConfig": "GenerationConfig",
    "safetySettings": "SafetySetting",
    "tools": "Tool",
    "toolConfig": "ToolConfig",
}


# Replies of Claude.


def says(*blocks: Tree | str, stop: str = "end_turn", **usage: int) -> Answer:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    counts = {"input_tokens": 7, "output_tokens": 3, **usage}
    tree = {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": counts}
    message = library("anthropic.types").Message
    return Answer(message.model_validate(tree).model_dump(mode="json"))


def refuses(status: int, kind: str, message: str, **headers: str) -> Answer:
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Answer(error, status, headers)


def streams(*events: Tree, drops: bool = False) -> Answer:
    made = [_shape("RawMessageStreamEvent").validate_python(each) for each in events]
    texts = [f"event: {e.type}\ndata: {e.model_dump_json(exclude_none=True)}\n\n" for e in made]
    return Answer(events=texts, drops=drops)


# Replies of Gemini.


def generates(*parts: Tree | str, finish: str = "STOP", **usage: int) -> Answer:
    return Answer(_generated(parts, finish, usage))


def _generated(parts: Sequence[Tree | str], finish: str | None, usage: Mapping[str, int]) -> Tree:
    content = [{"text": part} if isinstance(part, str) else part for part in parts]
    counts = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10, **usage}
    return _google("GenerateContentResponse", {
        "candidates": [{"content": {"role": "model", "parts": content}, "finishReason": finish}],
        "usageMetadata": counts, "modelVersion": "gemini", "responseId": "r1",
    })  # fmt: skip


def blocks(reason: str) -> Answer:
    tree = {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 7}}
    return Answer(_google("GenerateContentResponse", tree))


def google_refuses(status: int, word: str, message: str, *details: Tree) -> Answer:
    error = {"code": status, "message": message, "status": word, "details": list(details)}
    return Answer({"error": error}, status)


def google_streams(*chunks: Sequence[Tree | str], drops: bool = False) -> Answer:
    made = [
        _generated(chunk, "STOP" if chunk is chunks[-1] and not drops else None, {})
        for chunk in chunks
    ]
    return Answer(events=[f"data: {json.dumps(each)}\r\n\r\n" for each in made], drops=drops)


def _google(name: str, tree: Tree) -> Tree:
    made = google_type(name).model_validate(tree)
    return made.model_dump(mode="json", by_alias=True, exclude_none=True)
