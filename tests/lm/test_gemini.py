"""Gemini at Google's OpenAI-compatible address: where that differs from OpenAI's wire."""

import json
from typing import Any

import pytest

from promptcodebook import errors
from promptcodebook.calls import Message, Request
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import parse_spec
from tests.build.server import Server, Step, raw, says

KEY = "AIza-very-secret-0"


async def ask(server: Server) -> None:
    environment = {"GOOGLE_GEMINI_BASE_URL": server.url, "GEMINI_API_KEY": KEY}
    spec = parse_spec("gemini/gem-x", environment)
    async with Endpoint(spec, spec.credentials({}, environment), timeout=20.0) as lm:
        await lm(Request("executor", (Message("user", "hi"),)))


def refuses(status: int, message: str, **details: str) -> Step:
    """Google puts the error into a list, and what to do about it into its details."""
    error: dict[str, Any] = {"code": status, "message": message}
    error["details"] = [{"@type": "x"}, *({name: value} for name, value in details.items()), "odd"]
    return raw(json.dumps([{"error": error}]).encode(), status)


def withholds(reason: str) -> Step:
    """A filter leaves out the message."""
    return raw(json.dumps({"choices": [{"finish_reason": reason}]}).encode())


async def test_it_is_asked_like_any_other_with_its_key_as_a_bearer_token(server: Server) -> None:
    await ask(server)
    assert server.bodies[0]["model"] == "gem-x"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(("step", "kind", "message", "wait"), [
    (refuses(429, "quota", retryDelay="34.5s"), errors.RateLimited, "quota", 34.5),
    (refuses(429, "quota", retryDelay="soon"), errors.RateLimited, "quota", 0.0),
    (refuses(400, "not valid", reason="API_KEY_INVALID"), errors.AuthRefused, "not valid", 0.0),
    (refuses(400, "bad value"), errors.RequestRefused, "400: bad value", 0.0),
    (refuses(404, "models/gem-x is not found"), errors.ModelNotFound, "models: gem-y", 0.0),
    (withholds("content_filter: RECITATION"), errors.ReplyWithheld, ": RECITATION)", 0.0),
    (says(None, finish="function_call_filter: MALFORMED_FUNCTION_CALL"), errors.ServerFault,
     "MALFORMED_FUNCTION_CALL", 0.0),
])  # fmt: skip
async def test_each_failure_becomes_ours(
    server: Server, step: Step, kind: type[errors.LMError], message: str, wait: float
) -> None:
    server.models = ["models/gem-y"]
    server.default = step
    with pytest.raises(kind) as caught:
        await ask(server)
    assert message in str(caught.value) + caught.value.hint and caught.value.retry_after == wait
