"""Clients that people have, unmodified, against a served policy."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.lm.server import Step, says
from tests.serve.proxied import SAID, Up, up
from tests.serve.test_proxy import streams

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def speaks(*texts: str) -> Step:
    """A stream of chunks as clients want them."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        head = '"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"'
        deltas = [*(f'{{"content": "{text}"}}' for text in texts), "{}"]
        ends = [*("null" for _ in texts), '"stop"']
        chunks = [
            f'data: {{{head}, "choices": [{{"index": 0, "delta": {delta}, '
            f'"finish_reason": {end}}}]}}\n\n'.encode()
            for delta, end in zip(deltas, ends, strict=True)
        ]
        return await streams(*chunks, b"data: [DONE]\n\n")(request, body)

    return step


def prompted(served: Up) -> bool:
    """Whether the last request that went up had a prompt before its messages."""
    return served.upstream.bodies[-1]["messages"][0]["role"] == "system"


async def test_openai_async() -> None:
    async with up() as served, served.client() as client:
        reply = await client.chat.completions.create(model="pco/tickets", messages=SAID)
        assert reply.choices[0].message.content == "ok" and prompted(served)
        assert (await client.models.list()).data[0].id == "pco/tickets"
        served.upstream.script(speaks("Hel", "lo"))
        stream = await client.chat.completions.create(
            model="pco/tickets", messages=SAID, stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["Hel", "lo", None]


async def test_openai_tools() -> None:
    async with up() as served, served.client() as client:
        served.upstream.script(says(None, finish="tool_calls", message={"tool_calls": [CALL]}))
        reply = await client.chat.completions.create(
            model="pco/tickets", messages=SAID, tools=[TOOL]
        )
        [call] = reply.choices[0].message.tool_calls or []
        assert call.type == "function" and call.function.arguments == '{"id": 7}'
        turns: Any = [
            *SAID,
            reply.choices[0].message,
            {"role": "tool", "tool_call_id": "c1", "content": "7"},
        ]
        again = await client.chat.completions.create(
            model="pco/tickets", messages=turns, tools=[TOOL]
        )
        assert again.choices[0].message.content == "ok"
        sent = served.upstream.bodies[-1]
        assert sent["tools"] == [TOOL]
        assert [message["role"] for message in sent["messages"]] == [
            *("system", "user", "assistant", "tool")
        ]


async def test_openai_sync_and_its_errors() -> None:
    async with up() as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)

        def asks(model: str) -> Any:
            return client.chat.completions.create(model=model, messages=SAID)

        with client:
            reply = await asyncio.to_thread(asks, "pco/tickets")
            assert reply.choices[0].message.content == "ok" and prompted(served)
            with pytest.raises(openai.NotFoundError, match="no such model"):
                await asyncio.to_thread(asks, "gpt-4o")
            served.upstream.script(speaks("Hel", "lo"))

            def streams_it() -> list[str | None]:
                stream = client.chat.completions.create(
                    model="pco/tickets", messages=SAID, stream=True
                )
                return [chunk.choices[0].delta.content for chunk in stream]

            assert await asyncio.to_thread(streams_it) == ["Hel", "lo", None]


@pytest.mark.slow
async def test_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    async with up() as served:
        reply: Any = await litellm.acompletion(
            model="openai/pco/tickets",
            messages=SAID,
            api_base=f"{served.url}/v1",
            api_key="none",
        )
        assert reply.choices[0].message.content == "ok" and prompted(served)


@pytest.mark.slow
async def test_dspy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import dspy

    async with up() as served:
        lm = dspy.LM("openai/pco/tickets", api_base=f"{served.url}/v1", api_key="none", cache=False)
        said: Any = await asyncio.to_thread(lm, "My refund is late.")
        assert said == ["ok"] and prompted(served)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
async def test_langchain() -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    async with up() as served:
        model = ChatOpenAI(
            model="pco/tickets", base_url=f"{served.url}/v1", api_key=SecretStr("none")
        )
        reply = await model.ainvoke("My refund is late.")
        assert reply.content == "ok" and prompted(served)
        served.upstream.script(speaks("Hel", "lo"))
        pieces = [piece.content async for piece in model.astream("My refund is late.")]
        assert "".join(map(str, pieces)) == "Hello"
