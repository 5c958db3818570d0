"""Gemini through Google's own library: what is sent, what is read, what each failure becomes."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.errors import (
    AuthRefused,
    CallTimeout,
    EndpointDown,
    LMError,
    ModelNotFound,
    RateLimited,
    ReplyWithheld,
    RequestRefused,
    ServerFault,
)
from tests.build.providers import (
    CALL,
    CONVERSATION,
    KEYS,
    SCHEMA,
    TOOL,
    Answer,
    Provider,
    Site,
    blocks,
    generates,
    google_refuses,
    google_streams,
    library,
    request,
)

SIGNATURE = base64.b64encode(b"signed").decode()


def camel(tree: Any) -> Any:
    """Google takes both spellings of a name, and its library sends some in each."""
    if isinstance(tree, list):
        return [camel(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    return {re.sub("_(.)", lambda m: m[1].upper(), k): camel(v) for k, v in tree.items()}


async def test_a_conversation_is_told_in_googles_words(site: Site, gemini: Provider) -> None:
    site.script(generates("De rien."))
    only = {"type": "function", "function": {"name": "find"}}
    more = {"stop": ["END"], "reasoning_effort": "low", "top_k": 5, "user": "u1"}
    more["generationConfig"] = {"mediaResolution": "MEDIA_RESOLUTION_LOW"}
    conversation = [*CONVERSATION[:-1], {"role": "user", "content": [
        {"type": "text", "text": "Thanks."},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
    ]}]  # fmt: skip
    told = await gemini.complete(
        messages=conversation, max_tokens=50, temperature=0.5, seed=7, tools=[TOOL],
        tool_choice=only, **more,
    )  # fmt: skip
    ChatCompletion.model_validate(told)
    assert site.sent[0].path.endswith("/models/gem-x:generateContent")
    parameters = TOOL["function"]["parameters"]  # type: ignore[index]
    declared = {"name": "find", "description": "Finds a parcel."}
    unsigned = base64.b64encode(b"skip_thought_signature_validator").decode()
    assert camel(site.body) == {
        "systemInstruction": {"parts": [
            {"text": "You serve a shop."}, {"text": "Answer in French."},
        ]},
        "contents": [
            {"role": "user", "parts": [
                {"text": "Where is this?"},
                {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
                {"fileData": {"fileUri": "https://shop.example/a.png", "mimeType": "image/*"}},
            ]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "find", "args": {"id": "7"}},
                 "thoughtSignature": unsigned},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "find", "response": {"result": "at the depot"}}},
                {"text": "Thanks."},
                {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
                {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}},
            ]},
        ],
        "generationConfig": {
            "temperature": 0.5, "seed": 7, "maxOutputTokens": 50, "topK": 5,
            "stopSequences": ["END"], "thinkingConfig": {"thinkingLevel": "LOW"},
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
        },
        "tools": [{"functionDeclarations": [{**declared, "parametersJsonSchema": parameters}]}],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["find"]},
        },
    }  # fmt: skip


async def test_a_schema_is_enforced_and_a_seed_is_sent(site: Site, gemini: Provider) -> None:
    site.script(generates('{"a": "b"}'))
    [reply] = await gemini.ask(request(schema=SCHEMA, temperature=0.5))
    assert reply.text == '{"a": "b"}' and reply.dropped == ()
    config = site.body["generationConfig"]
    assert config["responseJsonSchema"] == SCHEMA.body and config["seed"] == 0
    assert config["responseMimeType"] == "application/json"


async def test_a_field_that_the_model_refuses_is_left_out_from_then_on(
    site: Site, gemini: Provider
) -> None:
    plain = "JSON mode is not supported by models/gem-x"
    site.script(google_refuses(400, "INVALID_ARGUMENT", plain), generates("fine"))
    [reply] = await gemini.ask(request(schema=SCHEMA))
    assert reply.dropped == ("response_format",)
    assert "responseJsonSchema" not in site.body["generationConfig"]


async def test_thoughts_are_no_text_and_are_paid_for_as_replies_are(
    site: Site, gemini: Provider
) -> None:
    counts = {"thoughtsTokenCount": 80, "cachedContentTokenCount": 5}
    site.script(generates({"text": "hm", "thought": True}, "four", **counts))
    [reply] = await gemini.ask(request())
    assert reply.text == "four"
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens) == (7, 83, 5)


async def test_a_tool_call_keeps_its_signature(site: Site, gemini: Provider) -> None:
    called = {"functionCall": {"id": "t1", "name": "find", "args": {"id": "7"}}}
    site.script(generates({**called, "thoughtSignature": SIGNATURE}), generates("Here."))
    asked = [{"role": "user", "content": "Where is 7?"}]
    told = await gemini.complete(messages=asked, tools=[TOOL])
    assert ChatCompletion.model_validate(told).choices[0].finish_reason == "tool_calls"
    message = told["choices"][0]["message"]
    assert message["tool_calls"][0].items() >= CALL.items()
    result = {"role": "tool", "tool_call_id": "t1", "content": "here"}
    await gemini.complete(messages=[*asked, message, result], tools=[TOOL])
    assert site.body["contents"][1]["parts"][0]["thoughtSignature"] == SIGNATURE


async def test_an_embedding_is_asked_for_and_read(site: Site, gemini: Provider) -> None:
    types = library("google.genai.types")
    made = types.EmbedContentResponse(embeddings=[types.ContentEmbedding(values=[0.6, 0.8])])
    site.script(Answer(made.model_dump(mode="json", by_alias=True, exclude_none=True)))
    asked = Request(
        "encoder", (Message("user", "x"),), sampling=Sampling(max_tokens=0), embeds=True
    )
    [reply] = await gemini.ask(asked)
    assert reply.vector == (0.6, 0.8) and reply.estimated


INFO = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
WAIT = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
UNKNOWN = "models/gem-x is not found for API version v1beta"


@pytest.mark.parametrize(("answer", "kind", "said", "wait"), [
    (google_refuses(429, "RESOURCE_EXHAUSTED", "quota", WAIT), RateLimited, "quota", 34.5),
    (google_refuses(503, "UNAVAILABLE", "overloaded"), RateLimited, "overloaded", 0.0),
    (google_refuses(400, "INVALID_ARGUMENT", "key not valid", INFO), AuthRefused, "key", 0.0),
    (google_refuses(403, "PERMISSION_DENIED", "not yours"), AuthRefused, "not yours", 0.0),
    (google_refuses(404, "NOT_FOUND", UNKNOWN), ModelNotFound, "gem-x", 0.0),
    (google_refuses(400, "INVALID_ARGUMENT", "bad value"), RequestRefused, "bad value", 0.0),
    (google_refuses(500, "INTERNAL", "oops"), ServerFault, "oops", 0.0),
    (google_refuses(504, "DEADLINE_EXCEEDED", "late"), ServerFault, "late", 0.0),
    (Answer("<html>", 502), ServerFault, "502", 0.0),
    (Answer("<html>"), ServerFault, "not a chat completion", 0.0),
    (Answer({}, 307, {"Location": "http://127.0.0.1:1/"}), RequestRefused, "redirects", 0.0),
    (Answer(drops=True), ServerFault, "broke the connection", 0.0),
    (Answer(hangs=True), CallTimeout, "in time", 0.0),
    (blocks("PROHIBITED_CONTENT"), ReplyWithheld, "(prompt: PROHIBITED_CONTENT)", 0.0),
    (generates(finish="SAFETY"), ReplyWithheld, "withheld the reply (SAFETY)", 0.0),
    (generates(finish="RECITATION"), ReplyWithheld, "(RECITATION)", 0.0),
    (generates(finish="LANGUAGE"), ReplyWithheld, "(LANGUAGE)", 0.0),
    (generates(finish="IMAGE_SAFETY"), ReplyWithheld, "(IMAGE_SAFETY)", 0.0),
    (generates("hal", finish="OTHER"), ServerFault, "broke off the reply (OTHER)", 0.0),
    (generates(finish="MALFORMED_FUNCTION_CALL"), ServerFault, "(MALFORMED_FUNCTION_CALL)", 0.0),
    (generates(finish="UNEXPECTED_TOOL_CALL"), ServerFault, "(UNEXPECTED_TOOL_CALL)", 0.0),
])  # fmt: skip
async def test_each_failure_becomes_ours_and_none_shows_the_key(
    site: Site, gemini: Provider, answer: Answer, kind: type[LMError], said: str, wait: float
) -> None:
    site.script(answer, Answer({"models": [{"name": "models/gem-y"}]}))
    with pytest.raises(kind) as caught:
        await gemini.ask(request(), timeout=0.3)
    error = caught.value
    assert said in str(error) and error.retry_after == wait and error.hint
    assert KEYS["GEMINI_API_KEY"] not in str(error) + error.hint
    assert error.__context__ is None, "the library's own error knows the headers"
    assert (error.incident is Incident.UNAVAILABLE) is (answer.status == 503)
    assert len(site.sent) == 1 + (kind is ModelNotFound), "the library tries nothing again"
    if kind is ModelNotFound:
        assert "gem-y" in error.hint


async def test_an_address_that_nothing_answers_at_is_named(site: Site, gemini: Provider) -> None:
    site.url = "http://127.0.0.1:9"
    with pytest.raises(EndpointDown, match=r"nothing answers at http://127\.0\.0\.1:9"):
        await gemini.ask(request())


async def test_a_long_reply_is_marked_as_cut(site: Site, gemini: Provider) -> None:
    site.script(generates("and so", finish="MAX_TOKENS"))
    [reply] = await gemini.ask(request())
    assert reply.finish == "length"


async def test_a_stream_becomes_chunks_of_text_and_of_tool_calls(
    site: Site, gemini: Provider
) -> None:
    calls: list[Any] = [
        {"functionCall": {"name": "find", "args": {"id": word}}} for word in ("7", "8")
    ]
    site.script(google_streams(["a", {"text": "hm", "thought": True}], ["b"], calls[:1], calls[1:]))
    told = await gemini.streamed(messages=CONVERSATION, stream_options={"include_usage": True})
    chunks = [ChatCompletionChunk.model_validate(each) for each in told]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "ab"
    made = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in made] == [0, 1] and len({call.id for call in made}) == 2
    *_, last, usage = chunks
    assert last.choices[0].finish_reason == "tool_calls"
    assert usage.usage is not None and usage.usage.total_tokens == 10
    assert site.sent[0].path.endswith(":streamGenerateContent")


async def test_a_stream_that_breaks_off_is_a_failure(site: Site, gemini: Provider) -> None:
    whole = google_streams(["a"], ["b"])
    unended = replace(whole, events=lambda: whole.events()[:1])
    site.script(google_streams(["a"], drops=True), unended)
    for _ in range(2):
        with pytest.raises(ServerFault, match="broke the connection"):
            await gemini.streamed(messages=CONVERSATION)
