"""Endpoints that refuse a field of ours in their own words: each is asked again in a form that it
takes, and what it took is kept."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from promptcodebook import errors
from promptcodebook.calls import Message, Reply, Request, Sampling, Schema
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import ApiKey, Credentials, parse_spec
from promptcodebook.method.policy import route_schema
from tests.build.cases import table
from tests.build.server import Server, fails, raw, says

Body = dict[str, Any]
SYSTEM, USER = Message("system", "be brief"), Message("user", "hello")
VERDICT = Schema("Verdict", {"type": "object", "properties": {"pattern": {"type": "string"}}})
CRITIC = Request("critic", (SYSTEM, USER), VERDICT, 5, sampling=Sampling(0.0, 1.0, 1024))
EXECUTOR = Request("executor", (SYSTEM, USER), None, 5, sampling=Sampling(0.6, 0.95, 4096))
LONG = Request("executor", (SYSTEM, Message("user", "word " * 400)), sampling=EXECUTOR.sampling)
ENCODER = Request("encoder", (SYSTEM, USER), route_schema(2, 4), sampling=Sampling(0.0, 1.0, 1024))


async def send(
    server: Server,
    refuses: Callable[[Body], object],
    words: str,
    *asked: Request,
    status: int = 400,
    param: str = "",
    **options: Any,
) -> list[Reply]:
    """The replies of a server that refuses bodies in these words."""

    async def picky(request: Any, body: Body) -> Any:
        step = fails(status, words, param=param) if refuses(body) else says("fine")
        return await step(request, body)

    server.default = picky
    spec = parse_spec(server.spec, {})
    async with Endpoint(spec, Credentials(ApiKey("PCO_API_KEY", "sk-1")), **options) as lm:
        return [await lm(each) for each in asked]


def form(body: Body) -> str:
    return body.get("response_format", {}).get("type", "")


def schema(body: Body) -> str:
    return json.dumps(body["response_format"]["json_schema"]["schema"])


@pytest.mark.parametrize(("words", "refused", "left", "status"), table(__file__, "refused_schemas"))
async def test_a_schema_that_is_not_taken_goes_into_the_prompt(
    server: Server, words: str, refused: tuple[str, ...], left: str, status: int
):
    first, second = await send(
        server, lambda body: form(body) in refused, words, CRITIC, CRITIC, status=status
    )
    assert first.dropped == second.dropped == ("response_format",)
    assert server.calls == 2 + len(refused), "learned once"
    *_, last = server.bodies
    assert form(last) == left and last["temperature"] == 0.0 and last["top_p"] == 1.0
    assert "JSON" in last["messages"][-1]["content"]
    assert json.dumps(VERDICT.body, separators=(",", ":")) in last["messages"][-1]["content"]


@pytest.mark.parametrize(("words", "keyword"), table(__file__, "refused_bounds"))
async def test_a_schema_loses_its_bounds_before_it_is_given_up(
    server: Server, words: str, keyword: str
):
    def refuses(body: Body) -> bool:
        return keyword in json.dumps(body.get("response_format"))

    replies = await send(server, refuses, words, ENCODER, ENCODER)
    assert [each.dropped for each in replies] == [(), ()]
    assert "uniqueItems" not in schema(server.bodies[-1]) and "integer" in schema(server.bodies[-1])
    assert ("minItems" in schema(server.bodies[-1])) == (keyword == "uniqueItems")
    assert server.calls <= 4


async def test_a_property_with_the_name_of_a_keyword_stays(server: Server):
    shape = Schema("Rule", {**VERDICT.body, "minProperties": 1})
    asked = Request("critic", (USER,), shape)
    await send(server, lambda b: "minProperties" in str(b), "failed to parse grammar", asked)
    assert json.loads(schema(server.bodies[-1])) == VERDICT.body


@pytest.mark.parametrize(
    ("field", "words", "param"),
    table(__file__, "a_field_is_left_out_however_its_refusal_is_worded"),
)
async def test_a_field_is_left_out_however_its_refusal_is_worded(
    server: Server, field: str, words: str, param: str
):
    asked = Request("critic", (SYSTEM, USER), None, 5, sampling=Sampling(0.3, 1.0, 64))
    replies = await send(server, lambda body: field in body, words, asked, asked, param=param)
    assert [each.dropped for each in replies] == [(field,)] * 2 and server.calls == 3
    assert server.bodies[0].keys() - server.bodies[-1].keys() == {field}


async def test_a_refused_value_is_no_refused_field(server: Server):
    """A server that takes no temperature of 0 still gets the executor's."""
    replies = await send(
        server,
        lambda body: body.get("temperature") == 0.0,
        "temperature must be positive",
        CRITIC,
        EXECUTOR,
        CRITIC,
    )
    assert [each.dropped for each in replies] == [("temperature",), (), ("temperature",)]
    assert server.bodies[2]["temperature"] == 0.6 and server.calls == 4


@pytest.mark.parametrize("words", [
    "Unsupported parameter: 'temperature' is not supported with this model.",
    "`temperature` is deprecated", "Extra inputs are not permitted: temperature",
])  # fmt: skip
async def test_a_field_that_is_refused_as_such_is_refused_once(server: Server, words: str):
    await send(server, lambda body: "temperature" in body, words, CRITIC, EXECUTOR)
    assert server.calls == 3


@pytest.mark.parametrize(
    "words", table(__file__, "a_cap_beyond_the_context_becomes_what_is_left_of_it")
)
@pytest.mark.parametrize("limit", [2048, 4096])
async def test_a_cap_beyond_the_context_becomes_what_is_left_of_it(
    server: Server, words: str, limit: int
):
    def tokens(body: Body) -> int:
        return sum(len(m["content"]) for m in body["messages"]) // 3 + 20

    async def picky(request: Any, body: Body) -> Any:
        prompt, cap = tokens(body), body["max_tokens"]
        fits = prompt + cap <= limit
        dotted = f"{limit:,}".replace(",", ".")
        text = words.format(limit=limit, prompt=prompt, cap=cap, total=prompt + cap, dotted=dotted)
        refusal = fails(400, text, code="400")  # vLLM's code is the status
        return await (says("fine") if fits else refusal)(request, body)

    server.default = picky
    async with Endpoint(parse_spec(server.spec, {}), Credentials()) as lm:
        for asked in (EXECUTOR, LONG, EXECUTOR):
            assert (await lm(asked)).text == "fine"
    assert server.calls <= 5, "the limit is kept for prompts of any length"
    assert all(b["max_tokens"] > limit - tokens(b) - 400 for b in server.bodies)


@pytest.mark.parametrize("words", table(__file__, "limits_of_replies"))
async def test_a_cap_beyond_a_limit_of_replies_becomes_that_limit(server: Server, words: str):
    await send(server, lambda body: body["max_tokens"] > 2048, words, EXECUTOR, CRITIC)
    assert [body["max_tokens"] for body in server.bodies] == [4096, 2048, 1024]


@pytest.mark.parametrize(("words", "least"), table(__file__, "limits_in_words"))
async def test_a_cap_becomes_less_however_its_limit_is_worded(
    server: Server, words: str, least: int
):
    await send(server, lambda body: body["max_tokens"] > 2048, words, EXECUTOR, EXECUTOR)
    assert [body["max_tokens"] for body in server.bodies] == [4096, least, least]


@pytest.mark.parametrize("status", [405, 413, 501])
async def test_a_status_of_something_else_is_a_refusal_where_it_names_a_field(
    server: Server, status: int
):
    words = "seed is not implemented"
    [reply] = await send(server, lambda b: "seed" in b, words, EXECUTOR, status=status)
    assert reply.dropped == ("seed",)


@pytest.mark.parametrize(("roles", "sent"), [("sau", "uau"), ("suu", "u"), ("suauu", "uau")])
async def test_a_folded_system_message_leaves_turns_that_alternate(
    server: Server, roles: str, sent: str
):
    names: Any = {"s": "system", "u": "user", "a": "assistant"}
    begun = Request("executor", tuple(Message(names[each], each) for each in roles))
    await send(server, lambda b: b["messages"][0]["role"] != "user", "roles must alternate", begun)
    turns = server.bodies[-1]["messages"]
    assert "".join(m["role"][0] for m in turns) == sent
    assert "".join(m["content"].replace("\n\n", "") for m in turns) == roles


@pytest.mark.parametrize("words", table(__file__, "system_messages"))
@pytest.mark.parametrize("status", [400, 500])
async def test_a_system_message_that_is_not_taken_begins_the_first_turn(
    server: Server, words: str, status: int
):
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    parts = {"role": "user", "content": [image]}
    shown = Request("executor", (SYSTEM, Message("user", "[image]", parts)))
    await send(
        server,
        lambda body: body["messages"][0]["role"] == "system",
        words,
        EXECUTOR,
        shown,
        status=status,
    )
    assert server.calls == 3
    assert server.bodies[1]["messages"] == [{"role": "user", "content": "be brief\n\nhello"}]
    text = {"type": "text", "text": "be brief"}
    assert server.bodies[2]["messages"] == [{"role": "user", "content": [text, image]}]


async def test_several_system_messages_are_one_at_the_beginning(server: Server):
    again = Message("system", "be kind")
    await send(server, lambda body: False, "", Request("executor", (SYSTEM, USER, again, USER)))
    assert [m["role"] for m in server.bodies[0]["messages"]] == ["system", "user", "user"]
    assert server.bodies[0]["messages"][0]["content"] == "be brief\n\nbe kind"


@pytest.mark.parametrize("field", ["response_format", "seed", "temperature", "top_p", "system"])
async def test_a_refusal_that_names_nothing_is_searched_for_its_field(server: Server, field: str):
    def refuses(body: Body) -> bool:
        return field in body or field == body["messages"][0]["role"]

    asked = EXECUTOR if field == "seed" else CRITIC
    replies = await send(server, refuses, "Bad request.", asked, asked, asked)
    assert [each.text for each in replies] == ["fine"] * 3 and server.calls <= 3 + 4
    if field in ("response_format", "seed", "top_p"):
        assert replies[-1].dropped == (field,), "what is innocent is still sent"


async def test_a_server_that_takes_messages_alone_can_be_used(server: Server):
    allowed = {"model", "messages", "max_tokens", "max_completion_tokens"}
    replies = await send(
        server, lambda body: body.keys() - allowed, "Bad request.", CRITIC, EXECUTOR, CRITIC
    )
    assert [each.text for each in replies] == ["fine"] * 3 and server.calls == 3 + 4


async def test_what_no_form_satisfies_is_searched_once_and_says_what_was_sent(server: Server):
    with pytest.raises(errors.RequestRefused) as caught:
        await send(server, lambda body: True, "Computer says no", CRITIC)
    message, hint = str(caught.value), caught.value.hint
    assert "answered 400: Computer says no" in message and "hello" not in message
    sent = "temperature 0, top_p 1, max_tokens 1024, messages (system, user), response_format"
    assert f"(sent: {sent} (json_schema))" in message, message
    assert server.calls == 5 and "sk-1" not in hint
    assert hint.startswith("curl http://") and "$PCO_API_KEY" in hint
    server.default = fails(400, "And no again")
    async with Endpoint(parse_spec(server.spec, {}), Credentials()) as lm:
        results = await asyncio.gather(*[lm(CRITIC)] * 1, return_exceptions=True)
        before = server.calls
        results += await asyncio.gather(lm(CRITIC), lm(EXECUTOR), return_exceptions=True)
    assert all(isinstance(each, errors.RequestRefused) for each in results)
    assert server.calls == before + 2, "the search is not repeated"


@pytest.mark.parametrize(("request_", "words", "typed"), [
    (CRITIC, "schemas cost extra", "--set roles.critic.extra.response_format=none"),
    (EXECUTOR, "temperature?", "--set roles.executor.temperature=none"),
    (EXECUTOR, "max_tokens?", "--set roles.executor.max_tokens=1024"),
    (CRITIC, "max_tokens?", "--set roles.critic.max_tokens=256"),
    (LONG, "The context length is 300 tokens, your prompt has 600", "shorten prompts"),
    (Request("executor", (USER,), sampling=Sampling(extra={"tools": [{}]})), "no tools here",
     "roles.executor.model"),
    (Request("executor", (USER,), sampling=Sampling(extra={"top_k": 3})), "top_k: extra input",
     "take top_k out of roles.executor.extra"),
])  # fmt: skip
async def test_an_error_names_what_to_type_for_the_field_that_is_refused(
    server: Server, request_: Request, words: str, typed: str
):
    with pytest.raises(errors.RequestRefused) as caught:
        await send(server, lambda body: True, words, request_)
    assert typed in caught.value.hint and "doctor" not in caught.value.hint
    assert words in str(caught.value) and server.calls <= 5


@pytest.mark.parametrize("field", [
    "stop", "n", "logprobs", "stream_options", "parallel_tool_calls", "reasoning_effort",
])  # fmt: skip
async def test_a_field_that_a_run_can_do_without_is_left_out(server: Server, field: str):
    asked = Request("executor", (USER,), sampling=Sampling(extra={field: 1, "tools": [{}]}))
    [reply] = await send(
        server, lambda body: field in body, f"Argument {field} is not for m", asked
    )
    assert reply.dropped == (field,) and server.bodies[-1]["tools"] == [{}]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
async def test_an_answer_that_is_about_no_form_is_not_searched(server: Server, status: int):
    with pytest.raises(errors.LMError):
        await send(server, lambda body: True, "temperature", CRITIC, status=status)
    assert server.calls == 1


async def test_a_form_that_was_not_accepted_is_not_kept(server: Server):
    """A refusal of this one prompt, in which a field is only mentioned."""
    with pytest.raises(errors.RequestRefused):
        await send(
            server,
            lambda body: "hello" in body["messages"][-1]["content"],
            "no talk of temperature",
            CRITIC,
        )
    lm = Endpoint(parse_spec(server.spec, {}), Credentials())
    fine = Request("critic", (Message("user", "bye"),), sampling=CRITIC.sampling)
    async with lm:
        for asked in (CRITIC, fine):
            results = await asyncio.gather(lm(asked), return_exceptions=True)
    assert isinstance(results[0], Reply) and server.bodies[-1]["temperature"] == 0.0


async def test_calls_at_once_learn_from_one_of_them(server: Server):

    async def picky(request: Any, body: Body) -> Any:
        step = (
            fails(400, "response_format is unavailable")
            if form(body) == "json_schema"
            else says("fine")
        )
        return await step(request, body)

    server.default = picky
    async with Endpoint(parse_spec(server.spec, {}), Credentials()) as lm:
        replies = await asyncio.gather(*(lm(CRITIC) for _ in range(8)))
    assert [each.text for each in replies] == ["fine"] * 8 and server.calls == 9


@pytest.mark.slow
async def test_calls_do_not_wait_for_a_first_one_that_takes_long(server: Server):
    async def slow(request: Any, body: Body) -> Any:
        await server.seen(8)
        return await says("fine")(request, body)

    server.script(slow)
    async with Endpoint(parse_spec(server.spec, {}), Credentials()) as lm:
        await asyncio.gather(*(lm(CRITIC) for _ in range(8)))


async def test_a_user_can_say_that_there_is_no_response_format(server: Server):
    sampling = Sampling(0.0, 1.0, 9, {"response_format": "none"})
    asked = Request("critic", (SYSTEM, USER), VERDICT, sampling=sampling)
    bare = Request("executor", (USER,), sampling=sampling)
    await send(server, lambda body: "response_format" in body, "what?", asked, bare)
    first, second = server.bodies
    assert '"pattern"' in first["messages"][1]["content"]
    assert second["messages"] == [{"role": "user", "content": "hello"}]


async def test_every_fault_that_a_list_points_at_is_left_out_at_once(
    server: Server, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    faults = [{"loc": ["body", n], "msg": "extra"} for n in ("seed", "top_p", "temperature")]
    server.script(raw(json.dumps({"detail": faults}).encode(), 422))
    async with Endpoint(parse_spec(server.spec, {}), Credentials()) as lm:
        assert (await lm(EXECUTOR)).dropped == ("seed", "temperature", "top_p")
    assert server.calls == 2 and "a different form" in caplog.text
