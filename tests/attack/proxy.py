"""A counting proxy: between a run and its server it counts what is asked and what would be billed.

It bills what the server's work really took, whatever becomes of the answer: cut bodies, answers
after the time limit and lies about usage are billed as work that was done.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from promptcodebook.calls import Usage
from promptcodebook.randomness import keyed_random

Usages = Callable[[dict[str, Any]], Any]


def _as_told(usage: dict[str, Any]) -> Any:
    return usage


@dataclass(frozen=True)
class Spoiler:
    """What becomes of the server's answers; shares of all calls, drawn by the call's number."""

    broken: float = 0.0
    late: float = 0.0
    late_s: float = 2.0
    put_off: float = 0.0
    retry_after: str = "20"
    usage: Usages = _as_told


@dataclass
class CountingProxy:
    """What it saw. `billed` holds calls that were worked on; `made` all that were asked."""

    upstream: str
    spoiler: Spoiler
    prompt_price: float = 0.0
    reply_price: float = 0.0
    url: str = ""
    made: int = 0
    billed: Usage = field(default_factory=Usage)

    @property
    def spec(self) -> str:
        return f"{self.url}#simulated"

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.made += 1
        number, spoiler = self.made, self.spoiler
        draw = keyed_random("proxy", number).random()
        if draw < spoiler.put_off:
            headers = {"Retry-After": spoiler.retry_after}
            return web.json_response({"error": {"message": "later"}}, status=429, headers=headers)
        # Shielded: a caller that gives up does not stop the work, nor the bill.
        body = await request.read()
        tree = await asyncio.shield(asyncio.ensure_future(self._work(body, request)))
        if draw < spoiler.broken:
            whole = json.dumps(tree)
            cut = whole[: len(whole) // 2] if number % 2 else "<html>busy</html>"
            return web.Response(text=cut, content_type="application/json")
        if draw < spoiler.late:
            await asyncio.sleep(spoiler.late_s)
        usage = spoiler.usage(tree["usage"])
        return web.json_response({**{k: tree[k] for k in tree if k != "usage"}, **usage})

    async def _work(self, body: bytes, request: web.Request) -> dict[str, Any]:
        session: aiohttp.ClientSession = request.app[_SESSION]
        async with session.post(f"{self.upstream}/chat/completions", data=body) as answer:
            tree = await answer.json()
        told = tree["usage"]
        prompt, reply = told["prompt_tokens"], told["completion_tokens"]
        cost = (prompt * self.prompt_price + reply * self.reply_price) / 1e6
        self.billed += Usage(1, prompt, reply, 0, cost)
        return tree

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "simulated"}]})


_SESSION: web.AppKey[aiohttp.ClientSession] = web.AppKey("session", aiohttp.ClientSession)


@contextmanager
def counting(proxy: CountingProxy) -> Iterator[CountingProxy]:
    """The proxy, served from a thread of its own while the block runs."""
    loop, up = asyncio.new_event_loop(), threading.Event()
    ended = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", proxy.chat)
        app.router.add_get("/v1/models", proxy.models)
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
            app[_SESSION] = session
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            up.set()
            await ended.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="proxy")
    thread.start()
    try:
        assert up.wait(30), "the proxy did not come up"
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@contextmanager
def proxied(
    upstream: str, spoiler: Spoiler, prices: tuple[float, float] = (0.0, 0.0)
) -> Iterator[CountingProxy]:
    """A fresh proxy in front of `upstream`; `prices` are USD per million tokens in and out."""
    with counting(CountingProxy(upstream, spoiler, *prices)) as proxy:
        yield proxy
