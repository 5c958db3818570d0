"""A served policy over an upstream with faults: no request is lost, none is answered twice, and
versions that move back and forth under load never mix."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from promptcodebook.serve.admission import Limits
from promptcodebook.serve.versions import RegistrySource
from tests.policy.registry.build import PRODUCTION, open_gate, sqlite
from tests.serve.proxied import Setup, Up, one_call, up

pytestmark = pytest.mark.slow

REQUESTS = 2000
PARTS = 5
AT_ONCE = 50
PACE = 200
"""Requests a second while versions move."""
MOVES = 4


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
            said = json.loads(data)["choices"][0]["message"]["content"] if not stream else text
            assert (said, data if stream else whole) == (text, whole)
        else:
            assert json.loads(data)["error"]["message"]
        return answer.status


async def test_of_many_mixed_requests_none_is_lost_and_none_answered_twice() -> None:
    statuses: Counter[int] = Counter()
    sizes: list[int] = []
    limits = Limits(in_flight=2 * AT_ONCE)
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


async def test_promoted_and_rolled_back_under_load_versions_never_mix(tmp_path: Path) -> None:
    registry = sqlite(tmp_path)
    texts = [one_call(base_prompt=f"You are number {n}.").text() for n in (1, 2)]
    names = [registry.freeze(text, "tickets").version for text in texts]
    registry.promote(names[0], PRODUCTION, gate=open_gate)
    loop = asyncio.get_running_loop()
    seen: list[tuple[float, str, str]] = []
    moved: list[tuple[float, str]] = []
    async with (
        up(setup=Setup(source=RegistrySource(registry, PRODUCTION))) as served,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):

        async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            return web.json_response({"first": body["messages"][0]["content"]})

        served.upstream.default = echo

        async def one(number: int) -> None:
            begun = loop.time()
            sent = {"messages": [{"role": "user", "content": f"ticket {number % 50}"}]}
            async with http.post(f"{served.url}/v1/chat/completions", json=sent) as answer:
                assert answer.status == 200
                prompt = (await answer.json())["first"]
                seen.append((begun, answer.headers["x-pco-version"], prompt))

        async def load() -> None:
            asking: list[asyncio.Task[None]] = []
            for number in range(PACE * MOVES):
                asking.append(asyncio.ensure_future(one(number)))
                await asyncio.sleep(1 / PACE)
            await asyncio.gather(*asking)

        async def moves() -> None:
            for n in range(1, MOVES):
                await asyncio.sleep(1.0)
                if n % 2:
                    registry.promote(names[1], PRODUCTION, gate=open_gate)
                else:
                    registry.rollback(PRODUCTION)
                moved.append((loop.time(), names[n % 2]))

        await asyncio.gather(load(), moves())
    assert len(seen) == PACE * MOVES
    for _, version, prompt in seen:
        assert prompt.startswith(f"You are number {names.index(version) + 1}.")
    for when, name in moved:
        first = min(begun for begun, version, _ in seen if begun > when and version == name)
        assert first - when < 1.0
