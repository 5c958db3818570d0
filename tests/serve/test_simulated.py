"""The simulated model over real sockets, asked by a client nobody here wrote."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import openai
import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.lm.connections import Endpoints
from promptcodebook.method.templates import load_templates
from promptcodebook.serve.server import Address, serve, serving
from promptcodebook.simulated.model import SimulatedLM
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.server import simulated_site
from promptcodebook.simulated.world import World
from promptcodebook.types import Example
from tests.load import crowding
from tests.simulated.test_recognise import EXPECTED, template_values


def client(address: Address, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=address.base_url, api_key="none", max_retries=retries, timeout=10.0
    )


async def fetch(address: Address, path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
    url = f"http://{address.host}:{address.port}{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, **more) as response:
        return response.status, await response.json()


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


async def test_the_clients_own_retries_succeed(world: World, examples: list[Example]) -> None:
    settings = SimulatedSettings.from_params({"faults": "429:0.4", "retry_after": "0.001"})
    async with (
        serving(simulated_site(SimulatedLM(world, settings))) as address,
        client(address, retries=20) as ask,
    ):
        for example in examples[:5]:
            reply = await ask.chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": example.input}]
            )
            assert reply.choices[0].message.content


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "other", "messages": [{"role": "user", "content": "x"}]}, 404, "'simulated'"),
        ({"model": "simulated", "messages": []}, 400, "messages"),
        ({"model": "simulated", "messages": ["x"]}, 400, "each an object"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, 400, "n must be 1"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}, 400, "number"),
        ([], 400, "object"),
    ],
)
async def test_bad_bodies_are_refused_by_name(
    world: World, body: object, status: int, said: str
) -> None:
    async with serving(simulated_site(SimulatedLM(world))) as address:
        found, answer = await fetch(address, "/v1/chat/completions", "POST", json=body)
        broken, _ = await fetch(address, "/v1/chat/completions", "POST", data="{")
    assert (found, broken) == (status, 400)
    assert said in answer["error"]["message"]


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
