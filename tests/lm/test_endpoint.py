"""One model behind an address: what is sent, what is read, and what each failure becomes."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from promptcodebook import errors
from promptcodebook.calls import (
    Message,
    Reply,
    Request,
    Sampling,
    Schema,
    read_message,
    request_key,
)
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import ApiKey, Credentials, parse_spec, read_key
from promptcodebook.lm.wire import read_retry_after
from tests.build.cases import table
from tests.build.server import Server, Step, drops, fails, pours, raw, refusing, says

SCHEMA = Schema("Thing", {"type": "object", "properties": {"a": {"type": "string"}}})
KEY = "sk-abc123-very-secret"
# Braces, marks of a template, half a surrogate pair: all of it arrives.
HI = "{x} {{y}} <|im_start|>system\n\\u0041 \ud83d é"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"key": "KEY"}'}}
READ = Request("encoder", (Message("user", "text"),), sampling=Sampling(max_tokens=0), embeds=True)


def request(**sampling) -> Request:
    messages = (Message("system", "be brief"), Message("user", HI))
    return Request("executor", messages, sample=2**40 + 5, sampling=Sampling(**sampling))


def endpoint(
    server: Server, *, key: str = "", timeout: float = 60.0, spec: str = "", **options: int
) -> Endpoint:
    held = Credentials(ApiKey("PCO_API_KEY", key) if key else None)
    return Endpoint(parse_spec(spec or server.spec, {}), held, timeout=timeout, **options)


async def answers(server: Server, *asked: Request, **options) -> list[Reply]:
    async with endpoint(server, **options) as lm:
        return [await lm(each) for each in asked]


async def failure(
    server: Server, *steps: Step, asked: Request | None = None, **options
) -> errors.LMError:
    server.script(*steps)
    async with endpoint(server, **options) as lm:
        with pytest.raises(errors.LMError) as caught:
            await lm(asked or request())
    return caught.value


# What is sent


async def test_the_body_holds_what_was_asked(server: Server):
    asked = request(temperature=0.5, top_p=0.9, max_tokens=20, extra={"top_k": 4})
    [reply] = await answers(server, asked)
    assert (reply.text, reply.finish) == ("ok", "stop")
    assert (reply.usage.calls, reply.usage.tokens, reply.usage.cost) == (1, 10, None)
    assert reply.usage.latency_s > 0
    assert server.bodies == [{
        "model": "m", "temperature": 0.5, "top_p": 0.9, "max_tokens": 20, "top_k": 4, "seed": 5,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": HI}],
    }]  # fmt: skip
    assert "Authorization" not in server.headers[0]
    await answers(server, request(), request(temperature=0.0))
    sent = [set(body) - {"model", "messages"} for body in server.bodies]
    assert sent[1:] == [{"seed"}, {"temperature"}], "what is not set is not sent"


async def test_a_schema_is_asked_for_and_strict_only_where_it_may_be(server: Server):
    closed = {**SCHEMA.body, "additionalProperties": False, "required": ["a"]}
    asked = [
        Request("critic", (Message("user", "x"),), schema=Schema("Thing", body))
        for body in (SCHEMA.body, closed)
    ]
    await answers(server, *asked)
    first, second = (body["response_format"] for body in server.bodies)
    assert first["type"] == "json_schema"
    assert first["json_schema"] == {"name": "Thing", "schema": SCHEMA.body}
    assert second["json_schema"]["strict"] is True


async def test_a_message_goes_as_it_is_written_and_a_tool_call_comes_back(server: Server):
    """With a form of its own only where the request has no schema; and without the key."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "x": 1}
    turns: list[dict[str, Any]] = [
        {"role": "developer", "content": "look", "name": "us"},
        {"role": "user", "content": [{"type": "text", "text": "what?"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": None}]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    messages = tuple(map(read_message, turns))
    texts = ["look", "what?\n[image]", 'f({"key": "KEY"})', "3"]
    assert [m.content for m in messages] == texts and not messages[2].media
    extra = {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}}
    asked = Request("executor", messages, sampling=Sampling(extra=extra))
    spoken = json.loads(json.dumps(CALL).replace("KEY", KEY))
    server.script(says(None, finish="tool_calls", message={"tool_calls": [spoken]}))
    first, _ = await answers(server, asked, replace(asked, schema=SCHEMA), key=KEY)
    assert (first.text, first.finish) == ("", "stop")
    assert first.tool_calls == (json.loads(json.dumps(CALL).replace("KEY", "***")),)
    turns[2]["tool_calls"] = [CALL]
    assert server.bodies[0]["messages"] == turns
    forms = [body["response_format"]["type"] for body in server.bodies]
    assert forms == ["json_object", "json_schema"] and server.bodies[1]["tools"]


async def embedded(server: Server, body: dict[str, Any]) -> list[Any]:
    """Serves this body at /embeddings; what is asked there is in the list."""
    asked: list[Any] = []

    async def embeddings(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response(body)

    await server.stop()
    server.extra_routes.append(("/v1/embeddings", embeddings))
    await server.start()
    return asked


async def test_an_embedding_is_asked_for_at_its_own_place(server: Server):
    data = [{"index": 0, "embedding": [0.25, -1, 1 / 3]}]
    asked = await embedded(server, {"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}})
    [reply] = await answers(server, READ)
    assert asked == [{"model": "m", "input": "text", "encoding_format": "float"}]
    assert (reply.vector, reply.text) == ((0.25, -1.0, 0.333333), "")
    assert (reply.usage.calls, reply.usage.tokens, reply.usage.completion_tokens) == (1, 3, 0)
    assert not reply.estimated and server.calls == 0


async def test_an_image_is_embedded_as_a_chat_and_a_refusal_says_what_to_set(server: Server):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "text"}, part]}
    shown = replace(READ, messages=(read_message(turn),))
    asked = await embedded(server, {"data": [{"embedding": [1.0]}]})
    [reply] = await answers(server, shown)
    assert asked == [{"model": "m", "messages": [turn], "encoding_format": "float"}]
    assert reply.vector == (1.0,) and request_key(shown) != request_key(READ)

    async def refuses(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "input: field required"}}, status=422)

    await server.stop()
    server.extra_routes[:] = [("/v1/embeddings", refuses)]
    await server.start()
    error = await failure(server, asked=shown)
    assert isinstance(error, errors.RequestRefused) and error.role == "encoder"
    assert "answered 422: input: field required" in str(error)
    assert error.hint.startswith("router.images = false")
    assert "images" not in str(await failure(server, asked=READ))


async def test_an_embedding_without_numbers_is_malformed_and_a_server_without_any_says_so(
    server: Server,
):
    error = await failure(server, asked=READ)
    assert isinstance(error, errors.RequestRefused) and "offers no embeddings (HTTP 404)" in str(
        error
    )
    assert "router.features = 'words'" in error.hint and error.role == "encoder"
    body: dict[str, Any] = {}
    await embedded(server, body)
    for body["data"] in ([], [{"embedding": []}], [{"embedding": ["x"]}], [{}], "no"):
        error = await failure(server, asked=READ)
        assert isinstance(error, errors.ServerFault) and "embedding" in str(error)


# What is read


async def test_odd_but_legal_replies_are_read(server: Server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    server.script(
        says(None, message={"reasoning_content": "hm"}),
        says("cut", finish="length"),
        says("x", finish="content_filter"),
        says(None, message={"content": parts}),
        says("12345678", usage=None),
        says("x", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 6}}),
        # Google names the filter, and counts thoughts in the total alone.
        says("half", finish="content_filter: SAFETY", usage={**USAGE, "total_tokens": 90}),
    )
    replies = await answers(server, *[request()] * 7)
    assert [r.text for r in replies] == ["", "cut", "x", "ab", "12345678", "x", "half"]
    filtered = "content_filter"
    assert [r.finish for r in replies if r.finish != "stop"] == ["length", filtered, filtered]
    assert [r.estimated for r in replies[3:]] == [False, True, False, False]
    assert (replies[6].usage.prompt_tokens, replies[6].usage.completion_tokens) == (7, 83)
    assert (replies[4].usage.prompt_tokens, replies[4].usage.completion_tokens) == (25, 3)
    assert replies[5].usage.cached_prompt_tokens == 6


@pytest.mark.parametrize("usage", [
    {**USAGE, "prompt_tokens": -5},
    {**USAGE, "prompt_tokens": True},
    {**USAGE, "prompt_tokens": 10**30},
    {**USAGE, "prompt_tokens": 1.5},
    ["no", "usage"],
    None,
])  # fmt: skip
async def test_a_usage_that_cannot_be_is_estimated(server: Server, usage):
    server.script(says("12345678", usage=usage, message={"reasoning": "abcdef"}))
    [reply] = await answers(server, request())
    assert reply.estimated and reply.usage.completion_tokens == 5, "thoughts are paid for too"
    server.script(says(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": usage}}))
    [reply] = await answers(server, request())
    assert (reply.estimated, reply.usage.tokens, reply.usage.cached_prompt_tokens) == (False, 10, 0)


async def test_a_key_that_the_server_says_back_is_not_in_the_reply(server: Server):
    server.script(says(f"you sent {KEY}, thanks"))
    assert (await answers(server, request(), key=KEY))[0].text == "you sent ***, thanks"


async def test_a_body_is_read_up_to_its_limit_and_no_further(server: Server):
    whole = json.dumps({"choices": [{"message": {"content": "a" * 3000}}]}).encode()
    server.script(raw(whole))
    assert (await answers(server, request(), most_bytes=len(whole)))[0].text == "a" * 3000
    for step in (raw(whole), pours(b" " * 1000, 10**9)):
        error = await failure(server, step, most_bytes=len(whole) - 1, timeout=30)
        assert isinstance(error, errors.ServerFault) and error.incident == "malformed_body"
        assert "max_reply_mb" in str(error) and len(str(error)) < 400


# Fields that an endpoint refuses


async def test_max_completion_tokens_is_used_once_max_tokens_was_refused(server: Server):
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.default = refusing("max_tokens", message, param="max_tokens")
    async with endpoint(server) as lm:
        both = await asyncio.gather(lm(request(max_tokens=9)), lm(request(max_tokens=9)))
        await lm(request(max_tokens=9))
    assert [r.text for r in both] == ["fine", "fine"]
    assert server.calls == 4
    assert server.bodies[-1]["max_completion_tokens"] == 9


# What failures become


@pytest.mark.parametrize(("step", "kind", "incident"), [
    (fails(429, headers={"Retry-After": "3"}), errors.RateLimited, "rate_limited"),
    (fails(429, "Credit to our users", headers={"Retry-After": "3"}), errors.RateLimited,
     "rate_limited"),
    (fails(503, headers={"Retry-After": "3"}), errors.RateLimited, "unavailable"),
    *((fails(status), errors.ServerFault, "server_error") for status in (500, 502, 408, 409, 425)),
    (drops(), errors.ServerFault, "dropped"),
    (raw(b"<html>"), errors.ServerFault, "malformed_body"),
    (says(delay=60.0), errors.CallTimeout, "timeout"),
])  # fmt: skip
async def test_faults_of_the_server_can_be_tried_again(server: Server, step, kind, incident):
    error = await failure(server, step, timeout=0.5 if kind is errors.CallTimeout else 20.0)
    assert type(error) is kind and error.retryable
    assert error.incident == incident
    assert server.url in str(error) and error.hint
    assert error.retry_after == (3.0 if kind is errors.RateLimited else 0.0)


@pytest.mark.parametrize("reason", [
    "error", "abort", "insufficient_system_resource", "ERROR", "", "load", 7, True, ["stop"],
    {"type": "stop"},
])  # fmt: skip
@pytest.mark.parametrize("text", ["half an ans", None])
async def test_a_reply_that_is_broken_off_is_a_passing_fault(server: Server, text, reason):
    error = await failure(server, says(text, finish=reason))
    assert type(error) is errors.ServerFault and error.retryable and not error.lasting
    assert error.incident == "broken_off" and error.usage.tokens == 10 and not error.lost
    assert str(reason) in str(error) and error.hint


async def test_a_reply_with_an_error_in_it_is_broken_off_though_it_says_nothing_of_its_end(
    server: Server,
):
    choice = {"message": {"content": "half"}, "finish_reason": None}
    overloaded = {"message": "overloaded", "code": 502}
    for tree in ({"choices": [{**choice, "error": overloaded}]},
                 {"choices": [choice], "error": overloaded}):  # fmt: skip
        error = await failure(server, raw(json.dumps(tree).encode()))
        assert error.retryable and error.incident == "broken_off"
        assert "overloaded" not in str(error), "a server may quote what it was sent"


@pytest.mark.parametrize(("reason", "ending"), [
    *((each, "stop") for each in ("stop", "tool_calls", "function_call", None)),
    # Together's, Text Generation Inference's, and Mistral's where the context ran out.
    ("eos", "stop"), ("eos_token", "stop"), ("stop_sequence", "stop"), ("model_length", "length"),
])  # fmt: skip
async def test_a_whole_reply_ends_in_one_of_these_ways(server: Server, reason, ending):
    server.script(says("whole", finish=reason))
    assert (await answers(server, request()))[0].finish == ending


@pytest.mark.parametrize(("value", "seconds"), table(__file__, "retry_after"))
def test_a_retry_after_of_any_shape_is_read_or_ignored(value: str, seconds: float):
    now, headers = 1e9 if "1970 07" in value else 10.0, {"Retry-After": value}
    assert read_retry_after(headers, now=now) == pytest.approx(seconds)
    assert read_retry_after({**headers, "Date": "soon"}, now=now) == pytest.approx(seconds)
    for odd in ({}, {"Retry-After": "x" * 8000}, {"Retry-After": "9" * 8000}):
        assert read_retry_after(odd) == 0.0


@pytest.mark.parametrize("now", [0.0, 784111770.0, 4e9])
@pytest.mark.parametrize("at", [
    "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
    "Sun, 06 Nov 1994 09:49:37 +0100", "30",
])  # fmt: skip
def test_a_date_to_wait_for_is_by_the_servers_clock(at: str, now: float):
    """Whatever ours says, it is seven seconds on; one that has passed is not waited for."""
    for sent, seconds in (("08:49:30", 7.0), ("08:49:38", 0.0), ("01:00:00", 3600.0)):
        headers = {"Retry-After": at, "Date": f"Sun, 06 Nov 1994 {sent} GMT"}
        assert read_retry_after(headers, now=now) == (30.0 if at == "30" else seconds)


@pytest.mark.parametrize(
    ("status", "body"), table(__file__, "an_empty_account_is_told_as_one_and_asked_once")
)
async def test_an_empty_account_is_told_as_one_and_asked_once(server: Server, status, body):
    step = raw(json.dumps({"error": body}).encode(), status)
    error = await failure(server, step, key="sk-1")
    assert isinstance(error, errors.NoCredit) and not error.retryable and error.lasting
    assert "no credit left" in str(error) and body["message"] in str(error)
    assert "concurrency" not in error.hint and "PCO_API_KEY" in error.hint


@pytest.mark.parametrize(("text", "kind", "message"), table(__file__, "errors_in_a_200"))
async def test_a_200_without_a_completion_is_the_refusal_that_it_describes(
    server: Server, text: str, kind: str, message: str
) -> None:
    error = await failure(server, raw(text.encode()))
    assert type(error).__name__ == kind and message in str(error) and server.url in str(error)
    assert not error.lost, "no server bills an error"
    assert error.retry_after == (4.0 if "retry_after" in text else 0.0)


@pytest.mark.parametrize("body", [
    b'{"choices": [{"mess', b"{}", b'{"content": [{"text": "hi"}], "usage": {"input_tokens": 3}}',
    b'data: {"choices": [{"delta": {"content": "an invalid key"}}]}\n\n',
])  # fmt: skip
async def test_what_a_model_may_have_written_counts_as_lost(server: Server, body: bytes) -> None:
    error = await failure(server, raw(body))
    assert error.incident == "malformed_body" and error.lost and body[:9].decode() in str(error)


async def test_a_field_that_a_200_refuses_is_left_out_too(server: Server) -> None:
    refused = {"error": {"message": "seed is not supported", "param": "seed", "code": 400}}
    server.script(raw(json.dumps(refused).encode()))
    [reply] = await answers(server, request())
    assert reply.text == "ok" and "seed" not in server.bodies[-1]


# At most 300 characters are quoted.
LONG = [(json.dumps({"error": t}), t[:300] + "…" * (len(t) > 300)) for t in ("x" * 300, "y " * 400)]


@pytest.mark.parametrize(("text", "message"), [*table(__file__, "refusals"), *LONG])
async def test_a_refusal_of_any_shape_is_quoted_in_short(server: Server, text: str, message: str):
    server.default = raw(text.encode(), 400)
    error = await failure(server)
    assert isinstance(error, errors.RequestRefused) and not error.retryable
    assert str(error).startswith(f"{server.url} answered 400: {message} (sent: messages ")


# Models by name


async def test_an_unknown_model_lists_the_known_ones(server: Server):
    server.models = ["qwen3-8b", "llama-3", f"{KEY} {'x' * 300}", *map(str, range(20_000))]
    step = fails(404, "The model `qwen3-8` does not exist.", code="model_not_found")
    error = await failure(server, step, spec=f"{server.url}#qwen3-8", key=KEY)
    assert isinstance(error, errors.ModelNotFound) and "did you mean 'qwen3-8b'" in str(error)
    assert "llama-3, *** xxx" in error.hint and len(error.hint) < 400 and KEY not in str(error)
    server.models = None
    assert isinstance(await failure(server, fails(404, "model not found")), errors.ModelNotFound)


async def test_a_list_of_models_of_any_shape_is_one_error(server: Server):
    async with endpoint(server, spec=server.url) as lm:
        for body in (b"[" * 100_000, b'{"data": ' * 20_000, b"[]", b'{"data": 3}'):
            server.listing = raw(body)
            with pytest.raises(errors.ServerFault):
                await lm(request())
        assert await lm.count_tokens("a") is None


async def test_an_unnamed_model_is_the_only_one_there(server: Server):
    async with endpoint(server, spec=server.url) as lm:
        await lm(request())
        await lm.close()
        await lm.close()
        await lm(request())
        assert lm.model == "m", "a closed endpoint opens again"
    assert (server.bodies[0]["model"], server.listed) == ("m", 1)
    server.models = ["a", "b"]
    async with endpoint(server, spec=server.url) as lm:
        with pytest.raises(errors.ConfigError, match="2 models") as caught:
            await lm(request())
    assert "a, b" in caught.value.hint


# The key


async def test_a_redirect_is_not_followed_and_a_wrong_path_or_no_key_is_said(server: Server):
    to = {"Location": f"{server.url}/chat/completions"}
    error = await failure(server, fails(307, headers=to), key="sk-1")
    assert isinstance(error, errors.RequestRefused) and "redirect" in str(error)
    assert server.calls == 1 and server.headers[0]["Authorization"] == "Bearer sk-1"
    error = await failure(server, fails(401, "missing key"))
    assert isinstance(error, errors.AuthRefused) and "export PCO_API_KEY" in error.hint
    error = await failure(server, spec=server.url.removesuffix("/v1") + "#m")
    assert isinstance(error, errors.RequestRefused) and "/v1" in error.hint


def test_the_first_key_that_is_set_counts():
    key = read_key(("A", "B"), {"A": " ", "B": " sk-2 "})
    assert key is not None and "sk-2" not in repr(key)
    assert (key.name, key.headers()) == ("B", {"Authorization": "Bearer sk-2"})
    assert read_key(("A",), {}) is None
    with pytest.raises(errors.ConfigError, match="PCO_API_KEY") as caught:
        read_key(("PCO_API_KEY",), {"PCO_API_KEY": "sk-1\nsk-2"})
    assert "sk-1" not in str(caught.value) + caught.value.hint


# The connection


async def test_the_environments_proxy_is_used_but_not_for_this_machine(server: Server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    assert (await answers(server, request(), spec="http://far.example/v1#m"))[0].text == "ok"
    assert server.headers[0]["Host"] == "far.example"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert (await answers(server, request()))[0].text == "ok"
