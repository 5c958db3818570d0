from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from promptcodebook.doctor.probe import Section, probe
from promptcodebook.lm.scripted import ScriptedLM
from tests.lm.server import Server, fails, fails_and_hangs_up, refusing, says


async def look(server: Server, **options) -> Section:
    return await probe(options.pop("spec", server.spec), environment={}, timeout=5.0, **options)


def levels(found: Section) -> dict[str, str]:
    return {each.name: each.level for each in found.findings}


async def obedient(request: web.Request, body: dict) -> web.StreamResponse:
    """A server that enforces schemas, caps lengths, caches prefixes and batches."""
    text, finish = "fine", "stop"
    if "response_format" in body:
        code = body["response_format"]["json_schema"]["schema"]["properties"]["code"]["enum"][0]
        text = json.dumps({"code": code})
    if "Count" in body["messages"][-1]["content"]:
        text, finish = "1\n2\n3", "length"
    cached = {"cached_tokens": 1024 if len(body["messages"][-1]["content"]) > 4000 else 0}
    usage = {"prompt_tokens": 1500, "completion_tokens": 3, "prompt_tokens_details": cached}
    return await says(text, finish=finish, usage=usage, delay=0.04)(request, body)


async def test_a_good_endpoint_gets_no_warning(server: Server):
    server.default = obedient
    found = await look(server)
    assert found.ok
    assert set(levels(found).values()) == {"ok"}
    assert "enforced" in found["structured output"].what
    assert "1024 of 1500" in found["prefix cache"].what
    assert "is listed" in found["model"].what
    assert "none sent" in found["key"].what
    assert server.peak == 8


async def test_a_plain_endpoint_is_told_apart_from_an_enforcing_one(server: Server):
    server.default = says("hello", usage=None)
    found = await look(server)
    assert found.ok
    assert "accepted and ignored" in found["structured output"].what
    assert levels(found)["structured output"] == "warn"
    assert "estimate" in found["usage"].what
    assert "no cached tokens" in found["prefix cache"].what


async def test_refused_fields_are_named(server: Server):
    server.default = refusing("response_format", "response_format is not supported")
    assert "refused" in (await look(server))["structured output"].what
    server.default = refusing("temperature", "temperature is not supported")
    found = await look(server)
    assert "temperature" in found["sampling"].what
    assert levels(found)["sampling"] == "warn"


async def test_a_length_cap_that_is_ignored_endangers_budgets(server: Server):
    server.default = says("1 2 3", usage={"prompt_tokens": 5, "completion_tokens": 400})
    cap = (await look(server))["length cap"]
    assert cap.level == "warn"
    assert "400 tokens" in cap.what
    assert "budget" in cap.next_step


async def test_calls_served_in_turn_are_noticed(server: Server):
    turn = asyncio.Lock()

    async def one_by_one(request: web.Request, body: dict) -> web.StreamResponse:
        async with turn:
            return await says(delay=0.02)(request, body)

    server.default = one_by_one
    concurrency = (await look(server))["concurrency"]
    assert concurrency.level == "warn"
    assert "in turn" in concurrency.what


async def test_calls_that_fail_together_are_noticed(server: Server):
    busy = 0

    async def limited(request: web.Request, body: dict) -> web.StreamResponse:
        nonlocal busy
        busy += 1
        try:
            step = fails(429, "too many") if busy > 3 else says(delay=0.05)
            return await step(request, body)
        finally:
            busy -= 1

    server.default = limited
    concurrency = (await look(server))["concurrency"]
    assert concurrency.level == "warn"
    assert "5 of 8" in concurrency.what


async def test_an_address_that_does_not_answer(server: Server):
    found = await look(server, spec="http://127.0.0.1:9/v1#m")
    assert not found.ok
    assert list(levels(found)) == ["address"]
    assert found["address"].next_step


async def test_a_refused_key(server: Server):
    server.default = fails(401, "wrong key sk-77")
    found = await probe(server.spec, environment={"PCO_API_KEY": "sk-77"})
    assert found["call"].level == "fail"
    assert "PCO_API_KEY" in found["call"].next_step
    assert "sk-77" not in str(found)


async def test_a_model_that_is_not_listed(server: Server):
    server.models = ["qwen3-8b", "llama"]
    found = await look(server, spec=f"{server.url}#qwen3-8")
    assert "did you mean 'qwen3-8b'" in found["model"].what
    assert found.ok
    unnamed = await look(server, spec=server.url)
    assert not unnamed.ok
    assert "#MODEL" in unnamed["model"].next_step


async def test_a_server_without_a_list_is_judged_by_its_calls(server: Server):
    server.models = None
    found = await look(server)
    assert found.ok
    assert levels(found)["address"] == "warn"
    assert not (await look(server, spec=server.url)).ok


@pytest.mark.parametrize("spec", ["opnai/x", "http://u:p@h/v1#m", "simulated"])
async def test_a_spec_that_cannot_be_used(server: Server, spec: str):
    found = await look(server, spec=spec)
    assert not found.ok
    assert found["spec"].next_step


async def test_the_simulated_model_is_looked_at_by_its_calls(server: Server):
    lm = ScriptedLM().reply_with(lambda request: "hello")
    found = await look(server, spec="simulated", simulated=lambda spec: lm)
    assert found.ok
    assert "call" in levels(found)
    assert server.calls == 0


async def test_a_tokenizer_is_found(server: Server):
    async def count(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return web.json_response({"count": len(body["prompt"].split())})

    server.extra_routes.append(("/tokenize", count))
    await server.stop()
    await server.start()
    assert "counts tokens itself" in (await look(server))["tokenizer"].what


async def test_a_list_that_breaks_the_connection_does_not_break_the_first_call(server: Server):
    server.listing = fails_and_hangs_up()
    found = await look(server)
    assert found.ok
    assert levels(found)["address"] == "warn"
    assert "lists no models" in found["address"].what
    assert levels(found)["call"] == "ok"
