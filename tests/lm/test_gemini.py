"""Gemini at Google's OpenAI-compatible address: where that differs from OpenAI's wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promptcodebook import errors
from promptcodebook.calls import Message, Reply, Request, Sampling, Schema
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import parse_spec
from tests.build.server import Server, Step, raw, says

KEY = "AIza-very-secret-0"
ASKED = Request(
    "executor",
    (Message("user", "hi"),),
    Schema("Pick", {"type": "object", "properties": {"a": {"type": "string"}}}),
    sampling=Sampling(extra={"reasoning_effort": "low"}),
)


async def ask(server: Server, *asked: Request) -> list[Reply]:
    environment = {"GOOGLE_GEMINI_BASE_URL": server.url, "GEMINI_API_KEY": KEY}
    spec = parse_spec("gemini/gem-x", environment)
    async with Endpoint(spec, spec.credentials({}, environment), timeout=20.0) as lm:
        return [await lm(each) for each in asked]


def refuses(status: int, message: str, **details: str) -> Step:
    """Google puts the error into a list, and what to do about it into its details."""
    error: dict[str, Any] = {"code": status, "message": message}
    error["details"] = [{name: value} for name, value in details.items()]
    return raw(json.dumps([{"error": error}]).encode(), status)


def withholds(reason: str) -> Step:
    """A filter leaves out the message."""
    choice = {"index": 0, "finish_reason": reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}
    return raw(json.dumps({"choices": [choice], "usage": usage}).encode())


async def test_a_request_goes_in_openais_words_with_the_key_as_a_bearer_token(
    server: Server,
) -> None:
    await ask(server, ASKED)
    [body] = server.bodies
    assert (body["model"], body["reasoning_effort"]) == ("gem-x", "low")
    assert body["response_format"]["json_schema"]["schema"] == ASKED.schema.body  # type: ignore[union-attr]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_thoughts_that_only_the_total_counts_are_paid_for_as_replies_are(
    server: Server,
) -> None:
    counts: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 90}
    server.script(says("four", usage={**counts, "prompt_tokens_details": {"cached_tokens": 5}}))
    usage = (await ask(server, ASKED))[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens) == (7, 83, 5)


@pytest.mark.parametrize(("field", "message"), [
    ("seed", 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
    ("response_format", 'Unknown name "x" at \'generation_config.response_schema\''),
])  # fmt: skip
async def test_a_field_that_google_has_no_word_for_is_left_out_from_then_on(
    server: Server, field: str, message: str
) -> None:
    server.script(refuses(400, message))
    first, second = await ask(server, ASKED, ASKED)
    assert first.dropped == second.dropped == (field,) and server.calls == 3


@pytest.mark.parametrize(("step", "kind", "said", "wait"), [
    (refuses(429, "quota", retryDelay="34.5s"), errors.RateLimited, "quota", 34.5),
    (refuses(429, "quota", retryDelay="soon"), errors.RateLimited, "quota", 0.0),
    (refuses(400, "not valid", reason="API_KEY_INVALID"), errors.AuthRefused,
     "not valid", 0.0),
    (refuses(404, "models/gem-x is not found"), errors.ModelNotFound, "gem-y", 0.0),
    (withholds("content_filter: RECITATION"), errors.ReplyWithheld, ": RECITATION)", 0.0),
    (says(None, finish="function_call_filter: MALFORMED_FUNCTION_CALL"), errors.ServerFault,
     "MALFORMED_FUNCTION_CALL", 0.0),
])  # fmt: skip
async def test_each_failure_becomes_ours(
    server: Server, step: Step, kind: type[errors.LMError], said: str, wait: float
) -> None:
    server.models = ["models/gem-y"]
    server.script(step)
    with pytest.raises(kind) as caught:
        await ask(server, ASKED)
    error = caught.value
    assert said in str(error) + error.hint and error.retry_after == wait
    assert "models/gem-y" not in error.hint, "a spec has the name alone"


async def test_what_a_filter_cut_short_is_kept(server: Server) -> None:
    server.script(says("half", finish="content_filter: SAFETY"))
    [reply] = await ask(server, ASKED)
    assert (reply.text, reply.finish) == ("half", "content_filter")
