"""Claude through Anthropic's own library: what is sent, what is read, what each failure becomes."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from promptcodebook import errors
from promptcodebook.base.incidents import Incident, no_tally
from promptcodebook.config import Budget
from promptcodebook.lm.budget import Attempted, BudgetGate, Ledger, PriceTable
from promptcodebook.lm.spec import parse_spec
from tests.build.providers import (
    BEGUN,
    CALL,
    CONVERSATION,
    KEYS,
    SCHEMA,
    TEXT,
    TOOL,
    Answer,
    Provider,
    Site,
    block,
    ended,
    refuses,
    request,
    says,
    streams,
)

HERE = Path(__file__).parent
MARK = {"cache_control": {"type": "ephemeral"}}


async def test_a_conversation_is_told_in_anthropics_words(site: Site, claude: Provider) -> None:
    site.script(says("Je vous en prie."))
    body = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    more = {"stop": "END", "user": "u1", "reasoning_effort": "low", "top_k": 5, "n": 1}
    told = await claude.complete(messages=CONVERSATION, max_tokens=50, **body, **more)
    ChatCompletion.model_validate(told)
    assert site.body == json.loads((HERE / "anthropic_body.json").read_text("utf-8"))
    assert site.sent[0].headers["anthropic-version"]


async def test_each_turn_of_a_conversation_begins_as_the_last_one_ended(
    site: Site, claude: Provider
) -> None:
    """Else the cache would hold nothing that the next turn can read."""
    chat: list[dict[str, Any]] = [{"role": "system", "content": "You serve a shop."}]
    seen: list[list[Any]] = []
    for turn in range(4):
        chat.append({"role": "user", "content": f"question {turn}"})
        site.script(says(f"answer {turn}"))
        await claude.complete(messages=chat)
        chat.append({"role": "assistant", "content": f"answer {turn}"})
        blocks = [b for message in site.body["messages"] for b in message["content"]]
        assert ("cache_control" in blocks[-1]) is (turn > 0)
        seen.append([{k: v for k, v in b.items() if k != "cache_control"} for b in blocks])
    for earlier, later in pairwise(seen):
        assert later[: len(earlier)] == earlier
    own = [{"type": "text", "text": "x", **MARK}]
    site.script(says("ok"))
    system = [*own, {"type": "text", "text": "y"}]
    await claude.complete(messages=[{"role": "system", "content": system}, *chat[1:]])
    assert site.body["system"] == system, "marks of the caller's own stay as they are"


async def test_a_schema_is_enforced_and_what_anthropic_lacks_is_left_out(
    site: Site, claude: Provider
) -> None:
    site.script(says('{"a": "b"}'))
    [reply] = await claude.ask(request(schema=SCHEMA, temperature=0.5))
    assert reply.text == '{"a": "b"}' and reply.dropped == ("seed",)
    shape = site.body["output_config"]["format"]
    assert shape["type"] == "json_schema" and shape["schema"]["additionalProperties"] is False
    assert "maxLength" not in shape["schema"]["properties"]["a"], "a bound that it refuses"
    assert site.body["temperature"] == 0.5 and "seed" not in site.body
    site.script(says("ok"))
    await claude.complete(messages=CONVERSATION, temperature=0, logit_bias={})
    assert site.body["temperature"] == 0 and "logit_bias" not in site.body, "0 says something"


async def test_a_field_that_the_model_refuses_is_left_out_from_then_on(
    site: Site, claude: Provider
) -> None:
    both = "`temperature` and `top_p` cannot both be specified for this model."
    plain = "output_config: structured outputs are not supported by this model"
    site.script(
        refuses(400, "invalid_request_error", both),
        refuses(400, "invalid_request_error", plain),
        says("fine"),
        says("again"),
    )
    asked = request(schema=SCHEMA, temperature=0.5, top_p=0.9)
    first, second = await claude.ask(asked, asked)
    assert first.dropped == second.dropped == ("response_format", "seed", "top_p")
    assert "output_config" not in site.body and site.body["temperature"] == 0.5
    assert len(site.sent) == 4


async def test_thoughts_are_counted_and_are_no_text(site: Site, claude: Provider) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    site.script(says(thought, "four", output_tokens=90))
    [reply] = await claude.ask(request(extra={"thinking": {"type": "adaptive"}}))
    assert (reply.text, reply.usage.completion_tokens) == ("four", 90)
    assert site.body["thinking"] == {"type": "adaptive"}


async def test_a_tool_call_comes_back_as_one_and_brings_the_thoughts_that_belong_to_it(
    site: Site, claude: Provider
) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    used = {"type": "tool_use", "id": "t1", "name": "find", "input": {"id": "7"}}
    site.script(says(thought, used, stop="tool_use"), says("It is here."))
    asked = [{"role": "user", "content": "Where is 7?"}]
    told = await claude.complete(messages=asked, tools=[TOOL])
    [choice] = ChatCompletion.model_validate(told).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    message = told["choices"][0]["message"]
    assert message["tool_calls"] == [CALL]
    result = {"role": "tool", "tool_call_id": "t1", "content": "here"}
    await claude.complete(messages=[*asked, message, result], tools=[TOOL])
    assert site.body["messages"][1]["content"] == [thought, used]


async def test_the_whole_prompt_is_counted_and_each_part_has_its_price(
    site: Site, claude: Provider
) -> None:
    """Anthropic counts what comes from its cache, and what goes into it, apart from the rest."""
    spec = "anthropic/claude-opus-5-5"
    counts = {"cache_read_input_tokens": 8_000, "cache_creation_input_tokens": 1_000}
    site.script(says("ok", input_tokens=1_000, output_tokens=100, **counts))
    ledger = Ledger()
    gate = BudgetGate(Budget(), PriceTable(), ledger)
    provider = Provider(site, spec)
    asked = request("x" * 40_000)
    async with provider.endpoint(around=lambda lm: Attempted(lm, gate, no_tally)) as lm:
        reply = await lm(replace(asked, model=spec))
    usage = reply.usage
    assert (usage.prompt_tokens, usage.cached_prompt_tokens) == (10_000, 8_000)
    price = PriceTable().price(spec)
    assert price is not None and price.cached is not None and price.cache_write is not None
    assert price.cached < price.prompt < price.cache_write
    parts = 1_000 * price.prompt + 8_000 * price.cached + 1_000 * price.cache_write
    assert usage.cost == pytest.approx((parts + 100 * price.completion) / 1e6)
    assert ledger.total.cost == usage.cost
    assert PriceTable().bound(spec, 10_000, 100) == pytest.approx(
        (10_000 * price.cache_write + 100 * price.completion) / 1e6
    ), "a budget allows for the most"


def ends_in(reason: str) -> Answer:
    body = cast("Callable[[], dict[str, Any]]", says("hal").body)
    return Answer(lambda: {**body(), "stop_reason": reason})


@pytest.mark.parametrize(("answer", "kind", "text", "wait"), [
    (refuses(529, "overloaded_error", "Overloaded"), errors.RateLimited, "Overloaded", 0.0),
    (refuses(429, "rate_limit_error", "hm", **{"retry-after": "7"}), errors.RateLimited, "hm", 7),
    (refuses(401, "authentication_error", "invalid x-api-key"), errors.AuthRefused, "invalid", 0.0),
    (refuses(403, "permission_error", "not yours"), errors.AuthRefused, "not yours", 0.0),
    (refuses(404, "not_found_error", "model: claude-x"), errors.ModelNotFound, "claude-x", 0.0),
    (refuses(400, "invalid_request_error", "messages: odd"), errors.RequestRefused, "odd", 0),
    (refuses(400, "invalid_request_error", "Your credit balance is too low to access"),
     errors.NoCredit, "no credit", 0.0),
    (refuses(413, "request_too_large", "too large"), errors.RequestRefused, "too large", 0.0),
    (refuses(500, "api_error", "oops"), errors.ServerFault, "oops", 0.0),
    (says("hal", stop="pause_turn"), errors.ServerFault, "broke off the reply (pause_turn)", 0.0),
    (ends_in("a_word_of_tomorrow"), errors.ServerFault, "(a_word_of_tomorrow)", 0.0),
    (Answer("<html>", 502), errors.ServerFault, "502", 0.0),
    (Answer("<html>"), errors.ServerFault, "not a chat completion", 0.0),
    (Answer({}, 307, {"Location": "http://127.0.0.1:1/"}), errors.RequestRefused, "redirects", 0.0),
    (Answer(drops=True), errors.ServerFault, "dropped the connection", 0.0),
    (Answer(hangs=True), errors.CallTimeout, "in time", 0.0),
    (says(stop="refusal"), errors.ReplyWithheld, "blocked the reply (refusal)", 0.0),
])  # fmt: skip
async def test_each_failure_becomes_ours_and_none_shows_the_key(
    site: Site, claude: Provider, answer: Answer, kind: type[errors.LMError], text: str, wait: float
) -> None:
    site.script(
        *[answer] * (5 if text == "odd" else 1),
        Answer({"data": [{"id": "claude-y", "type": "model"}], "has_more": False}),
    )
    with pytest.raises(kind) as caught:
        await claude.ask(request(), timeout=0.3)
    error = caught.value
    assert text in str(error) and error.retry_after == wait and error.hint
    assert KEYS["ANTHROPIC_API_KEY"] not in str(error) + error.hint
    assert error.__context__ is None, "the library's own error knows the headers"
    if answer.status == 529:
        assert error.incident is Incident.UNAVAILABLE
    if kind is errors.ModelNotFound:
        assert "claude-y" in error.hint
    if kind is errors.ReplyWithheld:
        assert error.usage.tokens == 10, "it was paid for"


async def test_an_address_that_nothing_answers_at_is_named(site: Site) -> None:
    provider = Provider(site, "anthropic/claude-x")
    site.url = "http://127.0.0.1:9"
    with pytest.raises(errors.EndpointDown, match=r"nothing answers at http://127\.0\.0\.1:9"):
        await provider.ask(request())


async def test_a_long_reply_is_marked_as_cut(site: Site, claude: Provider) -> None:
    site.script(says("and so", stop="max_tokens"))
    [reply] = await claude.ask(request())
    assert reply.finish == "length"


async def test_a_stream_becomes_chunks_of_text_and_of_tool_calls(
    site: Site, claude: Provider
) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    used = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    parts = [{"type": "input_json_delta", "partial_json": text} for text in ('{"id": ', '"7"}')]
    site.script(
        streams(
            BEGUN,
            *block(0, thinking, {"type": "thinking_delta", "thinking": "hm"}),
            *block(1, {**TEXT, "text": ""}, *({"type": "text_delta", "text": t} for t in "ab")),
            *block(2, used, *parts),
            *ended("tool_use"),
        )
    )
    told = await claude.streamed(messages=CONVERSATION, stream_options={"include_usage": True})
    chunks = [ChatCompletionChunk.model_validate(each) for each in told]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "ab"
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 0, 0] and calls[0].id == "t1"
    written = "".join(call.function.arguments or "" for call in calls if call.function)
    assert written == '{"id": "7"}'
    *_, last, usage = chunks
    assert last.choices[0].finish_reason == "tool_calls" and usage.usage is not None
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (20, 9)
    details = usage.usage.prompt_tokens_details
    assert details is not None and details.cached_tokens == 15
    assert site.body["stream"] is True


async def test_a_stream_that_breaks_off_is_a_failure(site: Site, claude: Provider) -> None:
    text = block(0, {**TEXT, "text": ""}, {"type": "text_delta", "text": "a"})
    site.script(streams(BEGUN, *text, drops=True), streams(BEGUN, *text))
    for _ in range(2):
        with pytest.raises(errors.ServerFault, match="dropped the connection"):
            await claude.streamed(messages=CONVERSATION)


def test_the_address_is_anthropics_own_where_no_variable_names_another() -> None:
    assert parse_spec("anthropic/claude-x", {}).base_url == "https://api.anthropic.com"
