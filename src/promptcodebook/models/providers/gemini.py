"""Gemini: chat completions as Google's generateContent, and back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from promptcodebook.models.providers import library

_UNSIGNED = b"skip_thought_signature_validator"
"""What Google has one send with a call that came without its signature."""
_SECONDS = re.compile(r"\d+(?:\.\d+)?(?=s$)")


@dataclass(frozen=True, slots=True)
class _Client:
    aio: Any
    session: aiohttp.ClientSession

    @property
    def models(self) -> Any:
        return self.aio.models


class Gemini(library.ProviderLibrary):
    module, extra = "google.genai", "gemini"

    def open_client(self) -> Any:
        sdk = self.library
        options = sdk.types.HttpOptions(
            base_url=self.address,
            timeout=int(self.timeout * 1000),
            headers=self.headers,
            retry_options=sdk.types.HttpRetryOptions(attempts=1),
            # Its own sessions make aiohttp warn of how they are made.
            aiohttp_client=aiohttp.ClientSession(
                trust_env=True, cookie_jar=aiohttp.DummyCookieJar()
            ),
            # A redirect would take the key to another host.
            async_client_args={"allow_redirects": False},
        )
        client = sdk.Client(api_key=self.key, vertexai=False, http_options=options)
        return _Client(client.aio, options.aiohttp_client)

    async def close_client(self, client: Any) -> None:
        await client.session.close()

    async def complete(self, client: Any, asked: library.JsonDict) -> library.JsonDict:
        answer = await client.models.generate_content(**asked)
        text, thoughts, calls = _written(answer, 0)
        if (ending := _ending(answer)) is None:
            raise ValueError("it has neither a candidate nor a reason for having none")
        finish, reason = ending
        if finish in ("stop", None) and calls:
            finish = "tool_calls"
        own = library.head_of(answer.response_id or "", self.model)
        said, usage = library.said_of(text, thoughts, calls), _usage(answer.usage_metadata)
        return library.completion_of(own, said, finish, reason, usage)

    async def stream(
        self, client: Any, asked: library.JsonDict
    ) -> AsyncGenerator[library.JsonDict, None]:
        own, usage, begun = library.head_of("", self.model), None, 0
        finish, reason = None, ""
        async for answer in await client.models.generate_content_stream(**asked):
            text, thoughts, calls = _written(answer, begun)
            delta: library.JsonDict = {"content": text} if text else {}
            if thoughts:
                delta["reasoning_content"] = thoughts
            if calls:
                delta["tool_calls"] = [{"index": begun + n, **c} for n, c in enumerate(calls)]
                begun += len(calls)
            finish, reason = _ending(answer) or (finish, reason)
            usage = answer.usage_metadata or usage
            yield library.chunk_of(own, {"role": "assistant", **delta})
        if finish == "stop" and begun:
            finish = "tool_calls"
        yield library.chunk_of(own, {}, finish, reason)
        yield library.usage_chunk_of(own, _usage(usage))

    async def embed(self, client: Any, body: library.JsonDict) -> library.JsonDict:
        answer = await client.models.embed_content(model=self.model, contents=body["input"])
        return {"data": [{"embedding": each.values} for each in answer.embeddings]}

    def refusal(self, error: Exception) -> library.RefusedCall | None:
        if not isinstance(error, self.library.errors.APIError):
            return None
        failed: Any = error
        told = library.tree_of(library.tree_of(failed.details).get("error"))
        details, status = (
            [library.tree_of(each) for each in told.get("details") or ()],
            int(failed.code),
        )
        # A wrong key is answered with 400.
        if any(each.get("reason") == "API_KEY_INVALID" for each in details):
            status = 401
        waits = [_SECONDS.search(str(each.get("retryDelay", ""))) for each in details]
        wait = next((found[0] for found in waits if found), None)
        kind = str(told.get("status") or failed.status or "")
        code = "model_not_found" if status == 404 and "models/" in str(failed.message) else ""
        said = str(failed.message or kind or "nothing more")
        headers = {} if wait is None else {"Retry-After": wait}
        return status, library.fault(said, kind=kind, code=code), headers

    async def names(self, client: Any) -> Sequence[str]:
        listed = await client.models.list(config={"page_size": 1000})
        return [(model.name or "").removeprefix("models/") async for model in listed]

    async def count(self, client: Any, text: str) -> int:
        return (await client.models.count_tokens(model=self.model, contents=text)).total_tokens

    def request(self, body: library.JsonDict) -> library.JsonDict:
        """The keywords of the client's `generate_content`."""
        system, contents = _conversation(body["messages"])
        dialect = library.dialect("gemini")
        same = dialect["same"]
        config: library.JsonDict = {
            word: body[name] for name, word in same.items() if body.get(name) is not None
        }
        if system:
            config["system_instruction"] = {"parts": system}
        if stops := library.stops_of(body):
            config["stop_sequences"] = stops
        tools: list[library.JsonDict] = body.get("tools") or []
        if tools:
            declared = [_declaration(each) for each in tools if each.get("type") == "function"]
            own = [each for each in tools if each.get("type") != "function"]
            config["tools"] = [*([{"function_declarations": declared}] if declared else []), *own]
        if choice := body.get("tool_choice"):
            calling: library.JsonDict = {"mode": dialect["choices"].get(str(choice), "ANY")}
            if only := library.tree_of(library.tree_of(choice).get("function")).get("name"):
                calling["allowed_function_names"] = [only]
            config["tool_config"] = {"function_calling_config": calling}
        shape: library.JsonDict = body.get("response_format") or {}
        if shape.get("type") in ("json_schema", "json_object"):
            config["response_mime_type"] = "application/json"
        if shape.get("type") == "json_schema":
            config["response_json_schema"] = shape["json_schema"]["schema"]
        if effort := body.get("reasoning_effort"):
            config["thinking_config"] = {"thinking_level": effort}
        others = {k: v for k, v in body.items() if k not in {*dialect["ours"], *same} and v}
        if others:  # in Google's own words, which the library does not look at
            config["http_options"] = {"extra_body": others}
        # Of a plain dict the library would not translate what lies deeper.
        made = self.library.types.GenerateContentConfig.model_validate(config)
        return {"model": self.model, "contents": contents, "config": made}


def _conversation(
    messages: Sequence[library.JsonDict],
) -> tuple[list[library.JsonDict], list[library.JsonDict]]:
    system: list[library.JsonDict] = []
    turns: list[library.JsonDict] = []
    names: dict[str, str] = {}
    for message in messages:
        role, parts = message["role"], [_part(part) for part in library.parts_of(message)]
        match role:
            case "system" | "developer":
                system += parts
                continue
            case "tool" | "function":
                call_id = str(message.get("tool_call_id", ""))
                said = {"result": "".join(part.get("text", "") for part in parts)}
                name = message.get("name") or names.get(call_id, call_id)
                parts = [{"function_response": {"name": name, "response": said}}]
                role = "user"
            case "assistant":
                calls: list[library.JsonDict] = message.get("tool_calls") or []
                for call in calls:
                    names[call["id"]] = call["function"]["name"]
                    parts.append(_call_part(call))
                role = "model"
            case _:
                pass
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts})
    if not turns:  # at least one is wanted
        system, turns = [], [{"role": "user", "parts": system}]
    return system, turns


def _part(part: library.JsonDict) -> library.JsonDict:
    match part.get("type"):
        case "text":
            return {"text": part["text"]}
        case "image_url":
            return _media(part["image_url"]["url"], "image/*")
        case "file" if "file_data" in part.get("file", {}):
            return _media(part["file"]["file_data"], "application/pdf")
        case "input_audio":
            audio = part["input_audio"]
            return {"inline_data": {"mime_type": f"audio/{audio['format']}", "data": audio["data"]}}
        case _:
            return part  # Google's own


def _media(url: str, kind: str) -> library.JsonDict:
    if (inline := library.inline_of(url)) is None:
        return {"file_data": {"file_uri": url, "mime_type": kind}}
    return {"inline_data": {"mime_type": inline[0], "data": inline[1]}}


def _call_part(call: library.JsonDict) -> library.JsonDict:
    signed = library.tree_of(library.tree_of(call.get("extra_content")).get("google")).get(
        "thought_signature"
    )
    signature = base64.b64decode(signed) if signed else _UNSIGNED
    called = {"name": call["function"]["name"], "args": library.arguments_of(call)}
    return {"function_call": called, "thought_signature": signature}


def _declaration(tool: library.JsonDict) -> library.JsonDict:
    function = tool["function"]
    made = {"name": function["name"], "description": function.get("description") or ""}
    if schema := function.get("parameters"):
        made["parameters_json_schema"] = schema
    return made


def _written(answer: Any, begun: int) -> tuple[str, str, list[library.JsonDict]]:
    """Text, thoughts and tool calls; `begun` = how many calls came before."""
    text, thoughts = "", ""
    calls: list[library.JsonDict] = []
    content: Any = answer.candidates[0].content if answer.candidates else None
    for part in (content and content.parts) or ():
        if part.function_call is not None:
            called = part.function_call
            name = called.id or f"call_{begun + len(calls)}_{called.name}"
            call = library.call_of(name, called.name, json.dumps(called.args or {}))
            if part.thought_signature:  # to be sent back with the call's result
                signature = base64.b64encode(part.thought_signature).decode("ascii")
                call["extra_content"] = {"google": {"thought_signature": signature}}
            calls.append(call)
        elif part.thought:
            thoughts += part.text or ""
        else:
            text += part.text or ""
    return text, thoughts, calls


def _ending(answer: Any) -> tuple[str | None, str] | None:
    """OpenAI's word for why a reply ended (None: not said), and Google's own; None where nothing
    was answered."""
    blocked = answer.prompt_feedback and answer.prompt_feedback.block_reason
    if blocked:
        return "content_filter", f"prompt: {_word(blocked)}"
    if not answer.candidates:
        return None
    reason = _word(answer.candidates[0].finish_reason)
    finish = library.dialect("gemini")["finish"].get(reason, library.BROKEN_OFF)
    return finish if reason else None, reason


def _word(value: Any) -> str:
    return str(getattr(value, "value", value) or "")


def _usage(counts: Any) -> library.JsonDict | None:
    """Thoughts are paid for as replies are."""
    if counts is None:
        return None
    prompt = (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0)
    written = (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0)
    return library.usage_of(prompt, written, counts.cached_content_token_count or 0)
