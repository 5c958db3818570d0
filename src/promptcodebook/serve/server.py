"""A small chat-completions server: one Backend, its models and its health."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aiohttp import web

from promptcodebook.calls import Reply
from promptcodebook.serve.admission import (
    Address,
    Admission,
    Answers,
    Callers,
    Limits,
    Visit,
    json_response,
)
from promptcodebook.serve.completions import ChatCall, Completion, Refusal, call_of

Stream = AsyncGenerator[str | Reply, None]
"""The pieces of a reply's text as they come, and last the whole Reply."""

Page = Callable[[], Mapping[str, object]]
"""What a further address shows, as a tree for JSON."""


class Dropped(Exception):
    """Raised by a Backend whose reply is to break off in the middle, as a dying server's does."""


class Backend(Protocol):
    """Answers a call, with a Stream where that suits it; asked for a stream or not, both will do.

    Raises Refusal when there is no completion, Dropped when the connection is to break.
    """

    async def __call__(self, call: ChatCall) -> Reply | Stream: ...


@dataclass(frozen=True, slots=True)
class Site:
    """What is served. The first of `models` answers calls that name none. `owner` is theirs in the
    list of models and begins every reply's id; `pages` are further addresses by method and path.
    `key` is what callers must send; without one it answers this machine alone."""

    backend: Backend
    models: tuple[str, ...]
    owner: str
    pages: Mapping[tuple[str, str], Page] = field(default_factory=dict[tuple[str, str], Page])
    key: str = ""

    def admit(self, call: ChatCall) -> ChatCall:
        """The call with the name of the model that answers it. Raises Refusal."""
        name = call.request.model or self.models[0]
        if name not in self.models:
            there = " and ".join(map(repr, self.models))
            text = f"no model {name!r} here; there is {there}"
            raise Refusal(text, status=404, kind="model_not_found", param="model")
        if call.choices != 1:
            raise Refusal("a call gets one choice here: n must be 1", param="n")
        return replace(call, request=replace(call.request, model=name))


async def serve(
    site: Site,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serves until cancelled; `ready` is told where. `port` 0 = any free one.

    Raises OSError when the port is taken.
    """
    async with serving(site, host, port) as address:
        ready(address)
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(
    site: Site, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[Address, None]:
    """The server, listening while the block runs. Raises OSError when the port is taken."""
    admission, numbers = Admission(Callers((site.key,)), Limits(drain_s=1.0)), itertools.count(1)

    async def chat(request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        call = site.admit(call_of(await admission.read(request, visit)))
        try:
            reply = await site.backend(call)
        except Dropped:
            return await _break_off(request)
        completion = Completion(f"{site.owner}-{next(numbers)}", call.request.model)
        pieces = _one_piece(reply) if isinstance(reply, Reply) else reply
        async with aclosing(pieces):
            if call.stream:
                return await _stream(request, completion, pieces, with_usage=call.stream_usage)
            [whole] = [piece async for piece in pieces if isinstance(piece, Reply)]
            return json_response(completion.body(whole), visit)

    def showing(page: Page) -> Answers:
        async def show(request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
            return json_response(page(), visit)

        return show

    owned = {"object": "model", "created": 0, "owned_by": site.owner}
    models = {"object": "list", "data": [{"id": name, **owned} for name in site.models]}
    health = {"status": "ok", "model": site.models[0]}
    pages: dict[tuple[str, str], Page] = {
        ("GET", "/v1/models"): lambda: models,
        ("GET", "/healthz"): lambda: health,
        ("GET", "/health"): lambda: health,
        **site.pages,
    }
    paths = {path: (method, showing(page)) for (method, path), page in pages.items()}
    paths["/v1/chat/completions"] = "POST", chat
    # A caller that hangs up cancels its call.
    async with admission.listening(paths, None, host, port) as address:
        yield address


async def _one_piece(reply: Reply) -> Stream:
    if reply.text:
        yield reply.text
    yield reply


async def _stream(
    request: web.BaseRequest, completion: Completion, pieces: Stream, *, with_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def send(body: Mapping[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    await response.prepare(request)
    await send(completion.first_chunk())
    async for piece in pieces:
        if isinstance(piece, str):
            await send(completion.text_chunk(piece))
            continue
        await send(completion.last_chunk(piece))
        if with_usage:
            await send(completion.usage_chunk(piece))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _break_off(request: web.BaseRequest) -> web.StreamResponse:
    """The reply begins, promises more than it gives, and the line goes dead."""
    broken = web.StreamResponse(headers={"Content-Type": "application/json"})
    broken.content_length = 4096
    await broken.prepare(request)
    await broken.write(b'{"id": "broken", "choices": [')
    if request.transport is not None:
        request.transport.abort()
    return broken
