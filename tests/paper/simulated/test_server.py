"""The simulated model over HTTP: what clients get, as it is and in bad weather."""

import time
from typing import Any

import aiohttp
import openai

from promptcodebook.deploy.http.admission import Address
from promptcodebook.paper.simulated.model import SimulatedLM
from promptcodebook.paper.simulated.server import SimulatedServer
from promptcodebook.paper.simulated.world import SimulatedSettings
from tests.build.simulated import examples, world


async def fetch(address: Address, path: str, method: str = "", **more: Any) -> tuple[int, Any]:
    method = method or ("POST" if "json" in more else "GET")
    url = f"http://{address.host}:{address.port}{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, **more) as response:
        return response.status, await response.json()


BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}]}


async def test_a_call_goes_to_the_model_it_names_else_to_the_simulated_one() -> None:
    async with SimulatedServer(SimulatedLM()).serving() as address:
        for more in ({}, {"model": "delay"}):
            status, body = await fetch(address, "/v1/chat/completions", json={**BODY, **more})
            assert (status, body["model"]) == (200, more.get("model", "simulated"))
        status, body = await fetch(address, "/v1/chat/completions", json={**BODY, "model": "third"})
        assert status == 404 and "'simulated' and 'delay'" in body["error"]["message"]
        status, body = await fetch(address, "/v1/chat/completions", json={**BODY, "n": 2})
        assert (status, body["error"]["param"]) == (400, "n")
        _, stats = await fetch(address, "/stats")
    assert stats["requests"] == 2


async def test_with_a_key_it_asks_for_it_and_without_one_it_answers_this_machine() -> None:
    async with SimulatedServer(SimulatedLM(), "sk-tests").serving() as address:
        for given, expected in (({}, 401), ({"Authorization": "Bearer sk-tests"}, 200)):
            for path, sent in (("chat/completions", {"json": BODY}), ("models", {})):
                status, _ = await fetch(address, f"/v1/{path}", headers=given, **sent)
                assert status == expected
        assert (await fetch(address, "/healthz"))[0] == 200
    async with SimulatedServer(SimulatedLM()).serving() as address:
        status, _ = await fetch(address, "/v1/models", headers={"Host": "stranger.example"})
        assert status == 403


def client(address: Address, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=address.base_url, api_key="none", max_retries=retries, timeout=10.0
    )


async def test_the_openai_client_gets_replies_and_usage_and_streams_the_same() -> None:
    asked: Any = {"model": "simulated", "temperature": 0.0}
    asked["messages"] = [{"role": "user", "content": examples[0].input}]
    slow = SimulatedSettings(stream_chunks=4, stream_delay=0.02)
    async with (
        SimulatedServer(SimulatedLM(world, slow)).serving() as address,
        client(address) as ask,
    ):
        assert {m.id async for m in ask.models.list()} == {"simulated", "delay"}
        whole = await ask.chat.completions.create(**asked)
        [choice], used = whole.choices, whole.usage
        assert (whole.model, choice.finish_reason) == ("simulated", "stop")
        assert choice.message.content and used is not None
        assert used.total_tokens == used.prompt_tokens + used.completion_tokens
        started, usage, parts = time.perf_counter(), None, list[str]()
        with_usage = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await ask.chat.completions.create(**asked, **with_usage):
            parts.extend(c.delta.content or "" for c in chunk.choices)
            usage = chunk.usage or usage
    assert "".join(parts) == choice.message.content and usage == used
    assert time.perf_counter() - started > 0.08


async def test_stats_count_what_clients_met() -> None:
    settings = SimulatedSettings.from_params({"faults": "429:0.2,500:0.2,drop:0.2,truncate:0.2"})
    met = {"429": 0, "500": 0, "drop": 0, "truncate": 0}
    whole = 0
    async with (
        SimulatedServer(SimulatedLM(world, settings)).serving() as address,
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
