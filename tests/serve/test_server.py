"""The server over a Backend of a few lines: what goes to it, and what callers get of its answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from io import BytesIO
from typing import Any

import aiohttp
import openai
import pytest

from promptcodebook.calls import Message, Reply, Request, Sampling, Usage
from promptcodebook.lm.stack import Endpoints
from promptcodebook.method.templates import load_templates
from promptcodebook.serve.admission import Address
from promptcodebook.serve.completions import ChatCall, Refusal
from promptcodebook.serve.server import Backend, Dropped, Site, Stream, serve, serving
from promptcodebook.simulated.model import SimulatedLM
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.server import simulated_site
from promptcodebook.simulated.world import World
from promptcodebook.types import Example
from tests.load import crowding
from tests.simulated.test_recognise import EXPECTED, template_values

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
    kind = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=kind) as http,
        http.post(url, data=BytesIO(data)) as response,
    ):
        return response.status, dict(response.headers), await response.text()


async def fetch(address: Address, path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
    url = f"http://{address.host}:{address.port}{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, **more) as response:
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
        assert await fetch(address, "/asked") == (200, {"n": 1})
        assert await fetch(address, "/healthz") == (200, {"status": "ok", "model": "first"})
        _, models = await fetch(address, "/v1/models")
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
        assert (await fetch(address, "/healthz"))[0] == 200
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


def client(address: Address, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=address.base_url, api_key="none", max_retries=retries, timeout=10.0
    )


async def test_the_openai_client_gets_replies_and_usage(
    world: World, examples: list[Example]
) -> None:
    async with serving(simulated_site(SimulatedLM(world))) as address, client(address) as ask:
        assert {m.id async for m in ask.models.list()} == {"simulated", "delay"}
        reply = await ask.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": examples[0].input}]
        )
    assert reply.model == "simulated"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_a_streamed_reply_is_the_same_text(world: World, examples: list[Example]) -> None:
    asked: Any = {
        "model": "simulated",
        "temperature": 0.0,
        "messages": [{"role": "user", "content": examples[0].input}],
    }
    slow = SimulatedSettings(stream_chunks=4, stream_delay=0.02)
    async with serving(simulated_site(SimulatedLM(world, slow))) as address, client(address) as ask:
        whole = await ask.chat.completions.create(**asked)
        started = time.perf_counter()
        parts, usage = [], None
        stream = await ask.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            parts.extend(c.delta.content or "" for c in chunk.choices)
            usage = chunk.usage or usage
    assert "".join(parts) == whole.choices[0].message.content
    assert usage == whole.usage
    assert time.perf_counter() - started > 0.08


async def test_in_process_and_over_http_replies_are_equal(
    world: World, examples: list[Example]
) -> None:
    requests: list[Request] = []
    for number, example in enumerate(examples[:8]):
        for temperature in (0.0, 0.7, None):
            sampling = Sampling(temperature=temperature, max_tokens=400)
            prompted = (Message("system", "Go."), Message("user", example.input))
            found = [prompted]
            for templates in ("default", "paper"):
                values = template_values(example, templates)
                found += [load_templates(templates)[name].fill(values) for name in EXPECTED]
            sample = 2**40 + number
            requests += [Request("critic", m, sample=sample, sampling=sampling) for m in found]
    inside = SimulatedLM(world)
    async with serving(simulated_site(SimulatedLM(world))) as address:
        endpoints = Endpoints(environment={})
        try:
            outside = endpoints.connect(f"{address.base_url}#simulated")
            heard = await asyncio.gather(*(outside(r) for r in requests))
        finally:
            await endpoints.close()
    for request, there in zip(requests, heard, strict=True):
        here = await inside(request)
        assert (here.text, here.finish) == (there.text, there.finish)
        assert here.usage.prompt_tokens == there.usage.prompt_tokens
        assert here.usage.completion_tokens == there.usage.completion_tokens


async def test_stats_count_what_clients_met(world: World, examples: list[Example]) -> None:
    settings = SimulatedSettings.from_params({"faults": "429:0.2,500:0.2,drop:0.2,truncate:0.2"})
    met = {"429": 0, "500": 0, "drop": 0, "truncate": 0}
    whole = 0
    async with (
        serving(simulated_site(SimulatedLM(world, settings))) as address,
        client(address) as ask,
    ):
        for number in range(120):
            try:
                reply = await ask.chat.completions.create(
                    model="simulated",
                    seed=number,
                    messages=[{"role": "user", "content": examples[number].input}],
                )
            except openai.RateLimitError as error:
                assert error.response.headers["Retry-After"] == "0"
                met["429"] += 1
            except openai.InternalServerError:
                met["500"] += 1
            except openai.APIConnectionError:
                met["drop"] += 1
            else:
                cut = reply.choices[0].finish_reason == "length"
                met["truncate"] += cut
                whole += not cut
        _, stats = await fetch(address, "/stats")
        assert {name: stats["faults"][name] for name in met} == met
        assert all(met.values())
        assert (stats["requests"], stats["replies"]) == (120, whole + met["truncate"])
        _, cleared = await fetch(address, "/stats/reset", "POST")
    assert cleared["requests"] == 0
    assert cleared["model"] == "simulated"


async def test_the_delay_model_answers_after_the_latency_and_many_at_once() -> None:
    settings = SimulatedSettings.from_params({"latency": "0.05"})
    async with (
        serving(simulated_site(SimulatedLM(None, settings))) as address,
        aiohttp.ClientSession() as http,
    ):

        async def one() -> str:
            body = {"model": "delay", "messages": [{"role": "user", "content": "x"}]}
            url = f"{address.base_url}/chat/completions"
            async with http.post(url, json=body) as response:
                tree = await response.json()
                return tree["choices"][0]["message"]["content"]

        started = time.perf_counter()
        texts = await asyncio.gather(*(one() for _ in range(50)))
        took = time.perf_counter() - started
    assert len(set(texts)) == 1
    assert 0.05 <= took < 1.0 * crowding()  # 2.5 one after the other


async def test_a_caller_that_hangs_up_is_not_counted_as_answered(
    world: World, examples: list[Example]
) -> None:
    settings = SimulatedSettings.from_params({"latency": "1.0"})
    body = {"model": "simulated", "messages": [{"role": "user", "content": examples[0].input}]}
    async with serving(simulated_site(SimulatedLM(world, settings))) as address:
        asked = asyncio.create_task(fetch(address, "/v1/chat/completions", "POST", json=body))
        stats: dict[str, Any] = {"requests": 0}
        while not stats["requests"]:
            _, stats = await fetch(address, "/stats")
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.sleep(1.1)
        _, stats = await fetch(address, "/stats")
    assert (stats["requests"], stats["replies"]) == (1, 0)


async def test_serve_tells_where_it_listens_and_stops_when_cancelled() -> None:
    heard: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(simulated_site(SimulatedLM()), ready=heard.set_result))
    address = await asyncio.wait_for(heard, 5.0)
    status, body = await fetch(address, "/health")
    assert (status, body["model"]) == (200, "simulated")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(address, "/health")
