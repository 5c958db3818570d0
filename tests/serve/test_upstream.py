"""The model behind a policy: what of its replies is taken for a key, and replies given up."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from promptcodebook.lm.spec import ApiKey, parse_spec
from promptcodebook.lm.transport import Transport
from promptcodebook.serve.upstream import OwnFields, Upstream
from tests.lm.server import Server, fails, raw, says
from tests.serve.proxied import SAID, Up, up
from tests.serve.test_proxy import streams


async def passed_on(step: Any, key: str, secrets: tuple[str, ...] = ()) -> bytes:
    """What is passed on of a reply to a server with that key."""
    server = Server()
    await server.start()
    server.script(step)
    given = ApiKey("PCO_API_KEY", key)
    upstream = Upstream(
        parse_spec(f"{server.url}#m", {}),
        given,
        Transport(server.url, given, 10.0, {}),
        OwnFields({}, secrets),
    )
    try:
        answer = await upstream.ask({"messages": SAID})
        pieces = [] if answer.pieces is None else [piece async for piece in answer.pieces]
        answer.close()
        return answer.body + b"".join(pieces)
    finally:
        await upstream.close()
        await server.stop()


@pytest.mark.parametrize("key", ["token", "null", "x", "none", "completion", "sk-no-key-required"])
async def test_a_word_that_is_given_for_a_key_stays_in_replies(key: str) -> None:
    text = f"A token of thanks: x, none, completion, {key}"
    body = json.loads(await passed_on(says(text), key, (key, "")))
    assert body["choices"][0]["message"]["content"] == text
    assert body["usage"]["completion_tokens"] == 3
    event = f'data: {{"text": "{text}", "refusal": null}}\n\n'.encode()
    assert await passed_on(streams(event), key) == event
    if len(key) < 8:
        assert json.loads(await passed_on(fails(400, text), key))["error"]["message"] == text


@pytest.mark.parametrize("key", ["sk-4711-abcdefghij", "only-letters-but-very-long"])
async def test_a_key_comes_back_in_nothing(key: str) -> None:
    for step in (raw(key.encode()), raw(key.encode(), 400), streams(f"data: {key}\n".encode())):
        assert b"***" in (found := await passed_on(step, key)) and key.encode() not in found
        assert key.encode() not in await passed_on(raw(key.encode()), "other", (key,))
    assert await passed_on(raw(b"you sent hunter-22", 404), "hunter-22") == b"you sent ***"


async def test_a_reply_whose_caller_is_gone_before_it_begins_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, told, broken = web.StreamResponse.prepare, list[str](), list[bool]()

    async def breaks(response: web.StreamResponse, request: Any) -> Any:
        if "x-pco-version" in response.headers:
            broken.append(True)
            raise ConnectionResetError
        return await prepare(response, request)

    served: Up
    async with up() as served:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["message"])
        )
        served.upstream.script(streams(b"data: 1\n\n", delay=5.0))
        monkeypatch.setattr(web.StreamResponse, "prepare", breaks)
        with suppress(aiohttp.ClientError):
            await served.ask(json={"messages": SAID, "stream": True})
    assert broken and "Unclosed response" not in told
