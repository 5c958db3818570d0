"""The chat-completions wire as the simulated server speaks it: bodies in, bodies out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from promptcodebook.simulated.chat import ChatReply, ChatRequest
from promptcodebook.types import Message

__all__ = ["BadBody", "chunks_of", "completion", "error_body", "read_body", "usage_of"]

_ROLES = {"developer": "system", "tool": "user", "function": "user"}


class BadBody(ValueError):
    """A request body that is not a chat completion request; `param` names the field."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


def read_body(body: Mapping[str, Any]) -> ChatRequest:
    """A request body as a ChatRequest. Raises BadBody."""
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        raise BadBody("messages must be a list of at least one message", "messages")
    if body.get("n", 1) not in (1, None):
        raise BadBody("the simulated model gives one choice a request: n must be 1", "n")
    cap = body.get("max_completion_tokens", body.get("max_tokens"))
    temperature = _number(body, "temperature", 1.0)
    schema, json_mode = _response_format(body.get("response_format"))
    return ChatRequest(
        messages=tuple(_message(m) for m in cast("list[object]", listed)),
        temperature=temperature,
        max_tokens=None if cap is None else int(_positive(cap)),
        seed=int(_number(body, "seed", 0)),
        schema=schema,
        json_mode=json_mode,
    )


def _message(found: object) -> Message:
    if not isinstance(found, dict):
        raise BadBody("each message must be an object", "messages")
    tree = cast("dict[str, object]", found)
    role = str(tree.get("role", "user"))
    role = _ROLES.get(role, role)
    if role not in ("system", "user", "assistant"):
        raise BadBody(f"unknown message role {role!r}", "messages")
    return Message(role, _content(tree.get("content")))


def _content(found: object) -> str:
    if found is None:
        return ""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        parts = cast("list[object]", found)
        trees = [cast("dict[str, object]", p) for p in parts if isinstance(p, dict)]
        return "".join(str(tree.get("text", "")) for tree in trees)
    raise BadBody("message content must be text", "messages")


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadBody(f"{name} must be a number", name)
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise BadBody("max_tokens must be a whole number of at least 1", "max_tokens")
    return value


def _response_format(found: object) -> tuple[Mapping[str, object] | None, bool]:
    if not isinstance(found, dict):
        return None, False
    tree = cast("dict[str, Any]", found)
    if tree.get("type") != "json_schema":
        return None, tree.get("type") == "json_object"
    named = tree.get("json_schema")
    body = cast("dict[str, Any]", named).get("schema") if isinstance(named, dict) else None
    if not isinstance(body, dict):
        raise BadBody("response_format.json_schema.schema must be an object", "response_format")
    return cast("dict[str, object]", body), True


def usage_of(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def completion(reply: ChatReply, number: int, model: str) -> dict[str, Any]:
    """The body of a finished reply."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "finish_reason": reply.finish,
        "logprobs": None,
    }
    return {
        "id": f"simulated-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": usage_of(reply),
    }


def chunks_of(reply: ChatReply, number: int, model: str, pieces: int) -> list[dict[str, Any]]:
    """The bodies of a streamed reply, the usage in the last one."""
    head = {
        "id": f"simulated-{number}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
    }
    size = max(1, -(-len(reply.text) // max(1, pieces)))
    parts = [reply.text[k : k + size] for k in range(0, len(reply.text), size)]
    bodies = [{**head, "choices": [_delta({"role": "assistant", "content": ""})]}]
    bodies += [{**head, "choices": [_delta({"content": part})]} for part in parts]
    bodies.append({**head, "choices": [_delta({}, reply.finish)]})
    return bodies


def _delta(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}


def error_body(message: str, kind: str, param: str = "") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param or None, "code": kind}}
