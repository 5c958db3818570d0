"""A served policy over an upstream with faults: no request is lost, and none is answered twice."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from promptcodebook.deploy.http.admission import RequestLimits
from tests.build.proxied import Setup, Up, up

pytestmark = pytest.mark.slow

REQUESTS = 2000
PARTS = 5
AT_ONCE = 50


async def faulty(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Echoes a request's number, whole or in pieces; a tenth each is refused, fails or breaks."""
    text = body["messages"][-1]["content"]
    fate = random.Random(text).random()
    if fate < 0.1:
        return web.json_response({"error": {"message": "slow"}}, status=429)
    if fate < 0.2:
        return web.json_response({"error": {"message": "no"}}, status=500)
    if fate < 0.3 and request.transport is not None:
        request.transport.abort()
        return web.Response()
    if not body.get("stream"):
        return web.json_response({"choices": [{"message": {"content": text}}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in (text, "[DONE]"):
        await response.write(f"data: {piece}\n\n".encode())
    return response


async def asks(served: Up, http: aiohttp.ClientSession, number: int) -> int:
    """A mixed request: its status. What it says came from this request and no other."""
    text = f"ticket {number}"
    stream = number % 3 == 0
    sent = {"messages": [{"role": "user", "content": text}], "stream": stream}
    async with http.post(f"{served.url}/v1/chat/completions", json=sent) as answer:
        data = await answer.read()
        if answer.status == 200:
            whole = f"data: {text}\n\ndata: [DONE]\n\n".encode()
            reply = json.loads(data)["choices"][0]["message"]["content"] if not stream else text
            assert (reply, data if stream else whole) == (text, whole)
        else:
            assert json.loads(data)["error"]["message"]
        return answer.status


async def test_of_many_mixed_requests_none_is_lost_and_none_answered_twice() -> None:
    statuses: Counter[int] = Counter()
    sizes: list[int] = []
    limits = RequestLimits(in_flight=2 * AT_ONCE)
    async with (
        up(setup=Setup(limits=limits)) as served,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        served.upstream.default = faulty
        asked: Counter[str] = Counter()

        async def client(numbers: Iterator[int]) -> None:
            for number in numbers:
                statuses[await asks(served, http, number)] += 1

        tracemalloc.start()
        try:
            for part in range(PARTS):
                size = REQUESTS // PARTS
                numbers = iter(range(part * size, (part + 1) * size))
                await asyncio.gather(*(client(numbers) for _ in range(AT_ONCE)))
                asked.update(b["messages"][-1]["content"] for b in served.upstream.bodies)
                served.upstream.bodies.clear()
                served.upstream.headers.clear()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        counts = await served.metrics()
    assert statuses.total() == asked.total() == len(asked) == REQUESTS, "each went up once"
    assert set(statuses) == {200, 429, 500, 502}
    assert counts["pco_in_flight"] == 0
    path = 'path="/v1/chat/completions"'
    told = {s: counts[f'pco_requests_total{{{path},status="{s}"}}'] for s in statuses}
    assert told == statuses
    # What grows is the cache of prompts, up to its bound; a request leaves nothing else behind.
    assert (sizes[-1] - sizes[1]) / (REQUESTS * 3 / 5) < 2500
