"""Claude: chat completions as Anthropic's Messages, and back. The ends of the constant system text
and of a conversation are marked for the prompt cache: the next turn pays a tenth for repetition."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from promptcodebook.models.providers import library

_LENGTH = 8192  # tokens of a reply where a request names no length, since Anthropic wants one
_MARK = {"type": "ephemeral"}


class Anthropic(library.ProviderLibrary):
    module = extra = "anthropic"

    def open_client(self) -> Any:
        sdk = self.library
        client = sdk.AsyncAnthropic(
            api_key=self.key,
            base_url=self.address,
            timeout=self.timeout,
            max_retries=0,
            default_headers=self.headers,
            # A redirect would take the key to another host.
            http_client=sdk.DefaultAsyncHttpxClient(follow_redirects=False),
        )
        client.auth_token = None  # a second key, from a variable that the spec does not name
        return client

    async def close_client(self, client: Any) -> None:
        await client.close()

    async def complete(self, client: Any, asked: library.JsonDict) -> library.JsonDict:
        message = await client.messages.create(**asked)
        text, thoughts = "", ""
        calls: list[library.JsonDict] = []
        kept: list[library.JsonDict] = []
        for block in message.content:
            match block.type:
                case "text":
                    text += block.text
                case "thinking" | "redacted_thinking":
                    thoughts += getattr(block, "thinking", "")
                    kept.append(block.model_dump(exclude_none=True))
                case "tool_use":
                    calls.append(_call(block, json.dumps(block.input)))
                case _:
                    pass  # what the provider's own tools did
        optional: library.JsonDict = {
            "tool_calls": calls,
            "reasoning_content": thoughts,
            # To be sent back with the results of the calls.
            "thinking_blocks": kept if calls else [],
        }
        more = {name: value for name, value in optional.items() if value}
        choice = {"message": {"role": "assistant", "content": text or None, **more}}
        ending = _ending(message.stop_reason or "end_turn")
        usage = _usage(message.usage, message.usage.output_tokens)
        head = self._head(message.id, "chat.completion")
        return {**head, "choices": [{"index": 0, **choice, **ending}], "usage": usage}

    async def stream(
        self, client: Any, asked: library.JsonDict
    ) -> AsyncGenerator[library.JsonDict, None]:
        head, counts, calls, reason = library.JsonDict(), None, -1, "end_turn"

        def chunk(delta: library.JsonDict, **ending: Any) -> library.JsonDict:
            choice = {"index": 0, "delta": delta, "finish_reason": None, **ending}
            return {**head, "choices": [choice]}

        events = await client.messages.create(**asked, stream=True)
        async with events:
            async for event in events:
                match event.type:
                    case "message_start":
                        head = self._head(event.message.id, "chat.completion.chunk")
                        counts = event.message.usage
                        yield chunk({"role": "assistant", "content": ""})
                    case "content_block_start" if event.content_block.type == "tool_use":
                        calls += 1
                        begun = {"index": calls, **_call(event.content_block, "")}
                        yield chunk({"tool_calls": [begun]})
                    case "content_block_delta":
                        if delta := _delta(event.delta, calls):
                            yield chunk(delta)
                    case "message_delta":
                        reason = event.delta.stop_reason or reason
                        yield chunk({}, **_ending(reason))
                        usage = _usage(counts, event.usage.output_tokens)
                        yield {**head, "choices": [], "usage": usage}
                    case _:
                        pass

    def _head(self, own_id: str, kind: str) -> library.JsonDict:
        named = {"id": f"chatcmpl-{own_id}", "created": int(time.time()), "model": self.model}
        return {**named, "object": kind}

    def refusal(self, error: Exception) -> library.RefusedCall | None:
        if not isinstance(error, self.library.APIStatusError):
            return None
        failed: Any = error
        told = library.tree_of(library.tree_of(failed.body).get("error"))
        message, kind = str(told.get("message") or failed.message), str(told.get("type") or "")
        code = "model_not_found" if kind == "not_found_error" else ""
        return (
            failed.status_code,
            library.fault(message, kind=kind, code=code),
            failed.response.headers,
        )

    async def names(self, client: Any) -> Sequence[str]:
        return [model.id async for model in client.models.list(limit=1000)]

    async def count(self, client: Any, text: str) -> int:
        messages = [{"role": "user", "content": text}]
        counted = await client.messages.count_tokens(model=self.model, messages=messages)
        return counted.input_tokens

    def request(self, body: library.JsonDict) -> library.JsonDict:
        """The keywords of the client's `messages.create`."""
        system, turns = _conversation(body["messages"])
        asked: library.JsonDict = {
            "model": self.model,
            "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens") or _LENGTH,
            "messages": turns,
        }
        if system:
            asked["system"] = system
        if stop := body.get("stop"):
            asked["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if tools := body.get("tools"):
            asked["tools"] = [_tool(each) for each in tools]
        if choice := _tool_choice(body):
            asked["tool_choice"] = choice
        shape: library.JsonDict = body.get("response_format") or {}
        if shape.get("type") == "json_schema":
            schema = self.library.transform_schema(shape["json_schema"]["schema"])
            asked["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if effort := body.get("reasoning_effort"):
            asked.setdefault("output_config", {})["effort"] = effort
        if user := body.get("user"):
            asked["metadata"] = {"user_id": user}
        # As they are, so that the provider says what it does not know; never as keywords, of which
        # some say where the request goes.
        ours = library.dialect("anthropic")["ours"]
        others = {k: v for k, v in body.items() if k not in ours and (v or k == "temperature")}
        others = {k: v for k, v in others.items() if v is not None}
        if type(body.get("n")) is int and body["n"] != 1:
            others["n"] = body["n"]
        return {**asked, "extra_body": others or None}


def _conversation(
    messages: Sequence[library.JsonDict],
) -> tuple[list[library.JsonDict], list[library.JsonDict]]:
    """System blocks, the first message's end marked for the cache, and turns, the last too."""
    system: list[library.JsonDict] = []
    turns: list[library.JsonDict] = []
    for message in messages:
        role: str = message["role"]
        blocks = [_block(part) for part in library.parts_of(message)]
        match role:
            case "system" | "developer":
                if blocks and not system:
                    _mark(blocks)
                system += blocks
                continue
            case "tool" | "function":
                result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", "")}
                role, blocks = "user", [{**result, "content": blocks}]
            case "assistant":
                calls: list[library.JsonDict] = message.get("tool_calls") or []
                thoughts: list[library.JsonDict] = message.get("thinking_blocks") or []
                blocks = [*thoughts, *blocks]
                for call in calls:
                    named = {"id": call["id"], "name": call["function"]["name"]}
                    blocks.append(
                        {"type": "tool_use", **named, "input": library.arguments_of(call)}
                    )
            case _:
                pass
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    if any(turn["role"] == "assistant" for turn in turns):
        _mark(turns[-1]["content"])
    if not turns:  # at least one is wanted
        system, turns = [], [{"role": "user", "content": system}]
    return system, turns


def _mark(blocks: list[library.JsonDict]) -> None:
    """Marks the last block, unless the caller has set marks of its own."""
    if blocks and not any("cache_control" in block for block in blocks):
        blocks[-1] = {**blocks[-1], "cache_control": _MARK}


def _block(part: library.JsonDict) -> library.JsonDict:
    """A part of a message; one that OpenAI does not know is Anthropic's own already."""
    match part.get("type"):
        case "image_url":
            return {"type": "image", "source": _source(part["image_url"]["url"])}
        case "file" if "file_data" in part.get("file", {}):
            return {"type": "document", "source": _source(part["file"]["file_data"])}
        case "input_audio":
            raise library.Declined("Claude reads text, images and PDF files, but not audio")
        case _:
            return part


def _source(url: str) -> library.JsonDict:
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return {"type": "url", "url": url}
    media_type = head[5:].removesuffix(";base64").partition(";")[0]
    return {"type": "base64", "media_type": media_type, "data": data}


def _tool(tool: library.JsonDict) -> library.JsonDict:
    if tool.get("type") != "function":
        return tool  # one that runs at the provider
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    about = {"description": function["description"]} if function.get("description") else {}
    return {"name": function["name"], **about, "input_schema": schema}


def _tool_choice(body: library.JsonDict) -> library.JsonDict | None:
    choice: Any = body.get("tool_choice")
    if only := library.tree_of(library.tree_of(choice).get("function")).get("name"):
        made: library.JsonDict = {"type": "tool", "name": only}
    elif choice in ("auto", "none", "required"):
        made = {"type": "any" if choice == "required" else choice}
    else:
        made = {"type": "auto"} if body.get("tools") else {}
    if body.get("parallel_tool_calls") is False and made.get("type") in ("auto", "any", "tool"):
        return {**made, "disable_parallel_tool_use": True}
    return made if choice else None


def _call(block: Any, arguments: str) -> library.JsonDict:
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _ending(reason: str) -> library.JsonDict:
    """OpenAI's word for why a reply ended, or one for a reply that is not whole; and Anthropic's
    own."""
    finish = library.dialect("anthropic")["finish"].get(reason, "error")
    return {"finish_reason": finish, "native_finish_reason": reason}


def _delta(delta: Any, calls: int) -> library.JsonDict | None:
    match delta.type:
        case "text_delta":
            return {"content": delta.text}
        case "thinking_delta":
            return {"reasoning_content": delta.thinking}
        case "input_json_delta":
            part = {"index": calls, "function": {"arguments": delta.partial_json}}
            return {"tool_calls": [part]}
        case _:
            return None


def _usage(counts: Any, completion: int) -> library.JsonDict:
    """Anthropic counts what was read from its cache, and written into it, apart."""
    read, written = counts.cache_read_input_tokens or 0, counts.cache_creation_input_tokens or 0
    prompt = counts.input_tokens + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
