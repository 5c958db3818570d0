"""OpenAI's Responses wire over chat completions: a request becomes their body, and their answer a
Response or the events of one. Nothing is stored, and no tool runs here.

Of a request, `input` may hold text, images, files, `function_call` and `function_call_output`.
`include` (but for log-probabilities), `metadata`, `truncation` and reasoning items have no effect;
`metadata` comes back. All other fields pass unchanged."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, InstanceOf

from promptcodebook.base.text import LENIENT_JSON, parse_json
from promptcodebook.deploy.http.completions import AnyText, Refusal, read_fields
from promptcodebook.deploy.serve.upstream import UpstreamAnswer
from promptcodebook.lm.wire import told_usage

_Tree = dict[str, Any]
_Object = Annotated[InstanceOf[dict[str, Any]] | None, Field(description="an object")]
_Objects = list[InstanceOf[dict[str, Any]]]
_STORED = "this server stores no responses: send the whole conversation as input, without "
_REFUSED = {
    "previous_response_id": _STORED + "previous_response_id",
    "conversation": _STORED + "conversation",
    "background": "this server answers while you wait: leave background out",
    "prompt": "this server stores no prompt templates: send instructions and input",
}
# What is nothing to a chat model.
_LEFT_OUT = {"stream_options", "max_tool_calls", "metadata", "truncation", *_REFUSED}
_LOGPROBS = "message.output_text.logprobs"
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesRequest(BaseModel):
    """OpenAI's Responses over a chat model: texts, images, function tools, streams. Nothing is
    stored. The model gets all fields that are not listed here as they came."""

    model: AnyText | None = Field(None, description="a text")
    input: AnyText | Annotated[_Objects, Field(min_length=1)] = Field(
        description="a string, or a list of at least one item, each an object"
    )
    instructions: AnyText | None = Field(None, description="a text")
    max_output_tokens: int | None = Field(
        None, strict=True, ge=1, description="a whole number of at least 1"
    )
    tools: _Objects | None = Field(None, description="a list of objects")
    tool_choice: AnyText | InstanceOf[dict[str, Any]] | None = Field(
        None, description="a string or an object"
    )
    include: list[Any] | None = Field(None, description="a list of strings")
    text: _Object = None
    reasoning: _Object = None
    store: Literal[False] | None = Field(None, description="false: this server stores no responses")
    stream: Any = None


def chat_body(given: Mapping[str, Any], cap: str) -> _Tree:
    """The body of chat completions that asks for the same. `cap` is the model's field for the
    length. Raises Refusal for what a chat model cannot do."""
    for name, why in _REFUSED.items():
        if given.get(name):
            raise Refusal(why, param=name)
    asked = read_fields(ResponsesRequest, given)
    # All else that is read here is put otherwise to a chat model.
    own = _LEFT_OUT | ResponsesRequest.model_fields.keys() - {"model"}
    body = {name: v for name, v in given.items() if name not in own and v is not None}
    body["messages"] = _messages(asked)
    if asked.max_output_tokens is not None:
        body[cap] = asked.max_output_tokens
    if asked.tools:
        body["tools"] = [_nested(tool, "tools") for tool in asked.tools]
    if isinstance(asked.tool_choice, dict):
        body["tool_choice"] = _nested(asked.tool_choice, "tool_choice")
    elif asked.tool_choice:
        body["tool_choice"] = asked.tool_choice
    if (form := (asked.text or {}).get("format")) is not None:
        body["response_format"] = _response_format(form)
    if verbosity := (asked.text or {}).get("verbosity"):
        body["verbosity"] = verbosity
    if effort := (asked.reasoning or {}).get("effort"):
        body["reasoning_effort"] = effort
    if body.get("top_logprobs") or _LOGPROBS in (asked.include or ()):
        body["logprobs"] = True
    if asked.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _nested(tree: _Tree, param: str) -> _Tree:
    """A function, or the choice of one, as chat completions have it."""
    if tree.get("type") != "function":
        message = f"{param} may name only functions: this server runs no tools of its own"
        raise Refusal(message, param=param)
    named = ("name", "description", "parameters", "strict")
    function = {name: tree[name] for name in named if tree.get(name) is not None}
    return {"type": "function", "function": function}


def _response_format(form: object) -> _Tree:
    tree = cast(_Tree, form) if isinstance(form, dict) else {}
    if (kind := tree.get("type")) not in ("text", "json_object", "json_schema"):
        message = "text.format.type must be text, json_object or json_schema"
        raise Refusal(message, param="text")
    rest = {name: value for name, value in tree.items() if name != "type"}
    return {"type": kind, **({"json_schema": rest} if kind == "json_schema" else {})}


def _messages(asked: ResponsesRequest) -> list[_Tree]:
    messages = list[_Tree]()
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        return [*messages, {"role": "user", "content": asked.input}]
    for item in asked.input:
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                message = "the role of a message must be user, assistant, system or developer"
                raise Refusal(message, param="input")
            # Not all chat models know the word.
            role = "system" if role == "developer" else role
            messages.append({"role": role, "content": _content(item.get("content"))})
        elif kind == "function_call":
            # Calls of one turn, and what was said before them, are one message to a chat model.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {name: _text(item, name) for name in ("name", "arguments")}
            call = {"id": _text(item, "call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            made = {"tool_call_id": _text(item, "call_id"), "content": _content(item.get("output"))}
            messages.append({"role": "tool", **made})
        elif kind != "reasoning":  # another server's, of which a chat model makes nothing
            message = f"an item of type {str(kind)[:40]!r} cannot be read by a chat model"
            raise Refusal(message, param="input")
    return messages


def _text(item: _Tree, name: str) -> str:
    if not isinstance(text := item.get(name), str):
        raise Refusal(f"{name} of an item must be a string", param="input")
    return text


def _content(content: object) -> str | list[_Tree]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal("content and output must be a string or a list of parts", param="input")
    parts = [_part(part) for part in cast("list[object]", content)]
    # A text alone: not all servers read parts.
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    return parts[0]["text"] if alone else parts


def _part(part: object) -> _Tree:
    tree = cast(_Tree, part) if isinstance(part, dict) else {}
    kind = tree.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": _text(tree, "text")}
    if kind == "input_image" and isinstance(tree.get("image_url"), str):
        detail = {"detail": tree["detail"]} if tree.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": tree["image_url"], **detail}}
    if kind == "input_file" and isinstance(tree.get("file_data"), str):
        named = ("filename", "file_data")
        return {"type": "file", "file": {name: tree[name] for name in named if tree.get(name)}}
    if kind in ("refusal", "input_audio"):
        return tree
    what = f"a part of type {str(kind)[:40]!r}"
    raise Refusal(f"{what} cannot be read by a chat model: send its content", param="input")


def _unreadable() -> Refusal:
    message = "the model's reply is not a chat completion"
    return Refusal(message, status=502, kind="upstream_error")


class ResponseBuilder:
    """One Response as it comes about from a chat model's answer. `number` makes its ids."""

    def __init__(self, given: Mapping[str, Any], number: str) -> None:
        self._given, self._number = given, number
        self._created = int(time.time())
        self._model, self._finish, self._usage = str(given.get("model") or ""), "", None
        self._items = list[_Tree]()
        self._calls = dict[int, int]()  # which item a tool call is
        self._said = -1  # which item the message is
        self._sequence = 0
        self._over = False

    def turned(self, answer: UpstreamAnswer) -> UpstreamAnswer:
        """The answer on this wire; an error is the same on both. Raises Refusal."""
        if answer.status != 200:
            return answer
        if self._given.get("stream"):
            kind, pieces = "text/event-stream; charset=utf-8", self._events(answer)
            return replace(answer, kind=kind, body=b"", pieces=pieces)
        self._hear(answer.body)
        if not self._over and not self._items:
            raise _unreadable()
        return replace(answer, kind="application/json", body=self._written(self._tree()))

    async def _events(self, answer: UpstreamAnswer) -> AsyncGenerator[bytes, None]:
        begun = self._tree("in_progress")
        yield self._event("created", response=begun) + self._event("in_progress", response=begun)
        try:
            if answer.pieces is None:
                yield self._hear(answer.body)
                self._over = True
            else:
                async with aclosing(answer.pieces) as pieces:
                    async for piece in pieces:
                        if events := b"".join(map(self._line, piece.splitlines())):
                            yield events
            if not self._over:
                raise Refusal("the model's reply broke off", kind="upstream_error")
        except Refusal as refusal:
            error = {"code": "server_error", "message": refusal.message}
            yield self._event("failed", response=self._tree("failed", error))
            return
        tree = self._tree()
        ends = b"".join(self._end(at, item) for at, item in enumerate(self._items))
        yield ends + self._event(tree["status"], response=tree)

    def _line(self, line: bytes) -> bytes:
        name, _, data = line.partition(b":")
        if name != b"data":
            return b""
        self._over = self._over or data.strip() == b"[DONE]"
        return b"" if data.strip() == b"[DONE]" else self._hear(data)

    def _hear(self, data: bytes) -> bytes:
        """The events of a chunk, or of a whole completion."""
        try:
            tree: Any = parse_json(data, LENIENT_JSON)
            if "choices" not in tree and tree.get("error"):
                message = str(tree["error"].get("message") or "the model failed")
                raise Refusal(message, status=502, kind="upstream_error")
            self._model = tree.get("model") or self._model
            self._usage = tree.get("usage") or self._usage
            events = b""
            for choice in tree["choices"]:
                if choice.get("index"):
                    continue  # of several, which this wire has no place for
                events += self._choice(choice, choice.get("delta") or choice.get("message") or {})
                if finish := choice.get("finish_reason"):
                    self._finish, self._over = finish, True
            return events
        except (ValueError, TypeError, LookupError, AttributeError):
            raise _unreadable() from None

    def _choice(self, choice: _Tree, delta: _Tree) -> bytes:
        events = b""
        if text := delta.get("content"):
            given: _Tree = choice.get("logprobs") or {}
            logprobs: list[Any] = given.get("content") or []
            events += self._say("output_text", "text", text, logprobs=logprobs)
        if text := delta.get("refusal"):
            events += self._say("refusal", "refusal", text)
        for place, call in enumerate(delta.get("tool_calls") or ()):
            events += self._call(call.get("index", place), call)
        return events

    def _say(self, kind: str, field: str, text: str, **more: list[Any]) -> bytes:
        """A piece of the message's text, or of what it refuses with."""
        events = b""
        if self._said < 0:
            message: _Tree = {"type": "message", "role": "assistant", "content": []}
            self._said, events = self._open("msg", message)
        at, item = self._said, self._items[self._said]
        kinds = [part["type"] for part in item["content"]]
        if kind not in kinds:
            kinds.append(kind)
            part: _Tree = {"type": kind, field: ""}
            if kind == "output_text":
                part |= {"annotations": [], "logprobs": []}
            item["content"].append(part)
            events += self._event("content_part.added", at, content_index=len(kinds) - 1, part=part)
        index = kinds.index(kind)
        part = item["content"][index]
        part[field] += text
        for name, values in more.items():
            part[name] += values
        return events + self._event(f"{kind}.delta", at, content_index=index, delta=text, **more)

    def _call(self, index: int, call: _Tree) -> bytes:
        """A piece of a tool call."""
        events = b""
        function: _Tree = call.get("function") or {}
        if index not in self._calls:
            known = call.get("id") or f"call_{self._number}_{index}"
            made = {"type": "function_call", "call_id": known, "arguments": ""}
            made |= {"name": function["name"]}
            self._calls[index], events = self._open("fc", made)
        at = self._calls[index]
        if text := function.get("arguments"):
            self._items[at]["arguments"] += text
            events += self._event("function_call_arguments.delta", at, delta=text)
        return events

    def _open(self, kind: str, item: _Tree) -> tuple[int, bytes]:
        at = len(self._items)
        self._items.append({"id": f"{kind}_{self._number}_{at}", "status": "in_progress", **item})
        return at, self._event("output_item.added", at, item=self._items[at])

    def _end(self, at: int, item: _Tree) -> bytes:
        """The events that say an item whole."""
        events = b""
        for index, part in enumerate(item.get("content", ())):
            field = "text" if part["type"] == "output_text" else "refusal"
            whole = {name: part[name] for name in (field, "logprobs") if name in part}
            events += self._event(f"{part['type']}.done", at, content_index=index, **whole)
            events += self._event("content_part.done", at, content_index=index, part=part)
        if item["type"] == "function_call":
            whole = {name: item[name] for name in ("name", "arguments")}
            events += self._event("function_call_arguments.done", at, **whole)
        return events + self._event("output_item.done", at, item=item)

    def _event(self, kind: str, at: int | None = None, **fields: Any) -> bytes:
        kind = f"response.{kind}"
        tree = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        if at is not None:
            tree["output_index"] = at
            if "item" not in fields:
                tree["item_id"] = self._items[at]["id"]
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), self._written(tree))

    def _written(self, tree: _Tree) -> bytes:
        return json.dumps(tree, separators=(",", ":")).encode("ascii")

    def _tree(self, status: str = "", error: _Tree | None = None) -> _Tree:
        given, cut = self._given, _CUT.get(self._finish)
        status = status or ("incomplete" if cut else "completed")
        if status != "in_progress":
            for item in self._items:
                item["status"] = "incomplete" if status == "failed" else status
        echoed = ("instructions", "max_output_tokens", "reasoning", "temperature", "top_p", "user")
        return {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": cut} if status == "incomplete" else None,
            "model": self._model,
            "output": self._items,
            "usage": self._tokens(),
            "store": False,
            "previous_response_id": None,
            "metadata": given.get("metadata") or {},
            "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice") or "auto",
            "tools": given.get("tools") or [],
            "truncation": "disabled",
            **{name: given.get(name) for name in echoed},
        }

    def _tokens(self) -> _Tree | None:
        """What the call took; None where the model does not say. Of a part that it does not say
        this wire has no word but 0."""
        if (usage := told_usage(self._usage)) is None:
            return None
        details: object = cast(_Tree, self._usage).get("completion_tokens_details")
        thought = cast(_Tree, details).get("reasoning_tokens") if isinstance(details, dict) else 0
        cached = {"cached_tokens": usage.cached_prompt_tokens, "cache_write_tokens": 0}
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": cached,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": thought or 0},
            "total_tokens": usage.tokens,
        }
