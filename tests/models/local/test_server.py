"""The server of a local model over an engine without one: what callers get, whoever generates."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from promptcodebook.calls import Message
from promptcodebook.errors import ConfigError, RequestRefused
from promptcodebook.models.local.engine import Embedding, Engine, Job
from promptcodebook.models.local.server import LocalServer, ServerOptions
from tests.build.clock import until
from tests.build.local_http import CHAT, ScriptedEngine, up
from tests.build.proxied import ask


class EmbeddingEngine(ScriptedEngine):
    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        return [Embedding((0.6, 0.8), self.count_tokens(text)) for text in texts]


REFUSED = json.loads(Path(__file__).with_name("refused.json").read_text("utf-8"))["refused"]


async def error(url: str, **body: Any) -> tuple[int, dict[str, Any]]:
    status, answer, _ = await ask(url, json={"messages": CHAT, **body})
    return status, answer["error"]


def client(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def test_a_call_becomes_a_job_and_its_generation_a_completion() -> None:
    engine = ScriptedEngine()
    same: Any = {"temperature": 0.3, "top_p": 0.8, "seed": 7}
    same |= {"presence_penalty": 0.5, "frequency_penalty": -0.5}
    sent: Any = [{"role": "developer", "content": "Be brief."}, *CHAT]
    more: Any = {"max_completion_tokens": 4, "stop": ["END", "\n"], "user": "somebody"}
    async with up(engine) as url, client(url) as openai_client:
        asking = openai_client.chat.completions.create
        reply = await asking(model="Scripted-1", messages=sent, **same, **more)
    messages = (Message("system", "Be brief."), Message("user", "Count to two."))
    assert engine.jobs == [Job(messages=messages, max_tokens=4, stop=("END", "\n"), **same)]
    [choice] = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("Count to two. (7)", "length")
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 4)
    assert reply.usage.prompt_tokens_details.cached_tokens == 1
    assert reply.model == "Scripted-1" and reply.created > 1_000_000_000


async def test_a_seed_decides_the_draw_and_without_one_none_is_the_same() -> None:
    async with up() as url, client(url) as openai_client:

        async def drawn(seed: int | None) -> str | None:
            asked: Any = {"messages": CHAT, "seed": seed}
            reply = await openai_client.chat.completions.create(model="", **asked)
            return reply.choices[0].message.content

        assert await drawn(5) == await drawn(5) != await drawn(6)
        assert await drawn(None) != await drawn(None)


async def test_a_stream_has_the_pieces_of_the_whole_and_its_usage() -> None:
    asked: Any = {"model": "Scripted-1", "messages": CHAT, "seed": 1}
    streamed: Any = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    async with up() as url, client(url) as openai_client:
        text, ends, usage = "", [], []
        async for chunk in await openai_client.chat.completions.create(**streamed):
            usage += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
        whole = await openai_client.chat.completions.create(**asked)
    assert (text, ends) == (whole.choices[0].message.content, ["stop"])
    assert usage == [whole.usage]


@pytest.mark.parametrize(("body", "param", "says"), REFUSED)
async def test_what_cannot_be_obeyed_is_refused_and_the_field_named(
    body: dict[str, Any], param: str, says: str
) -> None:
    engine = ScriptedEngine()
    async with up(engine) as url:
        status, refused = await error(url, **body)
    assert (status, refused["param"]) == (400, param)
    assert says in refused["message"] and refused["type"] == "invalid_request_error"
    assert engine.jobs == []


async def test_what_leaves_the_text_as_it_is_may_be_said() -> None:
    harmless: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "tools": [],
        "logit_bias": {},
    }
    harmless |= {"logprobs": False, "n": 1}
    engine = ScriptedEngine()
    async with up(engine) as url:
        for kind in ("text", "json_object"):
            body = {"messages": CHAT, "response_format": {"type": kind}, **harmless}
            assert (await ask(url, json=body))[0] == 200
    assert [job.schema for job in engine.jobs] == [None, {"type": "object"}], "any object"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_is_a_400_and_its_failure_a_500(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def script(job: Job) -> str:
        if job.messages[-1].content == "long":
            raise RequestRefused("the prompt has 200 tokens of at most 128")
        raise ValueError(f"cannot read {job.messages[-1].content}")

    async with up(ScriptedEngine(script)) as url:
        long = [{"role": "user", "content": "long"}]
        status, refused = await error(url, messages=long, stream=stream)
        assert (status, refused["message"]) == (400, "the prompt has 200 tokens of at most 128")
        secret = [{"role": "user", "content": "my secret"}]
        status, failed = await error(url, messages=secret, stream=stream)
    assert (status, failed["type"]) == (500, "server_error")
    assert "secret" not in failed["message"] + caplog.text
    assert "ValueError" in caplog.text


async def test_a_stream_that_breaks_says_so_in_its_last_event() -> None:
    class Breaking(ScriptedEngine):
        async def stream(self, job: Job):  # type: ignore[no-untyped-def]
            yield "one"
            raise ValueError

    asked: Any = {"model": "", "messages": CHAT, "stream": True}
    async with up(Breaking()) as url, client(url) as openai_client:
        got = ""
        with pytest.raises(openai.APIError, match="the model failed"):
            async for chunk in await openai_client.chat.completions.create(**asked):
                got += chunk.choices[0].delta.content or ""
    assert got == "one"


async def test_models_are_listed_and_others_unknown() -> None:
    async with up(terms=ServerOptions(aliases=("short",))) as url, client(url) as openai_client:
        assert [model.id async for model in await openai_client.models.list()] == ["Scripted-1"]
        assert (await openai_client.models.retrieve("Scripted-1")).id == "Scripted-1"
        for name in ("", "short", "Scripted-1"):
            _, body, _ = await ask(url, json={"messages": CHAT, "model": name})
            assert body["model"] == "Scripted-1"
        status, refused = await error(url, model="gpt-4o")
        assert (status, refused["param"], refused["code"]) == (404, "model", "model_not_found")
        with pytest.raises(openai.NotFoundError, match="this server has 'Scripted-1'"):
            await openai_client.models.retrieve("a/b")
        assert (await ask(url, "/v1/nonsense"))[1]["error"]["type"] == "not_found"


async def test_embeddings_where_the_engine_can_and_a_plain_answer_where_not() -> None:
    async with up(EmbeddingEngine()) as url, client(url) as openai_client:
        # The client asks for base64 and decodes it.
        made = await openai_client.embeddings.create(model="Scripted-1", input=["a b", "c"])
        assert [each.index for each in made.data] == [0, 1]
        assert made.data[0].embedding == pytest.approx([0.6, 0.8], abs=1e-6)
        assert made.usage.prompt_tokens == 3
        plain = await openai_client.embeddings.create(model="", input="a", encoding_format="float")
        assert plain.data[0].embedding == [0.6, 0.8]
        with pytest.raises(openai.BadRequestError, match="none of them empty"):
            await openai_client.embeddings.create(model="", input=[""])
        with pytest.raises(openai.BadRequestError, match="does not shorten vectors"):
            await openai_client.embeddings.create(model="", input="a", dimensions=8)
    async with up() as url:
        status, body, _ = await ask(url, "/v1/embeddings", json={"input": "a"})
        assert (status, body["error"]["type"]) == (501, "not_supported")


async def test_while_the_model_is_loading_callers_are_asked_to_wait() -> None:
    ready = asyncio.Event()

    async def load() -> Engine:
        await ready.wait()
        return ScriptedEngine()

    async def fails() -> Engine:
        raise ConfigError("no such file")

    async with LocalServer(ServerOptions()).serving(load) as (address, loading):
        url = address.base_url.removesuffix("/v1")
        status, body, headers = await ask(url, json={"messages": CHAT})
        assert (status, headers["retry-after"]) == (503, "1")
        assert body["error"]["message"] == "the model is being loaded"
        assert (await ask(url, "/healthz"))[:2] == (503, {"status": "loading"})
        assert (await ask(url, "/v1/models"))[0] == 503
        ready.set()
        assert isinstance(await loading, ScriptedEngine)
        assert (await ask(url, "/healthz"))[:2] == (200, {"status": "ok"})
        assert (await ask(url, json={"messages": CHAT}))[0] == 200
    async with LocalServer(ServerOptions()).serving(fails) as (address, loading):
        with pytest.raises(ConfigError, match="no such file"):
            await loading
        status, body, _ = await ask(address.base_url.removesuffix("/v1"), "/healthz")
        assert (status, body) == (503, {"status": "failed"})


async def test_beyond_the_queue_callers_are_sent_away_and_places_come_back() -> None:
    engine = ScriptedEngine(held=True)
    async with up(engine, ServerOptions(queue=2)) as url:
        first = [asyncio.create_task(ask(url, json={"messages": CHAT})) for _ in range(2)]
        await until(lambda: len(engine.jobs) == 2)
        status, body, headers = await ask(url, json={"messages": CHAT})
        assert (status, body["error"]["type"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        assert "pco_in_flight 2.0" in (await ask(url, "/metrics"))[1]
        engine.release()
        assert [status for status, _, _ in await asyncio.gather(*first)] == [200, 200]
        assert (await ask(url, json={"messages": CHAT}))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_hangs_up_frees_its_place(stream: bool) -> None:
    engine = ScriptedEngine(held=True)
    async with up(engine, ServerOptions(queue=1)) as url:
        with suppress(asyncio.TimeoutError):
            limit = aiohttp.ClientTimeout(total=0.2)
            await ask(url, json={"messages": CHAT, "stream": stream}, timeout=limit)
        await until(lambda: engine.cancelled == 1)
        engine.release()
        assert (await ask(url, json={"messages": CHAT}))[0] == 200
        page = (await ask(url, "/metrics"))[1]
    assert 'pco_requests_total{path="/v1/chat/completions",status="499"} 1.0' in page
    assert engine.running == 0


async def test_metrics_count_requests_and_tokens_and_never_text() -> None:
    async with up() as url:
        for _ in range(2):
            await ask(url, json={"messages": CHAT, "seed": 1})
        await error(url, temperature=9)
        status, page, headers = await ask(url, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = Path(__file__).with_name("metrics.txt").read_text("utf-8").splitlines()
    assert [line for line in lines if line not in page] == []
    assert "Count" not in page


async def test_a_key_is_asked_for_where_one_is_set() -> None:
    async with up(terms=ServerOptions(key="abc")) as url:
        status, body, _ = await ask(url, json={"messages": CHAT})
        assert (status, body["error"]["type"]) == (401, "invalid_api_key")
        assert (await ask(url, "/v1/models"))[0] == (await ask(url, "/metrics"))[0] == 401
        assert (await ask(url, "/healthz"))[0] == 200
        async with client(url, "abc") as openai_client:
            assert (await openai_client.models.list()).data


async def test_the_description_is_made_of_the_bodies_and_needs_no_key() -> None:
    async with up(terms=ServerOptions(key="abc")) as url:
        status, tree, _ = await ask(url, "/openapi.json")
    assert status == 200
    chat = tree["components"]["schemas"]["LocalChatRequest"]
    assert chat["required"] == ["messages"] and chat["additionalProperties"] is True
    assert chat["properties"]["temperature"]["description"] == "a number between 0 and 2"
    paths = {
        *("/v1/chat/completions", "/v1/embeddings", "/v1/models", "/v1/models/{name}"),
        *("/metrics", "/healthz", "/health"),
    }
    assert set(tree["paths"]) == paths
    error = tree["paths"]["/v1/embeddings"]["post"]["responses"]["default"]
    assert error["content"]["application/json"]["schema"]["$ref"].endswith("/Error")


async def test_a_body_is_bounded_in_form_length_and_time() -> None:
    asked, plain = {"messages": CHAT}, {"Content-Type": "text/plain"}
    zipped = {"Content-Type": "application/json", "Content-Encoding": "gzip"}

    async def slow() -> AsyncGenerator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async def long() -> AsyncGenerator[bytes]:
        for _ in range(17):
            yield b" " * 2**20

    engine = ScriptedEngine()
    typed: Any = {"headers": {"Content-Type": "application/json"}}
    async with up(engine) as url:
        assert (await ask(url, data=long(), **typed))[0] == 413
        assert (await ask(url, json=asked, headers=plain))[0] == 415
        assert (await ask(url, json=asked, headers=zipped))[0] == 415
        for text in (b"", b"[]", b"{", b'{"messages": [{}], "n": ' + b"[" * 10**5):
            assert (await ask(url, data=text, **typed))[0] == 400
    async with up(engine, ServerOptions(body_s=0.05)) as url:
        assert (await ask(url, data=slow(), **typed))[0] == 408
    assert engine.jobs == []


async def test_another_method_is_told_which_one_a_path_takes() -> None:
    async with up() as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/v1/chat/completions") as response:
            assert (response.status, response.headers["allow"]) == (405, "POST")
            assert (await response.json())["error"]["type"] == "method_not_allowed"
        async with http.head(f"{url}/healthz") as response:
            assert response.status == 200 and response.headers["x-request-id"].startswith("req-")


async def test_a_text_with_half_a_surrogate_pair_comes_back() -> None:
    async with up() as url:
        chat = [{"role": "user", "content": "half \ud83d"}]
        status, body, _ = await ask(url, json={"messages": chat, "seed": 1})
    assert (status, body["choices"][0]["message"]["content"]) == (200, "half \ud83d (1)")


async def test_a_page_of_another_site_is_refused_without_a_key() -> None:
    engine = ScriptedEngine()
    async with up(engine) as url:
        for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "rebound.example"}):
            assert (await ask(url, json={"messages": CHAT}, headers=headers))[0] == 403
    assert engine.jobs == []


async def test_the_end_waits_for_calls_in_flight_and_not_for_ever() -> None:
    for terms, status in ((ServerOptions(), 200), (ServerOptions(drain_s=0), 503)):
        engine = ScriptedEngine(held=True)
        async with up(engine, terms) as url:
            under_way = asyncio.create_task(ask(url, json={"messages": CHAT}))
            await until(lambda engine=engine: len(engine.jobs) == 1)
            if status == 200:
                asyncio.get_running_loop().call_later(0.1, engine.release)
        got, body, _ = await under_way
        assert (got, engine.closed, engine.cancelled) == (status, 1, int(status == 503))
        assert got == 200 or body["error"]["message"] == "the server is stopping"
