"""One policy asked from many threads, over real connections."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import promptcodebook as pco
from tests.lm.server import Server, says
from tests.run.test_optimize import train

REPLY = '{"constraints": [], "selected_indices": [0, 1, 2, 3], "analysis": ""}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    run = train(tmp_path, config={"update": {"epochs": 1, "batch_size": 2}})
    return run.path / "policy.json"


async def test_one_policy_answers_many_threads(file: Path) -> None:
    server = Server()
    await server.start()
    server.default = says(REPLY, delay=0.02)
    policy = pco.load_policy(file, lm=server.spec)

    def ask(number: int) -> list[str]:
        return [policy.prompt(f"question {number}.{n}") for n in range(3)]

    answers = await asyncio.wait_for(
        asyncio.gather(*(asyncio.to_thread(ask, n) for n in range(6))), 30
    )
    assert answers == [[REPLY] * 3] * 6
    assert not [t for t in threading.enumerate() if t.name == "promptcodebook"]
    await server.stop()


async def test_the_sync_and_the_async_face_take_turns(file: Path) -> None:
    server = Server()
    await server.start()
    server.default = says(REPLY)
    async with pco.load_policy(file, lm=server.spec) as policy:
        for n in range(3):
            assert await policy.aprompt(f"a {n}") == REPLY
            assert await asyncio.to_thread(policy.prompt, f"b {n}") == REPLY
    await server.stop()


@pytest.mark.parametrize("x", [3, None, ["a"], b"bytes"])
def test_what_is_no_input_is_refused_by_name(file: Path, x: object) -> None:
    policy = pco.load_policy(file, lm="simulated")
    with pytest.raises(pco.PcoError, match=type(x).__name__):
        policy.prompt(x)  # type: ignore[arg-type]


def test_a_policy_may_be_asked_from_one_loop_after_another(file: Path) -> None:
    async def with_server() -> tuple[Server, asyncio.AbstractEventLoop]:
        server = Server()
        await server.start()
        server.default = says(REPLY)
        return server, asyncio.get_running_loop()

    serving = asyncio.new_event_loop()
    server, _ = serving.run_until_complete(with_server())
    thread = threading.Thread(target=serving.run_forever)
    thread.start()
    policy = pco.load_policy(file, lm=server.spec)

    async def once(x: str) -> str:
        async with policy:
            return await policy.aprompt(x)

    try:
        for n in range(3):
            assert asyncio.run(once(f"x {n}")) == REPLY
        assert policy.prompt("y") == REPLY
    finally:
        serving.call_soon_threadsafe(serving.stop)
        thread.join()
        serving.run_until_complete(server.stop())
        serving.close()


async def _serve_and_note_peers() -> tuple[Server, set[object]]:
    """A server, and the connections that were made to it."""
    server, peers = Server(), set[object]()

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await says(REPLY)(request, body)

    server.default = step
    await server.start()
    return server, peers


async def test_within_with_calls_share_connections_and_its_end_closes_them(file: Path) -> None:
    server, peers = await _serve_and_note_peers()

    def ask() -> None:
        with pco.load_policy(file, lm=server.spec) as policy:
            for n in range(4):
                assert policy.prompt(f"a {n}") == REPLY
            assert policy.explain("b").prompt == REPLY

    earlier = set(threading.enumerate())
    await asyncio.to_thread(ask)
    assert len(peers) == 1
    left = set(threading.enumerate()) - earlier
    assert not [t for t in left if t.name == "promptcodebook"]
    await server.stop()


async def test_a_policy_works_on_after_its_with(file: Path) -> None:
    server, peers = await _serve_and_note_peers()

    def ask() -> None:
        policy = pco.load_policy(file, lm=server.spec)
        for _ in range(2):
            with policy as same, policy:  # once inside is enough
                assert same is policy
                policy.prompt("x")
        policy.prompt("y")

    await asyncio.to_thread(ask)
    assert len(peers) == 3
    await server.stop()


def test_an_error_within_with_is_the_one_that_is_seen(file: Path) -> None:
    with pytest.raises(ZeroDivisionError), pco.load_policy(file, lm="simulated") as policy:
        policy.prompt("x")
        raise ZeroDivisionError
