"""The simulated model over HTTP: the chat-completions interface that any optimizer can speak.

Two models: `simulated`, the behavioural model of a world, and `delay`, which says one fixed text
after the latency, for load tests. Nothing here is ever named after a real model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from promptcodebook.simulated.chat import ChatReply, ChatRequest
from promptcodebook.simulated.faults import Fault, seconds
from promptcodebook.simulated.model import NAME, Refused, SimulatedModel
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.wire import (
    BadBody,
    chunks_of,
    completion,
    error_body,
    read_body,
    usage_of,
)
from promptcodebook.simulated.world import World, build_world

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["DELAY", "Address", "serve", "serving"]

DELAY = "delay"
_FIXED = "This fixed text comes from the simulated server."
_LONGEST_BODY = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def base_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


async def serve(
    world: World | None,
    settings: SimulatedSettings | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[Address], None] | None = None,
) -> None:
    """Serves until cancelled. No world = a general one without data. `port` 0 = any free one.

    `ready` hears where it listens. Raises OSError when the port is taken.
    """
    async with serving(world, settings, host, port) as address:
        if ready is not None:
            ready(address)
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(
    world: World | None,
    settings: SimulatedSettings | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[Address]:
    """The server, listening while the block runs."""
    from aiohttp import web

    settings = settings or SimulatedSettings()
    model = SimulatedModel(world or build_world("", (), settings), settings)
    # A caller that hangs up gets nothing: its request is not counted as answered.
    runner = web.AppRunner(
        _app(model),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        bound = cast("tuple[str, int]", runner.addresses[0])
        yield Address(bound[0], bound[1])
    finally:
        await runner.cleanup()


def _app(model: SimulatedModel) -> web.Application:
    from aiohttp import web

    routes = _Routes(model)
    app = web.Application(client_max_size=_LONGEST_BODY)
    app.router.add_post("/v1/chat/completions", routes.chat)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/stats", routes.stats)
    app.router.add_post("/stats/reset", routes.reset)
    app.router.add_get("/health", routes.health)
    return app


class _Routes:
    """What each address answers."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model
        self._number = 0

    async def health(self, _request: web.Request) -> web.StreamResponse:
        return _json({"status": "ok", "model": NAME})

    async def models(self, _request: web.Request) -> web.StreamResponse:
        owned = {"object": "model", "created": 0, "owned_by": "simulated"}
        return _json({"object": "list", "data": [{"id": n, **owned} for n in (NAME, DELAY)]})

    async def stats(self, _request: web.Request) -> web.StreamResponse:
        return _json(self._model.stats.as_dict())

    async def reset(self, _request: web.Request) -> web.StreamResponse:
        self._model.stats.reset()
        return _json(self._model.stats.as_dict())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            found: object = json.loads(await request.read())
        except ValueError:
            return _json(error_body("the body is not JSON", "invalid_request_error"), 400)
        if not isinstance(found, dict):
            return _json(error_body("the body is not an object", "invalid_request_error"), 400)
        body = cast("dict[str, Any]", found)
        name = str(body.get("model", NAME))
        if name not in (NAME, DELAY):
            said = f"no model {name!r} here; there are {NAME!r} and {DELAY!r}"
            return _json(error_body(said, "model_not_found", "model"), 404)
        try:
            asked = read_body(body)
        except BadBody as bad:
            return _json(error_body(str(bad), "invalid_request_error", bad.param), 400)
        try:
            reply = await (self._delayed(asked) if name == DELAY else self._model.reply(asked))
        except Refused as refused:
            return await self._refused(request, refused.fault)
        self._number += 1
        if body.get("stream"):
            options = cast("Mapping[str, Any]", body.get("stream_options") or {})
            return await self._stream(request, reply, name, bool(options.get("include_usage")))
        return _json(completion(reply, self._number, name))

    async def _delayed(self, asked: ChatRequest) -> ChatReply:
        """The bare model for load tests: no reading, no world, only the wait."""
        stats = self._model.stats
        stats.requests += 1
        await asyncio.sleep(seconds(self._model.settings.latency, asked.digest))
        length = sum(len(m.content) for m in asked.messages)
        reply = ChatReply(_FIXED, "delay", "stop", length // 4, len(_FIXED) // 4)
        stats.finished(asked.digest, reply)
        return reply

    async def _refused(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        from aiohttp import web

        if fault == "429":
            after = {"Retry-After": f"{self._model.settings.retry_after:g}"}
            return _json(error_body("simulated: too many requests", "rate_limit"), 429, after)
        if fault == "500":
            return _json(error_body("simulated: a server error", "server_error"), 500)
        # The reply begins, promises more than it gives, and the line goes dead.
        broken = web.StreamResponse(headers={"Content-Type": "application/json"})
        broken.content_length = 4096
        await broken.prepare(request)
        await broken.write(b'{"id": "simulated-broken", "choices": [')
        if request.transport is not None:
            request.transport.abort()
        return broken

    async def _stream(
        self, request: web.Request, reply: ChatReply, name: str, with_usage: bool
    ) -> web.StreamResponse:
        from aiohttp import web

        settings = self._model.settings
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        bodies = chunks_of(reply, self._number, name, settings.stream_chunks)
        if with_usage:
            bodies.append({**bodies[-1], "choices": [], "usage": usage_of(reply)})
        for place, body in enumerate(bodies):
            if place and settings.stream_delay > 0.0:
                await asyncio.sleep(settings.stream_delay)
            await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _json(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    from aiohttp import web

    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)
