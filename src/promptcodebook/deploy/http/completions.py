"""The server side of the chat-completions wire: a request body in; completions, chunks, errors out.
It knows no web framework, and nothing of who answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from promptcodebook.base.text import parse_json, place_in
from promptcodebook.calls import Message, Reply, Request, Sampling, Schema

_B = TypeVar("_B", bound=BaseModel)
_SPEAKERS: Mapping[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "user",
    "function": "user",
    "assistant": "assistant",
}
_MOST_VALUES = 200_000  # They are read in some 50 ms; 16 MiB of empty lists take seconds.


@dataclass(eq=False)
class Refusal(Exception):
    """A request that gets an error body in place of a completion. `param` names the field at fault;
    `retry_after` is in seconds; `unpaid` = a model was asked and takes nothing for it."""

    message: str
    _: KW_ONLY
    status: int = 400
    kind: str = "invalid_request_error"
    param: str = ""
    retry_after: float | None = None
    unpaid: bool = False

    def __str__(self) -> str:
        return self.message


def apart(prompt: str, stage: str = "") -> tuple[str, dict[str, str]]:
    """The prompt of a stage, and what it says of each tool: a line that opens with "tool:NAME: " or
    "stage:NAME: " belongs there alone."""
    own, of_tools = list[str](), dict[str, str]()
    for line in prompt.split("\n"):
        place = place_in(line)
        kind, _, name = place.removesuffix(": ").partition(":")
        text = line.removeprefix(place)
        if kind == "tool":
            of_tools[name] = f"{of_tools[name]} {text}" if name in of_tools else text
        elif not place or name == stage:
            own.append(text)
    whole = "\n".join(own)
    return whole.strip() if of_tools else whole, of_tools


def descriptions(tools: Any) -> dict[str, str]:
    """What a request's tools say of themselves, by name."""
    found = dict[str, str]()
    for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
        with suppress(AttributeError, KeyError, TypeError):  # it is no function
            own = tool["function"]
            found[str(own["name"])] = str(own.get("description") or "")
    return found


def describe(tools: Any, of_tools: Mapping[str, str]) -> Any:
    """A request's tools, with what is said of each at the end of its description; names and
    parameters stay."""

    def described(tool: Any) -> Any:
        for name, own in descriptions([tool]).items():
            if name in of_tools:
                whole = "\n\n".join(filter(None, (own, of_tools[name])))
                return {**tool, "function": {**tool["function"], "description": whole}}
        return tool

    listed = cast("list[Any]", tools) if isinstance(tools, list) else []
    return list(map(described, listed)) if of_tools and listed else cast("Any", tools)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What a caller asks for. The wire names a model ('' = none named) and no role, so
    `request.role` is 'executor'. `stream_usage` = a last chunk with the usage; `json_mode` = some
    JSON object is wanted, without a schema; `seeded` = the body names a seed (`request.sample`)."""

    request: Request
    stream: bool = False
    stream_usage: bool = False
    stop: tuple[str, ...] = ()
    json_mode: bool = False
    seeded: bool = False


# Pydantic's own text refuses half of a surrogate pair, which models and their callers do send.
AnyText = InstanceOf[str]
_Number = Annotated[float | None, Field(strict=True, allow_inf_nan=False, description="a number")]
_Count = Annotated[int | None, Field(strict=True, description="a whole number")]
_Some = Annotated[int | None, Field(strict=True, ge=1, description="a whole number of at least 1")]
_Flag = Annotated[bool | None, Field(strict=True, description="true or false")]
_Object = Annotated[InstanceOf[dict[str, Any]] | None, Field(description="an object")]


class ChatRequest(BaseModel):
    """The fields of a call with a place of their own; all others become `Sampling.extra`."""

    model_config = ConfigDict(extra="allow")
    model: Any = None
    messages: list[InstanceOf[dict[str, Any]]] = Field(
        min_length=1, description="a list of at least one message, each an object"
    )
    temperature: _Number = None
    top_p: _Number = None
    max_completion_tokens: _Some = None
    max_tokens: _Some = None
    seed: _Count = None
    n: _Some = None
    stop: AnyText | list[AnyText] | None = Field(None, description="a string or a list of strings")
    stream: _Flag = None
    stream_options: _Object = None
    response_format: _Object = None


def call_of(tree: Mapping[str, Any]) -> ChatCall:
    """A parsed body as a call. Raises Refusal with the field at fault."""
    return to_call(read_fields(ChatRequest, tree))


def to_call(body: ChatRequest) -> ChatCall:
    """Raises Refusal with the field at fault."""
    if body.n not in (None, 1):
        raise Refusal("this server returns one choice per call: n must be 1", param="n")
    usage = (body.stream_options or {}).get("include_usage")
    if not isinstance(usage, bool | None):
        raise Refusal("include_usage must be true or false", param="include_usage")
    schema, json_mode = read_response_format(body.response_format or {})
    most = body.max_completion_tokens or body.max_tokens
    return ChatCall(
        request=Request(
            role="executor",
            messages=tuple(map(_message, body.messages)),
            schema=schema,
            sample=body.seed or 0,
            model=str(body.model or ""),
            sampling=Sampling(body.temperature, body.top_p, most, body.model_extra or {}),
        ),
        stream=bool(body.stream),
        stream_usage=bool(usage),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        json_mode=json_mode,
        seeded=body.seed is not None,
    )


def read_fields(kind: type[_B], tree: Mapping[str, Any]) -> _B:
    """A body's fields; each one's description says what it must be. Raises Refusal."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        field = str(error.errors(include_url=False, include_context=False)[0]["loc"][0])
    raise Refusal(f"{field} must be {kind.model_fields[field].description}", param=field)


def parse_body(data: bytes) -> Mapping[str, Any]:
    if len(data) > _MOST_VALUES and _has_too_many_values(data):
        raise Refusal(f"the body has more than {_MOST_VALUES:,} values", status=413)
    try:
        tree: object = parse_json(data)
    except ValueError:
        message = "the body is not JSON, is nested too deeply, or holds a number out of range"
        raise Refusal(message) from None
    if not isinstance(tree, dict):
        raise Refusal("the body is not an object")
    return cast("dict[str, Any]", tree)


def _has_too_many_values(data: bytes) -> bool:
    """Whether JSON is more than a server can read without keeping all others waiting: each value
    becomes an object many times as long. Its commas and brackets outside of texts are counted."""

    def count(data: bytes, characters: bytes) -> int:
        return len(data) - len(data.translate(None, characters))

    if count(data, b"[{,") <= _MOST_VALUES:
        return False
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if count(plain, b'"') > 2 * _MOST_VALUES:
        return True
    return count(b"".join(plain.split(b'"')[::2]), b"[{,") > _MOST_VALUES


def _message(tree: Mapping[str, Any]) -> Message:
    role, content = str(tree.get("role", "user")), tree.get("content")
    if role not in _SPEAKERS:
        raise Refusal(f"unknown message role {role!r}", param="messages")
    if not isinstance(content, str | list | None):
        raise Refusal("message content must be text", param="messages")
    if isinstance(content, list):
        content = "".join(map(_text_of, cast("list[object]", content)))
    return Message(_SPEAKERS[role], content or "")


def _text_of(part: object) -> str:
    if not isinstance(part, dict):
        raise Refusal("each part of a message must be an object", param="messages")
    tree = cast("dict[str, object]", part)
    text, kind = tree.get("text"), tree.get("type", "text")
    if kind == "text" and isinstance(text, str):
        return text
    what = f"a part of type {str(kind)[:40]!r}" if kind != "text" else "a part that has no text"
    message = f"this model reads only text, and a message has {what}: leave it out"
    raise Refusal(message, param="messages")


def read_response_format(tree: Mapping[str, Any]) -> tuple[Schema | None, bool]:
    """Its schema, if any, and whether a JSON object is wanted. Raises Refusal."""
    place, kind = "response_format", tree.get("type", "text")
    if kind not in ("text", "json_object", "json_schema"):
        raise Refusal(f"{place}.type must be text, json_object or json_schema", param=place)
    if kind != "json_schema":
        return None, kind == "json_object"
    named = tree.get("json_schema")
    outer = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    schema = outer.get("schema")
    if not isinstance(schema, dict):
        raise Refusal(f"{place}.json_schema.schema must be an object", param=place)
    return Schema(str(outer.get("name", "")), cast("dict[str, object]", schema)), True


@dataclass(frozen=True, slots=True)
class Completion:
    """The bodies that answer one call: one for a whole reply, or one for each chunk of a stream."""

    id: str
    model: str
    created: int = 0

    def body(self, *choices: Reply) -> dict[str, Any]:
        """Of whole replies. One that calls tools has no content, unless the model wrote some."""
        written = list[dict[str, Any]]()
        for index, reply in enumerate(choices):
            message: dict[str, Any] = {"role": "assistant", "content": reply.text}
            finish = reply.finish
            if calls := list(reply.tool_calls):
                finish, message = "tool_calls", {**message, "tool_calls": calls}
                message["content"] = reply.text or None
            choice = {"index": index, "message": message, "finish_reason": finish, "logprobs": None}
            written.append(choice)
        return {**self._head("chat.completion"), "choices": written, "usage": _usage(choices)}

    def chunk(
        self, delta: Mapping[str, str] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        """A piece of a reply. None is the first one, which has the role; the last one says why the
        text ends."""
        delta = {"role": "assistant", "content": ""} if delta is None else delta
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, reply: Reply) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage([reply])}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(choices: Sequence[Reply]) -> dict[str, Any]:
    """Choices share their prompt, so it is counted once."""
    written = sum(reply.usage.completion_tokens for reply in choices)
    usage = replace(choices[0].usage, completion_tokens=written)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
    }


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(BaseModel):
    error: ErrorDetail


def error_body(refusal: Refusal) -> dict[str, Any]:
    kind, param = refusal.kind, refusal.param or None
    fault = ErrorDetail(message=refusal.message, type=kind, param=param, code=kind)
    return Error(error=fault).model_dump()
