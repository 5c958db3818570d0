"""A policy behind /v1/chat/completions: what goes up, what comes back, and what is told of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.deploy.http.admission import RequestLimits
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.serve.spending import find_record
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.policy.file import PolicyFile
from tests.build.clock import Clock, until
from tests.build.method import talkative
from tests.build.proxied import (
    CHAT,
    LATE,
    UPSTREAM_KEY,
    Setup,
    Up,
    by_words,
    deployed,
    limited,
    one_call,
    streams,
    three_call,
    up,
)
from tests.build.server import Step, drops, fails, pours, raw, refusing, says

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
PATIENCE_S = 60.0


async def outlasts(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Says nothing while the caller's time goes by."""
    Clock().skip(PATIENCE_S + 1.0)
    await asyncio.sleep(10 * PATIENCE_S)
    return web.Response()


async def test_a_request_gets_the_composed_prompt_and_goes_up_as_it_came() -> None:
    policy = one_call()
    prompt = await deployed(policy).aprompt(LATE)
    async with up(policy) as served:
        sent = {"model": "pco/tickets", "messages": CHAT, **CASES["fields"]}
        status, body, headers = await served.ask(json=sent)
        [passed] = served.upstream.bodies
        [told] = served.upstream.headers
    expected = [{"role": "system", "content": prompt}, *CHAT]
    assert passed == {**sent, "model": "m", "messages": expected, "max_tokens": 4096}
    assert told["Authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert status == 200 and body["choices"][0]["message"]["content"] == "ok"
    assert headers["x-pco-version"] == version_of(policy.text().encode())
    assert (headers["x-pco-route"], headers["x-pco-mode"]) == ("1,3", "one-call")
    assert headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(("options", "expected"), CASES["placements"])
async def test_the_prompt_is_behind_what_the_caller_always_says_or_where_it_is_wanted(
    options: dict[str, Any], expected: Any
) -> None:
    async with up(setup=Setup(options=options)) as served:
        prompt = (await served.ask("/v1/prompt", json={"input": LATE}))[1]["prompt"]
        await served.ask(json={"messages": [*CASES["own"], *CHAT]})
        await served.ask(json={"messages": CHAT})
        passed, alone = served.upstream.bodies
    wanted = json.loads(json.dumps([*expected, *CHAT]).replace("P", json.dumps(prompt)[1:-1]))
    assert passed["messages"] == wanted
    assert alone["messages"] == [{"role": "system", "content": prompt}, *CHAT]


@pytest.mark.parametrize(("sticky", "names"), [
    ("user", lambda who: {"json": {"user": who}}),
    ("header:X-Session", lambda who: {"json": {}, "headers": {"x-session": who}}),
])  # fmt: skip
async def test_a_conversation_that_is_named_keeps_its_prompt_and_shares_it_with_no_other_caller(
    sticky: str, names: Any
) -> None:
    setup = Setup(keys=("first-key", "other-key"), options={"sticky": sticky})

    async with up(by_words(), setup) as served:

        async def route(text: str, who: str, key: str = "first-key") -> tuple[str, str]:
            sent: Any = names(who)
            sent["json"] |= {"messages": [{"role": "user", "content": text}]}
            sent.setdefault("headers", {})["Authorization"] = f"Bearer {key}"
            status, _, headers = await served.ask(**sent)
            assert status == 200
            return headers["x-pco-route"], headers["x-pco-cache"]

        alone = [(await route(text, ""))[0] for text in CASES["topics"]]
        other = next(n for n, route in enumerate(alone) if route != alone[0])
        assert await route(CASES["topics"][0], "anna") == (alone[0], "input")
        assert await route(CASES["topics"][other], "anna") == (alone[0], "conversation")
        assert await route(CASES["topics"][other], "ben") == (alone[other], "input")
        assert await route(CASES["topics"][other], "anna", "other-key") == (alone[other], "no")


async def test_images_and_tool_turns_pass_and_the_last_user_turns_text_is_the_input() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": LATE}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing found"},
    ]
    async with up() as served:
        _, alone, _ = await served.ask("/v1/prompt", json={"input": LATE})
        await served.ask(json={"messages": messages})
        [passed] = served.upstream.bodies
    assert passed["messages"] == [{"role": "system", "content": alone["prompt"]}, *messages]


async def test_what_a_policy_has_learned_of_a_tool_goes_into_its_description() -> None:
    tools = [{"type": "function", "function": {"name": n, "description": "It."}} for n in "ab"]
    async with up(one_call(base_prompt="Be kind.\ntool:a: Name the day.")) as served:
        for more in ({"tools": tools}, {}):
            await served.ask(json={"messages": [{"role": "user", "content": LATE}], **more})
        first, second = served.upstream.bodies
    described = {"name": "a", "description": "It.\n\nName the day."}
    assert first["tools"] == [{"type": "function", "function": described}, tools[1]]
    assert first["messages"] == second["messages"] and "tools" not in second
    assert first["messages"][0]["content"].startswith("Be kind.\n")
    assert "tool:" not in first["messages"][0]["content"]


@pytest.mark.parametrize(
    ("options", "read"),
    [({"conversation": True}, f"user: {LATE}\n\nassistant: Since when?\n\nuser: May"), ({}, "May")],
)
async def test_the_whole_conversation_is_the_input_where_that_is_asked_for_else_the_last_turn(
    tmp_path: Path, options: dict[str, Any], read: str
) -> None:
    setup = Setup(options={**options, "texts": True}, records=tmp_path / "requests.sqlite")
    turns = [("system", "Be kind."), ("user", LATE), ("assistant", "Since when?"), ("user", "May")]
    messages = [{"role": role, "content": text} for role, text in turns]
    async with up(setup=setup) as served:
        _, _, headers = await served.ask(json={"messages": messages})
    record = find_record(tmp_path / "requests.sqlite", headers["x-request-id"])
    assert record.input == read


FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
MEASURED = {
    "temperature": 0.0, "max_tokens": 12, "response_format": FORM, "stop": ["END"], "top_k": 5,
}  # fmt: skip


def measured(**sampling: Any) -> PolicyFile:
    """A policy whose verdict was measured with these fields."""
    extra = {name: MEASURED[name] for name in ("response_format", "stop", "top_k")}
    executor = {"temperature": 0.0, "max_tokens": 12, "extra": extra, **sampling}
    return one_call(roles={"executor": executor})


def sent_up(served: Up, at: int = -1) -> dict[str, Any]:
    body = served.upstream.bodies[at]
    return {name: value for name, value in body.items() if name not in ("messages", "model")}


@pytest.mark.parametrize("given", [
    {}, {"temperature": 0.7}, {"temperature": 1, "top_p": 0.5}, {"max_tokens": 99},
    {"response_format": {"type": "text"}}, {"stop": "###"}, {"stop": []}, {"top_k": 1},
    {"temperature": None, "max_tokens": None}, {"stream": False, "user": "u"},
])  # fmt: skip
async def test_what_was_measured_is_sent_unless_the_caller_says_otherwise(
    given: dict[str, Any],
) -> None:
    async with up(measured()) as served:
        await served.ask(json={"messages": CHAT, **given})
        fields = {name: value for name, value in given.items() if value is not None}
        assert sent_up(served) == {**MEASURED, **fields}


async def test_lengths_and_other_wires_have_the_measured_fields_too() -> None:
    rest = {name: value for name, value in MEASURED.items() if name != "max_tokens"}
    setup = Setup(cap="max_completion_tokens")
    async with up(measured(), setup) as served, served.client() as client:
        await client.chat.completions.create(model="pco/tickets", messages=CHAT)
        assert sent_up(served) == {**rest, "max_completion_tokens": 12}
        await client.chat.completions.create(model="pco/tickets", messages=CHAT, max_tokens=7)
        assert sent_up(served) == {**rest, "max_tokens": 7}, "one length, and it is the caller's"
        await client.responses.create(model="pco/tickets", input="Hi", temperature=0.4)
        assert sent_up(served) == {**rest, "max_completion_tokens": 12, "temperature": 0.4}
        await client.responses.create(
            model="pco/tickets", input="Hi", max_output_tokens=9, text={"format": {"type": "text"}}
        )
        text = {"type": "text"}
        assert sent_up(served) == {**rest, "max_completion_tokens": 9, "response_format": text}


async def test_answers_that_were_measured_one_by_one_are_greedy() -> None:
    async with up(measured(temperature=0.8, top_p=0.9)) as served:
        await served.ask(json={"messages": CHAT})
        assert sent_up(served) == MEASURED, "a verdict of one answer asks at temperature 0"
    drawn = measured(temperature=0.8, top_p=0.9).model_copy(update={"samples": 4})
    async with up(drawn) as served:
        await served.ask(json={"messages": CHAT})
        assert sent_up(served) == {**MEASURED, "temperature": 0.8, "top_p": 0.9}


async def test_a_measured_field_that_the_model_refuses_is_left_out_from_then_on() -> None:
    async with up(measured()) as served:
        served.upstream.script(
            refusing("temperature", "Unsupported value: 'temperature'", param="temperature"),
            refusing("max_tokens", "Unsupported parameter: 'max_tokens'"),
        )
        first, _, _ = await served.ask(json={"messages": CHAT})
        rest = {k: v for k, v in MEASURED.items() if k not in ("temperature", "max_tokens")}
        assert (first, served.upstream.calls) == (200, 3)
        assert sent_up(served) == {**rest, "max_completion_tokens": 12}
        served.upstream.script(refusing("temperature", "Unsupported value", param="temperature"))
        own, _, _ = await served.ask(json={"messages": CHAT, "temperature": 2})
        assert (own, served.upstream.calls) == (400, 4), "a caller's own field is his affair"


@pytest.mark.parametrize(("words", "most"), [
    ("System message must be at the beginning", 1), ("System role not supported", 0),
])  # fmt: skip
async def test_a_callers_system_message_is_put_as_the_models_template_wants_it(
    words: str, most: int
) -> None:
    async def strict(request: Any, body: dict[str, Any]) -> Any:
        systems = sum(m["role"] == "system" for m in body["messages"])
        return await (fails(400, words) if systems > most else says("fine"))(request, body)

    own = [{"role": "system", "content": "Be kind."}, *CHAT]
    async with up() as served:
        served.upstream.default = strict
        for _ in range(2):
            assert (await served.ask(json={"messages": own}))[0] == 200
        learned, [first, *_] = served.upstream.calls - 2, served.upstream.bodies[-1]["messages"]
        assert learned == (1 if most else 2) and first["content"].startswith("Be kind.\n\nrule one")


async def test_three_calls_as_in_the_paper_and_one_for_an_input_that_is_known() -> None:
    lm = ScriptedLM().reply_with(talkative)
    async with up(three_call(), Setup(lm=lm)) as served:
        _, _, first = await served.ask(json={"messages": CHAT})
        asked = [request.role for request in lm.history]
        _, _, again = await served.ask(json={"messages": CHAT})
        counts = await served.metrics()
        bodies = served.upstream.bodies
    assert asked == ["encoder", "generator"] == [request.role for request in lm.history]
    assert first["x-pco-mode"] == again["x-pco-mode"] == "three-call"
    assert (first["x-pco-cache"], again["x-pco-cache"]) == ("no", "input")
    assert bodies[0] == bodies[1]
    assert counts['pco_prompts_total{cached="input",mode="three-call"}'] == 1


def ends(reason: str) -> bytes:
    return b'data: {"choices": [{"delta": {}, "finish_reason": ' + reason.encode() + b"}]}\n\n"


@pytest.mark.parametrize(("pieces", "breaks"), [
    ([b'data: {"half'], True), ([b'data: {"half\xe4\xbd'], False),
    # It ends, and no choice of it does.
    ([b"data: [DONE]\n\n"], False), ([b"data: [DONE]"], False), ([b": over\n\n"], False),
    ([ends("null"), b'data: {"choices": [], "usage": {}}\n\ndata:[DONE]\n\n'], False),
    *(([ends(reason)], False) for reason in ('"error"', '"abort"', '""', "7")),
    ([ends("null")[:40], ends('"error"')[40:] + b"data: [DONE]\n\n"], False),
])  # fmt: skip
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stream_that_breaks_off_ends_in_an_error(
    pieces: list[bytes], breaks: bool, at_once: bool
) -> None:
    whole = [ends("null"), b'data: {"a": "\\"finish_reason\\": \\"error\\""}\n\n', *pieces]
    async with up() as served:
        served.upstream.script(streams(*([b"".join(whole)] if at_once else whole), breaks=breaks))
        _, body, _ = await served.ask(json={"messages": CHAT, "stream": True})
    first, second, *_, last = [each for each in body.split("\n\n") if each.strip()]
    assert first == ends("null").decode().strip() and json.loads(second[6:])["a"]
    error = json.loads(last.strip().removeprefix("data: "))
    assert error["error"]["type"] == "upstream_error" and "broke off" in error["error"]["message"]
    assert "half" not in body and "[DONE]" not in body


@pytest.mark.parametrize("reason", ['"stop"', '"length"', '"tool_calls"', '"content_filter"'])
async def test_a_stream_that_ends_passes_as_it_came(reason: str) -> None:
    whole = ends("null") + ends(reason) + b"data: [DONE]\n\n"
    async with up() as served:
        served.upstream.script(streams(whole))
        _, body, _ = await served.ask(json={"messages": CHAT, "stream": True})
    assert body.encode() == whole


async def test_an_error_that_a_stream_tells_is_its_end_and_comes_once() -> None:
    told = b'data: {"error": {"message": "out of memory"}}\n\n'
    async with up() as served:
        served.upstream.script(streams(ends("null"), told, b"data: [DONE]\n\n"))
        _, body, _ = await served.ask(json={"messages": CHAT, "stream": True})
    assert body.encode() == ends("null") + told + b"data: [DONE]\n\n"


@pytest.mark.parametrize(("data", "status", "words"), [
    (b'{"error": {"message": "slow down", "code": 429}}', 429, "slow down"),
    (b'{"object": "error", "message": "too large", "code": "413"}', 413, "too large"),
    (b'{"error": {"message": "it fell over"}}', 502, "it fell over"),
    (f'{{"error": {{"message": "wrong key {UPSTREAM_KEY}", "code": 401}}}}'.encode(), 502,
     "refused this server"),
    (b"<!doctype html><title>429 Too Many Requests</title>", 502, "not a chat completion"),
    (b"", 502, "not a chat completion"),
    (b'{"status": "ok"}', 502, "not a chat completion"),
    (b'{"choices": null, "error": {"code": "overloaded"}}', 503, "overloaded"),
    (b'{"choices": []}', 502, "not a chat completion"),
    (b'{"choices": [{"message": {"content": "ok', 502, "not a chat completion"),
])  # fmt: skip
async def test_a_200_upstream_that_is_no_completion_is_what_it_says(
    data: bytes, status: int, words: str, tmp_path: Path
) -> None:
    """It is booked as a call and no tokens, a page as nothing."""
    setup = limited(tmp_path / "r.sqlite", anna="4100tok")
    head = {"Authorization": "Bearer anna-key-4711"}
    asked: dict[str, Any] = {"json": {"messages": CHAT, "max_tokens": 3000}, "headers": head}
    async with up(setup=setup) as served:
        served.upstream.script(raw(data))
        found, body, _ = await served.ask(**asked)
        assert found == status and words in json.dumps(body)
        if b'"ok' not in data:  # which a model may have worked for
            assert (await served.ask(**asked))[0] == 200


async def test_the_whole_querys_usage_is_in_a_header_and_in_the_metrics() -> None:
    """The body's own is the answer's; a prompt that is known takes nothing."""
    setup = Setup(lm=ScriptedLM().reply_with(talkative))
    async with up(three_call(), setup) as served:
        _, body, first = await served.ask(json={"messages": CHAT})
        _, _, again = await served.ask(json={"messages": CHAT})
        served.upstream.script(streams(ends('"stop"')), says(usage=None))
        _, _, stream = await served.ask(json={"messages": CHAT, "stream": True})
        _, _, untold = await served.ask(json={"messages": CHAT})
        counts = await served.metrics()
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}
    composed, whole = (
        dict(part.split("=") for part in first[f"x-pco-{name}usage"].split(", "))
        for name in ("compose-", "")
    )
    assert (composed["calls"], whole["calls"]) == ("2", "3")
    assert int(whole["prompt_tokens"]) == int(composed["prompt_tokens"]) + 7 > 7
    assert int(whole["completion_tokens"]) == int(composed["completion_tokens"]) + 3 > 3
    nothing = "calls=0, prompt_tokens=0, completion_tokens=0"
    assert {headers["x-pco-compose-usage"] for headers in (again, stream, untold)} == {nothing}
    assert again["x-pco-usage"] == "calls=1, prompt_tokens=7, completion_tokens=3"
    assert stream["x-pco-usage"] == untold["x-pco-usage"] == "unknown"
    for role, known, calls in (
        ("encoder", "yes", 1), ("generator", "yes", 1), ("executor", "yes", 2),
        ("executor", "no", 2),
    ):  # fmt: skip
        assert counts[f'pco_calls_total{{known="{known}",role="{role}"}}'] == calls
    sums = [
        sum(counts[f'pco_tokens_total{{kind="{kind}",role="{role}"}}'] for role in roles)
        for kind in ("prompt", "completion")
        for roles in [("encoder", "generator", "executor")]
    ]
    assert sums == [
        int(whole[f"{kind}_tokens"]) + n for kind, n in (("prompt", 7), ("completion", 3))
    ]


async def test_a_streams_usage_is_counted_at_its_end() -> None:
    told = b'data: {"choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 9}}\n\n'
    async with up() as served:
        served.upstream.script(streams(ends('"stop"') + told))
        await served.ask(json={"messages": CHAT, "stream": True})
        counts = await served.metrics()
    assert counts['pco_tokens_total{kind="prompt",role="executor"}'] == 13


@pytest.mark.parametrize(("step", "status", "words"), [
    (fails(429, "slow down", headers={"Retry-After": "7"}), 429, "slow down"),
    (fails(400, "bad tools"), 400, "bad tools"),
    (fails(503, "busy"), 503, "busy"),
    (fails(401, f"wrong key {UPSTREAM_KEY}"), 502, "refused this server"),
    # As Google says it.
    (raw(b'[{"error": {"details": [{"reason": "API_KEY_INVALID"}]}}]', 400), 502,
     "refused this server"),
    (drops(), 502, "broke off"),
    *((says("hal", finish=f), 502, "reply broke off") for f in ("error", "abort", "", 7)),
    (raw(b"x" * 1_100_000), 502, "too large"),
    (pours(b"x" * 1000, 2000), 502, "too large"),
    (outlasts, 504, "in time"),
])  # fmt: skip
async def test_a_fault_upstream_gets_its_status(step: Step, status: int, words: str) -> None:
    async with up(setup=Setup(timeout=PATIENCE_S)) as served:
        served.upstream.script(step)
        found, body, headers = await served.ask(json={"messages": CHAT})
        after, _, _ = await served.ask(json={"messages": CHAT})
        calls = served.upstream.calls
    assert found == status and words in body["error"]["message"]
    assert headers["x-request-id"] and "x-pco-version" in headers
    assert headers.get("retry-after") == ("7" if status == 429 else None)
    assert (after, calls) == (200, 2), "nothing is asked twice"


async def test_a_server_that_hangs_up_behind_each_reply_fails_once_and_is_then_called_afresh() -> (
    None
):
    seen = set[object]()

    async def hangs_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        caller = request.transport.get_extra_info("peername")
        step = drops() if caller in seen else says()
        seen.add(caller)
        return await step(request, body)

    async with up() as served:
        served.upstream.default = hangs_up
        asked = [await served.ask(json={"messages": CHAT}) for _ in range(5)]
    assert [status for status, _, _ in asked] == [200, 502, 200, 200, 200]


async def test_a_caller_who_hangs_up_ends_the_call_upstream() -> None:
    gone = asyncio.Event()

    async def waits(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await until(lambda: request.transport is None or request.transport.is_closing())
        gone.set()
        return web.Response()

    async with up() as served:
        served.upstream.script(waits)
        asking = asyncio.ensure_future(served.ask(json={"messages": CHAT}))
        await served.upstream.seen(1)
        asking.cancel()
        await asyncio.wait_for(gone.wait(), 60)
        counts = await served.metrics()
    assert counts["pco_in_flight"] == 0
    answered = 'pco_requests_total{path="/v1/chat/completions",status="499"}'
    assert counts[answered] == 1


async def test_a_request_is_explained_afterwards_without_what_it_said(tmp_path: Path) -> None:
    path = tmp_path / "requests.sqlite"
    async with up(setup=Setup(records=path)) as served:
        _, _, headers = await served.ask(json={"messages": CHAT})
        served.upstream.script(fails(500))
        _, _, failed = await served.ask(json={"messages": CHAT})
        prompt = served.upstream.bodies[0]["messages"][0]["content"]
    record, other = (find_record(path, h["x-request-id"]) for h in (headers, failed))
    assert (record.prompt, record.version) == (prompt, headers["x-pco-version"])
    assert (record.route, record.mode, record.status) == ((1, 3), "one-call", 200)
    assert len(record.instincts) == 2 and all(text in prompt for text in record.instincts)
    assert (other.status, other.cached) == (500, "input")
    assert LATE not in repr(record) and LATE.encode() not in path.read_bytes()


async def test_what_is_served_is_listed_and_another_model_is_not_there() -> None:
    async with up(setup=Setup(options={"names": ("gpt-4o", "acme/large")})) as served:
        _, listed, _ = await served.ask("/v1/models")
        ids = [each["id"] for each in listed["data"]]
        for name in ("pco/tickets", "tickets", *ids[1:], None, ""):
            status, _, _ = await served.ask(json={"messages": CHAT, "model": name})
            assert status == 200, name
        for name in ("gpt-4", "pco/sha256:", "pco/../tickets"):
            status, body, _ = await served.ask(json={"messages": CHAT, "model": name})
            assert (status, body["error"]["code"]) == (404, "model_not_found"), name
        assert "did you mean 'pco/tickets'" in body["error"]["message"]
        one = await served.ask("/v1/models/pco/tickets")
        _, alias, _ = await served.ask("/v1/models/acme/large")
        none = await served.ask("/v1/models/pco/other")
    assert ids == ["pco/tickets", "gpt-4o", "acme/large"] and alias["id"] == "acme/large"
    version = version_of(one_call().text().encode())
    own = {"id": "pco/tickets", "object": "model", "owned_by": "promptcodebook"}
    assert one[1] == {**own, "version": version, "created": one[1]["created"]} and none[0] == 404


async def test_its_state_and_its_counts() -> None:
    async with up() as served:
        health, ready = await served.ask("/healthz"), await served.ask("/readyz")
        status, prompt, _ = await served.ask("/v1/prompt", json={"messages": CHAT})
        wrong, _, headers = await served.ask("/v1/prompt")
        missing, _, _ = await served.ask("/nowhere")
        served.proxy.stopping = True
        stopping, _, _ = await served.ask("/readyz")
        counts = await served.metrics()
    assert (health[0], ready[0], stopping) == (200, 200, 503)
    assert counts["pco_version_moves"] == 0
    assert status == 200 and prompt["route"] == [1, 3] and prompt["mode"] == "one-call"
    assert (wrong, headers["allow"], missing) == (405, "POST", 404)
    assert counts['pco_requests_total{path="/v1/prompt",status="200"}'] == 1
    edges = [k.partition('le="')[2].partition('"')[0] for k in counts if "seconds_bucket" in k]
    assert (edges[0], edges[-2]) == ("0.05", "300.0")


async def test_who_may_ask_and_how_often() -> None:
    setup = Setup(keys=("first-key", "other-key"), limits=RequestLimits(rate=3))
    async with up(setup=setup) as served:

        async def status(key: str | None, path: str = "/v1/models") -> int:
            sent = {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}
            return (await served.ask(path, **sent))[0]

        taken = [await status("other-key") for _ in range(5)]
        assert taken[:3] == [200, 200, 200] and taken[-1] == 429
        assert await status("first-key") == 200, "each key has its own share"
        closed = ("/metrics", "/v1/models", "/v1/models/pco/tickets", "/v1/prompt", "/other", "/")
        assert {await status(None, path) for path in closed} == {401}
        open_to_all = ("/healthz", "/readyz")
        assert {await status(None, path) for path in open_to_all} == {200}


async def test_more_than_the_allowed_number_wait_outside() -> None:
    async with up(setup=Setup(limits=RequestLimits(in_flight=2))) as served:
        served.upstream.default = says(delay=0.5)
        answers = await asyncio.gather(*(served.ask(json={"messages": CHAT}) for _ in range(4)))
    assert sorted(answer[0] for answer in answers) == [200, 200, 429, 429]
    assert [a[2]["retry-after"] for a in answers if a[0] == 429] == ["1", "1"]
