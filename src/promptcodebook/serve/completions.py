"""The server side of the chat-completions wire: a request body in; completions, chunks, errors out.

Values and trees only: it knows no web framework, and nothing of who answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from promptcodebook.calls import Message, Reply, Request, Sampling, Schema

_SPEAKERS: Mapping[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "user",
    "function": "user",
    "assistant": "assistant",
}
_READ = frozenset(
    {
        *("model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
        *("seed", "response_format", "stream", "stream_options", "n", "stop"),
        *("logprobs", "top_logprobs"),
    }
)
"""Body fields with a place of their own; all others are kept as `Sampling.extra`."""
_MOST_ALTERNATIVES = 20
_MOST_VALUES = 200_000
"""Of a body: they are read in some 50 ms, and 16 MiB of empty lists in seconds."""
_FINISH = {"stop": "stop", "length": "length", "other": "content_filter"}
"""'other' must not pass for a whole reply, and the wire has no word for it that is closer."""


class Refusal(Exception):
    """A request that gets an error body in place of a completion.

    `param` names the field at fault; `retry_after` is in seconds, None = it is not said; `unpaid` =
    a model was asked and takes nothing for it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str = "",
        retry_after: float | None = None,
        unpaid: bool = False,
    ) -> None:
        super().__init__(message)
        self.unpaid = unpaid
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What a caller asks for.

    The wire names a model ('' = none named) and no role, so `request.role` is 'executor'.
    `stream_usage` = a last chunk with the usage; `choices` is the body's n.
    """

    request: Request
    stream: bool = False
    stream_usage: bool = False
    choices: int = 1
    stop: tuple[str, ...] = ()
    json_mode: bool = False
    """`response_format` asks for some JSON object, without a schema."""
    seeded: bool = False
    """The body names a seed, which is then `request.sample`."""
    logprobs: int | None = None
    """How many alternatives are wanted beside each token's log-probability; None = neither."""


def read_call(data: bytes) -> ChatCall:
    """A request body. Raises Refusal with status 400 and the field at fault."""
    return call_of(parse_body(data))


def call_of(body: Mapping[str, Any]) -> ChatCall:
    """A parsed body as a call. Raises Refusal with the field at fault."""
    schema, json_mode = _response_format(body)
    options = _tree(body, "stream_options")
    return ChatCall(
        request=Request(
            role="executor",
            messages=_messages(body),
            schema=schema,
            sample=_whole(body, "seed", 0),
            model=str(body.get("model") or ""),
            sampling=_sampling(body),
        ),
        stream=_flag(body, "stream"),
        stream_usage=_flag(options, "include_usage"),
        choices=_whole(body, "n", 1, least=1),
        stop=_stop(body),
        json_mode=json_mode,
        seeded=body.get("seed") is not None,
        logprobs=_logprobs(body),
    )


def require_json(content_type: str) -> None:
    """Raises Refusal for a body that is said to be anything else: such a one a browser sends for
    any page, without asking the server first."""
    if content_type.partition(";")[0].strip().casefold() != "application/json":
        raise Refusal("the body must be sent as Content-Type: application/json", status=415)


def parse_body(data: bytes) -> Mapping[str, Any]:
    """The object that a body is. Raises Refusal."""
    if len(data) > _MOST_VALUES and _has_too_many_values(data):
        raise Refusal(f"the body has more than {_MOST_VALUES:,} values in it", status=413)
    try:
        # Of bytes it would guess the encoding.
        tree: object = json.loads(data.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError):
        raise Refusal("the body is not JSON") from None
    if not isinstance(tree, dict):
        raise Refusal("the body is not an object")
    return cast("dict[str, Any]", tree)


def _has_too_many_values(data: bytes) -> bool:
    """Whether JSON in UTF-8 is more than a server can read without keeping all others waiting. Its
    commas and brackets outside of texts are counted, in a few passes that take no memory to speak
    of: each value is read into an object many times as long, and nothing else runs meanwhile."""
    if _count(data, b"[{,") <= _MOST_VALUES:
        return False
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if _count(plain, b'"') > 2 * _MOST_VALUES:
        return True
    return _count(b"".join(plain.split(b'"')[::2]), b"[{,") > _MOST_VALUES


def _count(data: bytes, characters: bytes) -> int:
    return len(data) - len(data.translate(None, characters))


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        raise Refusal("messages must be a list of at least one message", param="messages")
    return tuple(_message(each) for each in cast("list[object]", listed))


def _message(given: object) -> Message:
    if not isinstance(given, dict):
        raise Refusal("each message must be an object", param="messages")
    tree = cast("dict[str, object]", given)
    role = str(tree.get("role", "user"))
    if role not in _SPEAKERS:
        raise Refusal(f"unknown message role {role!r}", param="messages")
    return Message(_SPEAKERS[role], _content(tree.get("content")))


def _content(given: object) -> str:
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return "".join(map(_text_of, cast("list[object]", given)))
    raise Refusal("message content must be text", param="messages")


def _text_of(part: object) -> str:
    if not isinstance(part, dict):
        raise Refusal("each part of a message must be an object", param="messages")
    tree = cast("dict[str, object]", part)
    text, kind = tree.get("text"), tree.get("type", "text")
    if kind != "text" or not isinstance(text, str):
        what = f"a part of type {str(kind)[:40]!r}" if kind != "text" else "a part that has no text"
        raise Refusal(
            f"this model reads text alone, and a message has {what}: leave it out",
            param="messages",
        )
    return text


def _sampling(body: Mapping[str, Any]) -> Sampling:
    caps = ("max_completion_tokens", "max_tokens")
    named = [name for name in caps if body.get(name) is not None]
    return Sampling(
        temperature=read_number(body, "temperature"),
        top_p=read_number(body, "top_p"),
        max_tokens=_whole(body, named[0], 1, least=1) if named else None,
        extra={name: value for name, value in body.items() if name not in _READ},
    )


def read_number(body: Mapping[str, Any], name: str) -> float | None:
    """A field that is a finite number or absent. Raises Refusal."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refusal(f"{name} must be a number", param=name)
    return value


def _whole(body: Mapping[str, Any], name: str, default: int, least: int | None = None) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{name} must be a whole number", param=name)
    if least is not None and value < least:
        raise Refusal(f"{name} must be a whole number of at least {least}", param=name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(f"{name} must be true or false", param=name)
    return bool(value)


def _logprobs(body: Mapping[str, Any]) -> int | None:
    top = _whole(body, "top_logprobs", 0, least=0)
    if top > _MOST_ALTERNATIVES:
        raise Refusal(f"top_logprobs must be at most {_MOST_ALTERNATIVES}", param="top_logprobs")
    if top and not _flag(body, "logprobs"):
        raise Refusal("top_logprobs needs logprobs to be true", param="top_logprobs")
    return top if _flag(body, "logprobs") else None


def _tree(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{name} must be an object", param=name)
    return cast("dict[str, Any]", value or {})


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    listed: object = [value] if isinstance(value, str) else value or []
    texts = cast("list[object]", listed) if isinstance(listed, list) else [listed]
    stop = tuple(each for each in texts if isinstance(each, str))
    if len(stop) != len(texts):
        raise Refusal("stop must be a text or a list of texts", param="stop")
    return stop


def _response_format(body: Mapping[str, Any]) -> tuple[Schema | None, bool]:
    tree = _tree(body, "response_format")
    kind = tree.get("type", "text")
    if kind not in ("text", "json_object", "json_schema"):
        place = "response_format"
        raise Refusal(f"{place}.type must be text, json_object or json_schema", param=place)
    if kind != "json_schema":
        return None, kind == "json_object"
    named = tree.get("json_schema")
    outer = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    schema = outer.get("schema")
    if not isinstance(schema, dict):
        place = "response_format"
        raise Refusal(f"{place}.json_schema.schema must be an object", param=place)
    return Schema(str(outer.get("name", "")), cast("dict[str, object]", schema)), True


@dataclass(frozen=True, slots=True)
class Completion:
    """The bodies that answer one call: one for a whole reply, or one for each chunk of a stream.

    `created` is in Unix seconds. `index` says which of several choices a chunk belongs to.
    """

    id: str
    model: str
    created: int = 0

    def body(self, *choices: Reply, logprobs: Sequence[object] = ()) -> dict[str, Any]:
        """A whole reply of one or several choices, with what is to stand as their logprobs."""
        written = [
            {
                "index": index,
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": _FINISH[reply.finish],
                "logprobs": logprobs[index] if logprobs else None,
            }
            for index, reply in enumerate(choices)
        ]
        return {**self._head("chat.completion"), "choices": written, "usage": _usage(choices)}

    def first_chunk(self, index: int = 0) -> dict[str, Any]:
        """Who speaks, before any text."""
        return self._chunk({"role": "assistant", "content": ""}, index)

    def text_chunk(self, text: str, index: int = 0) -> dict[str, Any]:
        """The next piece of the text."""
        return self._chunk({"content": text}, index)

    def last_chunk(
        self, reply: Reply, index: int = 0, logprobs: object | None = None
    ) -> dict[str, Any]:
        """Why the text ends; all its logprobs, for they are told of a whole text."""
        return self._chunk({}, index, _FINISH[reply.finish], logprobs)

    def usage_chunk(self, *choices: Reply) -> dict[str, Any]:
        """What the choices cost together, where the caller wants to know."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(choices)}

    def _chunk(
        self,
        delta: dict[str, str],
        index: int,
        finish: str | None = None,
        logprobs: object | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(choices: Sequence[Reply]) -> dict[str, Any]:
    """Choices share their prompt, so it is counted once."""
    first = choices[0].usage
    written = sum(reply.usage.completion_tokens for reply in choices)
    usage = replace(first, completion_tokens=written)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
    }


def error_body(refusal: Refusal) -> dict[str, Any]:
    """The body of a refusal."""
    kind, param = refusal.kind, refusal.param or None
    return {"error": {"message": str(refusal), "type": kind, "param": param, "code": kind}}
