"""A small chat-completions server: one Backend, its models and its health."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from aiohttp import web

from promptcodebook.calls import Reply
from promptcodebook.serve.admission import Callers
from promptcodebook.serve.completions import ChatCall, Completion, Refusal, error_body, read_call

_LONGEST_BODY = 16 * 2**20
"""Bytes."""
_OPEN = ("/healthz", "/health")
"""What is answered without a key."""

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


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def base_url(self) -> str:
        """Ends in /v1, as clients want it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


async def serve(
    site: Site,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[Address], None] | None = None,
) -> None:
    """Serves until cancelled; `ready` is told where. `port` 0 = any free one.

    Raises OSError when the port is taken.
    """
    async with serving(site, host, port) as address:
        if ready is not None:
            ready(address)
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(
    site: Site, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[Address, None]:
    """The server, listening while the block runs. Raises OSError when the port is taken."""
    # A caller that hangs up cancels its call.
    runner = web.AppRunner(
        _application(site),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        bound = cast("tuple[str, int]", runner.addresses[0])
        yield Address(bound[0], bound[1])
    finally:
        await runner.cleanup()


def _application(site: Site) -> web.Application:
    owned = {"object": "model", "created": 0, "owned_by": site.owner}
    models = {"object": "list", "data": [{"id": name, **owned} for name in site.models]}
    health = {"status": "ok", "model": site.models[0]}
    pages: dict[tuple[str, str], Page] = {
        ("GET", "/v1/models"): lambda: models,
        ("GET", "/healthz"): lambda: health,
        ("GET", "/health"): lambda: health,
        **site.pages,
    }
    callers, numbers = Callers((site.key,)), itertools.count(1)

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            if request.path not in _OPEN:
                callers.admit(request.headers)
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _refuse(Refusal("the body is longer than 16 MiB", status=413))
        except Refusal as refusal:
            return _refuse(refusal)
        except Dropped:
            return await _break_off(request)

    async def chat(request: web.Request) -> web.StreamResponse:
        call = _admit(site, read_call(await request.read()))
        reply = await site.backend(call)
        completion = Completion(f"{site.owner}-{next(numbers)}", call.request.model)
        pieces = _one_piece(reply) if isinstance(reply, Reply) else reply
        if call.stream:
            return await _stream(request, completion, pieces, with_usage=call.stream_usage)
        async with aclosing(pieces):
            whole = [piece async for piece in pieces if isinstance(piece, Reply)]
        return _json(completion.body(whole[0]))

    application = web.Application(client_max_size=_LONGEST_BODY, middlewares=[guard])
    application.router.add_post("/v1/chat/completions", chat)
    for (method, path), page in pages.items():
        application.router.add_route(method, path, _show(page))
    return application


def _show(page: Page) -> Callable[[web.Request], Any]:
    async def show(_request: web.Request) -> web.StreamResponse:
        return _json(page())

    return show


def _admit(site: Site, call: ChatCall) -> ChatCall:
    """The call with the name of the model that answers it. Raises Refusal."""
    name = call.request.model or site.models[0]
    if name not in site.models:
        there = " and ".join(map(repr, site.models))
        text = f"no model {name!r} here; there is {there}"
        raise Refusal(text, status=404, kind="model_not_found", param="model")
    if call.choices != 1:
        raise Refusal("a call gets one choice here: n must be 1", param="n")
    return replace(call, request=replace(call.request, model=name))


async def _one_piece(reply: Reply) -> Stream:
    """A whole reply as a stream."""
    if reply.text:
        yield reply.text
    yield reply


async def _stream(
    request: web.Request, completion: Completion, pieces: Stream, *, with_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(_event(completion.first_chunk()))
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, str):
                await response.write(_event(completion.text_chunk(piece)))
                continue
            await response.write(_event(completion.last_chunk(piece)))
            if with_usage:
                await response.write(_event(completion.usage_chunk(piece)))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def _break_off(request: web.Request) -> web.StreamResponse:
    """The reply begins, promises more than it gives, and the line goes dead."""
    broken = web.StreamResponse(headers={"Content-Type": "application/json"})
    broken.content_length = 4096
    await broken.prepare(request)
    await broken.write(b'{"id": "broken", "choices": [')
    if request.transport is not None:
        request.transport.abort()
    return broken


def _refuse(refusal: Refusal) -> web.Response:
    wait = refusal.retry_after
    headers = None if wait is None else {"Retry-After": f"{wait:g}"}
    return _json(error_body(refusal), refusal.status, headers)


def _json(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)
