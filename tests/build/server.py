"""A programmable chat-completions server on loopback, for tests of what goes over the wire."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

Step = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def says(
    text: str | None = "ok",
    *,
    finish: object = "stop",
    usage: dict[str, Any] | str | None = "default",
    delay: float = 0.0,
    message: dict[str, Any] | None = None,
) -> Step:
    """A completion; `usage=None` leaves the usage out."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay)
        turn = {"role": "assistant", "content": text, **(message or {})}
        tree: dict[str, Any] = {"choices": [{"message": turn, "finish_reason": finish}]}
        if usage == "default":
            tree["usage"] = {"prompt_tokens": 7, "completion_tokens": 3}
        elif usage is not None:
            tree["usage"] = usage
        return web.json_response(tree)

    return step


def fails(
    status: int,
    message: str = "no",
    *,
    param: str = "",
    code: str = "",
    headers: dict[str, str] | None = None,
) -> Step:
    error = {"message": message, "param": param or None, "code": code or None}
    return _sends(lambda: web.json_response({"error": error}, status=status, headers=headers))


def raw(data: bytes, status: int = 200) -> Step:
    return _sends(lambda: web.Response(body=data, status=status))


def _sends(make: Callable[[], web.Response]) -> Step:
    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return make()

    return step


def pours(data: bytes, times: int, status: int = 200, **headers: str) -> Step:
    """A body of many equal pieces, for as long as the client takes them."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        for _ in range(times):
            await response.write(data)
        await response.write_eof()
        return response

    return step


def drops() -> Step:
    """Breaks the connection without a word."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return step


def fails_and_hangs_up() -> Step:
    """A 500 after which the connection closes, though its headers do not say so."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.Response(status=500, text="Internal Server Error")
        await response.prepare(request)
        await response.write_eof()
        assert request.transport is not None
        request.transport.close()
        return response

    return step


def refusing(field: str, message: str, *, status: int = 400, param: str = "") -> Step:
    """400 as long as the body holds the field, else a completion."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        chosen = fails(status, message, param=param) if field in body else says("fine")
        return await chosen(request, body)

    return step


class Server:
    """Plays its script step by step, then `default`; keeps every request it saw."""

    def __init__(self) -> None:
        self.default: Step = says()
        self.models: list[str] | None = ["m"]
        self.listing: Step | None = None
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.listed = 0
        self.peak = 0
        self.url = ""
        self.extra_routes: list[tuple[str, Callable[[web.Request], Any]]] = []
        self._script: deque[Step] = deque()
        self._now = 0
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def spec(self) -> str:
        return f"{self.url}#m"

    @property
    def calls(self) -> int:
        return len(self.bodies)

    def script(self, *steps: Step) -> None:
        self._script.extend(steps)

    async def seen(self, calls: int) -> None:
        """Waits until so many calls have arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.calls >= calls)

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list)
        for path, answer in self.extra_routes:
            app.router.add_route("*", path, answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        async with self._arrived:
            self._arrived.notify_all()
        step = self._script.popleft() if self._script else self.default
        self._now += 1
        self.peak = max(self.peak, self._now)
        try:
            return await step(request, body)
        finally:
            self._now -= 1

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.listed += 1
        if self.listing is not None:
            return await self.listing(request, {})
        if self.models is None:
            raise web.HTTPNotFound
        return web.json_response({"data": [{"id": name} for name in self.models]})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    await served.start()
    yield served
    await served.stop()
