"""The server over a Backend of a few lines: what goes to it, and what callers get of its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from promptcodebook.calls import Reply, Usage
from promptcodebook.serve.completions import ChatCall, Refusal
from promptcodebook.serve.server import Address, Backend, Dropped, Site, Stream, serving

REPLY = Reply("one two", "stop", Usage(1, 7, 3))
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}]}


class Recorded:
    """A Backend that keeps what it was asked and answers as it is told to."""

    def __init__(self, answer: Callable[[], Reply | Stream]) -> None:
        self.calls: list[ChatCall] = []
        self._answer = answer

    async def __call__(self, call: ChatCall) -> Reply | Stream:
        self.calls.append(call)
        return self._answer()


async def in_pieces() -> AsyncGenerator[str | Reply, None]:
    yield "one "
    yield "two"
    yield REPLY


def fails(error: Exception) -> Callable[[], Reply]:
    def answer() -> Reply:
        raise error

    return answer


def site(backend: Backend) -> Site:
    return Site(backend, ("first", "second"), "tests")


async def post(address: Address, body: object) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of the answer."""
    url = f"{address.base_url}/chat/completions"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as http, http.post(url, data=BytesIO(data)) as response:
        return response.status, dict(response.headers), await response.text()


async def get(address: Address, path: str) -> tuple[int, Any]:
    url = f"http://{address.host}:{address.port}{path}"
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return response.status, await response.json()


def events(text: str) -> list[Any]:
    """The bodies of a stream, its end mark taken off."""
    *bodies, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(body.removeprefix("data: ")) for body in bodies]


@pytest.mark.parametrize("answer", [lambda: REPLY, in_pieces])
async def test_whether_a_backend_streams_is_its_own_affair(
    answer: Callable[[], Reply | Stream],
) -> None:
    async with serving(site(Recorded(answer))) as address:
        status, _, whole = await post(address, BODY)
        _, headers, streamed = await post(
            address, {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        )
    tree = json.loads(whole)
    assert (status, tree["choices"][0]["message"]["content"]) == (200, "one two")
    assert headers["Content-Type"] == "text/event-stream"
    *chunks, last = events(streamed)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == "one two"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"] == tree["usage"]
    assert (tree["id"], last["id"]) == ("tests-1", "tests-2")


async def test_a_call_goes_to_the_model_it_names_else_to_the_first() -> None:
    backend = Recorded(lambda: REPLY)
    async with serving(site(backend)) as address:
        for more in ({}, {"model": "second"}):
            _, _, text = await post(address, {**BODY, **more})
            assert json.loads(text)["model"] == more.get("model", "first")
        status, _, text = await post(address, {**BODY, "model": "third"})
    assert status == 404
    assert "'first' and 'second'" in text
    assert [call.request.model for call in backend.calls] == ["first", "second"]


async def test_models_and_health_are_shown_and_pages_beside_them() -> None:
    backend = Recorded(lambda: REPLY)
    shown = Site(
        backend, ("first",), "tests", {("GET", "/asked"): lambda: {"n": len(backend.calls)}}
    )
    async with serving(shown) as address:
        await post(address, BODY)
        assert await get(address, "/asked") == (200, {"n": 1})
        assert await get(address, "/healthz") == (200, {"status": "ok", "model": "first"})
        _, models = await get(address, "/v1/models")
    assert [(m["id"], m["owned_by"]) for m in models["data"]] == [("first", "tests")]


async def test_a_site_with_a_key_asks_for_it_and_one_without_answers_to_this_machine() -> None:
    backend = Recorded(lambda: REPLY)
    pages = {("GET", "/asked"): lambda: {"n": len(backend.calls)}}
    locked = Site(backend, ("first",), "tests", pages, key="sk-tests")
    async with serving(locked) as address, aiohttp.ClientSession() as http:
        root = address.base_url.removesuffix("/v1")
        for given, status in [({}, 401), ({"Authorization": "Bearer sk-tests"}, 200)]:
            url = f"{root}/v1/chat/completions"
            async with http.post(url, json=BODY, headers=given) as answer:
                assert answer.status == status, await answer.text()
            for path in ("/v1/models", "/asked"):
                async with http.get(root + path, headers=given) as answer:
                    assert answer.status == status
        assert (await get(address, "/healthz"))[0] == 200
    async with serving(site(backend)) as address, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{address.port}/v1/models"
        async with http.get(url, headers={"Host": "stranger.example"}) as answer:
            assert answer.status == 403


async def test_a_refusal_has_its_status_its_wait_and_its_field() -> None:
    refusal = Refusal("later", status=429, kind="rate_limit", param="n", retry_after=1.5)
    async with serving(site(Recorded(fails(refusal)))) as address:
        status, headers, text = await post(address, BODY)
    assert (status, headers["Retry-After"]) == (429, "1.5")
    error = json.loads(text)["error"]
    assert (error["message"], error["type"], error["param"]) == ("later", "rate_limit", "n")


async def test_a_dropped_reply_breaks_the_connection() -> None:
    async with serving(site(Recorded(fails(Dropped())))) as address:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(address, BODY)


async def test_a_body_that_is_too_long_is_refused_in_json() -> None:
    backend = Recorded(lambda: REPLY)
    async with serving(site(backend)) as address:
        status, _, text = await post(address, b"x" * (16 * 2**20 + 1))
    assert (status, backend.calls) == (413, [])
    assert "16 MiB" in json.loads(text)["error"]["message"]


async def test_a_caller_that_hangs_up_ends_the_stream() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncGenerator[str | Reply, None]:
        try:
            while True:
                yield "more "
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async with serving(site(Recorded(endless))) as address:
        url, body = f"{address.base_url}/chat/completions", {**BODY, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            assert (await response.content.readline()).startswith(b"data: ")
        await asyncio.wait_for(ended.wait(), 5.0)


async def test_an_address_with_colons_is_put_in_brackets() -> None:
    assert Address("::1", 80).base_url == "http://[::1]:80/v1"
    assert Address("127.0.0.1", 80).base_url == "http://127.0.0.1:80/v1"
