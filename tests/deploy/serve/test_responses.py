"""/v1/responses before any chat model: what goes up, and what the real clients read."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from promptcodebook.deploy.serve.spending import find_record
from tests.build.proxied import CHAT, LATE, Setup, Up, limited, one_call, streams, up
from tests.build.server import Step, drops, fails, raw, says

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
LOOK: Any = {"name": "look", "parameters": {"type": "object"}, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def speaks(*deltas: dict[str, Any], finish: str | None = "stop", usage: bool = True) -> Step:
    """A chat model's stream."""
    trees: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    trees += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else []
    told = {"prompt_tokens": 7, "completion_tokens": 3}
    trees += [{"choices": [], "usage": told}] if usage else []
    lines = [b"data: " + json.dumps({"model": "m-1", **tree}).encode() for tree in trees]
    return streams(b"\n\n".join([*lines, b"data: [DONE]" if finish else b": over", b""]))


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each of which OpenAI's own types accept."""
    found = list[dict[str, Any]]()
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def respond(served: Up, **body: Any) -> tuple[int, Any]:
    status, answer, _ = await served.ask("/v1/responses", json={"input": LATE, **body})
    return status, answer


async def test_a_text_and_its_settings_are_asked_of_the_chat_model_as_it_knows_them() -> None:
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
    tool: Any = {"type": "function", **LOOK}
    asked: dict[str, Any] = {"temperature": 0.5, "parallel_tool_calls": False, "user": "anna"}
    async with up(setup=Setup(options={"names": ("gpt-4o",)})) as served, served.client() as client:
        prompt = (await served.ask("/v1/prompt", json={"input": LATE}))[1]["prompt"]
        reply = await client.responses.create(
            **asked,
            model="gpt-4o",
            instructions="Be kind.",
            input=LATE,
            max_output_tokens=9,
            store=False,
            metadata={"team": "tickets"},
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low"},
            text={"format": form, "verbosity": "low"},  # type: ignore[typeddict-item]
            tools=[tool],
            tool_choice={"type": "function", "name": "look"},
            extra_body={"top_k": 5},
        )
        with pytest.raises(openai.BadRequestError, match="stores no responses"):
            await client.responses.create(model="gpt-4o", input=LATE, previous_response_id="r")
        [passed] = served.upstream.bodies
    system = [{"role": "system", "content": text} for text in ("Be kind.", prompt)]
    chosen = {name: value for name, value in form.items() if name != "type"}
    assert passed == {
        **asked,
        "model": "m",
        "messages": [*system, *CHAT],
        "max_tokens": 9,
        "top_k": 5,
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": chosen},
        "tools": [{"type": "function", "function": LOOK}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    }
    assert (reply.output_text, reply.status, reply.instructions) == ("ok", "completed", "Be kind.")
    assert reply.usage is not None and reply.usage.input_tokens == 7
    assert (reply.usage.output_tokens, reply.usage.total_tokens) == (3, 10)


async def test_a_conversation_of_items_is_one_of_messages() -> None:
    async with up(setup=Setup(cap="max_completion_tokens")) as served:
        prompt = (await served.ask("/v1/prompt", json={"input": LATE}))[1]["prompt"]
        status, body = await respond(served, input=CASES["items"], max_output_tokens=9)
        [passed] = served.upstream.bodies
    assert status == 200 and Response.model_validate(body).output_text == "ok"
    assert passed["max_completion_tokens"] == 9 and "max_tokens" not in passed
    own, *turns = CASES["messages"]
    assert passed["messages"] == [own, {"role": "system", "content": prompt}, *turns]


async def test_a_stream_has_openais_events_and_ends_in_what_is_answered_whole() -> None:
    tool: Any = {"type": "function", **LOOK}
    calls = [CALL, {**CALL, "id": "c2"}]
    async with up() as served, served.client() as client:
        served.upstream.script(
            speaks(*CASES["deltas"], finish="tool_calls"),
            speaks(*CASES["deltas"], finish="tool_calls"),
            says("I look.", finish="tool_calls", message={"tool_calls": calls}),
            says("I look.", finish="tool_calls", message={"tool_calls": calls}),
        )
        _, text = await respond(served, stream=True)
        async with client.responses.stream(model="", input=LATE, tools=[tool]) as stream:
            final = await stream.get_final_response()
        whole = await client.responses.create(model="", input=LATE)
        # A server that does not stream.
        _, other = await respond(served, stream=True)
        assert served.upstream.bodies[0]["stream_options"] == {"include_usage": True}
    events = events_of(text)
    kinds = [event["type"].removeprefix("response.") for event in events]
    say, call = "output_text", "function_call_arguments"
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", f"{say}.delta", f"{say}.delta"),
        *("output_item.added", f"{call}.delta", f"{call}.delta"),
        *("output_item.added", f"{call}.delta"),
        *(f"{say}.done", "content_part.done", "output_item.done"),
        *(f"{call}.done", "output_item.done") * 2,
        "completed",
    ]
    assert [item.type for item in final.output] == ["message", *["function_call"] * 2]

    def facts(output: Any) -> Any:
        """Without the ids, which each response has of its own."""
        names = ("type", "status", "call_id", "name", "arguments", "content")
        trees = [item if isinstance(item, dict) else item.to_dict() for item in output]
        return [{name: tree.get(name) for name in names} for tree in trees]

    same = facts(whole.output)
    assert facts(events[-1]["response"]["output"]) == same
    assert facts(events_of(other)[-1]["response"]["output"]) == same
    assert [item.call_id for item in final.output if item.type == "function_call"] == ["c1", "c2"]
    assert final.output_text == whole.output_text == "I look."
    assert final.usage == whole.usage and events[-1]["response"]["model"] == "m-1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_reply_that_is_cut_is_incomplete_and_says_why(
    finish: str, reason: str, stream: bool
) -> None:
    step = speaks({"content": "ok"}, finish=finish, usage=False)
    async with up() as served:
        served.upstream.script(step if stream else says(finish=finish, usage=None))
        _, body = await respond(served, stream=stream)
    if stream:
        last = events_of(body)[-1]
        assert last["type"] == "response.incomplete"
        body = last["response"]
    assert Response.model_validate(body).output_text == "ok"
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"] is None, "what the model does not say is not 0"


async def test_refusals_and_log_probabilities_are_told_too() -> None:
    token = {"token": "ok", "logprob": -0.5, "bytes": [111, 107], "top_logprobs": []}
    choice = {"message": {"content": "ok", "refusal": "No."}, "logprobs": {"content": [token]}}
    data = json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode()
    async with up() as served:
        served.upstream.default = raw(data)
        more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        for stream in (False, True):
            _, body = await respond(served, stream=stream, **more)
            body = events_of(body)[-1]["response"] if stream else body
            text, refused = body["output"][0]["content"]
            Response.model_validate(body)
            assert text["logprobs"] == [token] and refused == {"type": "refusal", "refusal": "No."}
        assert served.upstream.bodies[0]["logprobs"] is True


@pytest.mark.parametrize(("step", "status", "words"), [
    (fails(429, "slow down", headers={"Retry-After": "7"}), 429, "slow down"),
    (raw(b"{}"), 502, "not a chat completion"),
    (raw(b'{"choices": []}'), 502, "not a chat completion"),
    (raw(b'{"choices": [{"message": {"content": 5}}]}'), 502, "not a chat completion"),
    (raw(b'{"error": {"message": "out of memory"}}'), 502, "out of memory"),
    (drops(), 502, "broke off"),
])  # fmt: skip
async def test_a_fault_of_the_model_gets_its_status(step: Step, status: int, words: str) -> None:
    async with up() as served:
        served.upstream.script(step)
        found, body = await respond(served)
    assert found == status and words in body["error"]["message"]


@pytest.mark.parametrize(("step", "words"), [
    (streams(b'data: {"choices": [{"delta": {"content": "o"}}]}\n\n', breaks=True), "broke"),
    (speaks({"content": "o"}, finish=None), "broke off"),
    (speaks({"content": "o"}, finish="error"), "broke off"),
    (speaks({"content": "o"}, finish="abort", usage=False), "broke off"),
    (streams(b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
    (streams(b"data: {half\n\n"), "not a chat completion"),
])  # fmt: skip
async def test_a_stream_that_goes_wrong_ends_in_a_response_that_failed(
    step: Step, words: str
) -> None:
    async with up() as served:
        served.upstream.script(step)
        status, text = await respond(served, stream=True)
    last = events_of(text)[-1]
    assert (status, last["type"]) == (200, "response.failed")
    assert words in last["response"]["error"]["message"]


@pytest.mark.parametrize(("body", "param", "words"), CASES["responses"])
async def test_what_a_chat_model_cannot_do_is_refused_in_a_sentence(
    body: dict[str, Any], param: str, words: str
) -> None:
    async with up() as served:
        status, answer = await respond(served, **body)
        assert served.upstream.calls == 0
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


async def test_budgets_counts_and_records_are_those_of_chat_completions(tmp_path: Path) -> None:
    setup = limited(tmp_path / "r.sqlite", anna="4100tok")
    setup.records, path = tmp_path / "records.sqlite", "/v1/responses"
    head = {"Authorization": "Bearer anna-key-4711"}
    told = b'data: {"choices": [], "usage": {"prompt_tokens": 1300, "completion_tokens": 9}}\n\n'
    event = b'data: {"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}\n\n'
    async with up(one_call(roles={"executor": {"max_tokens": 20}}), setup) as served:
        for _ in range(3):
            served.upstream.script(streams(event + told))
            sent = {"input": LATE, "stream": True}
            _, body, headers = await served.ask(path, json=sent, headers=head)
            assert events_of(body)[-1]["response"]["usage"]["total_tokens"] == 1309
        # Of 4,100 tokens 3,927 are spent, and a request may take 20 beside its prompt.
        assert served.upstream.bodies[-1]["max_tokens"] == 20
        status, _, _ = await served.ask(path, json={"input": LATE}, headers=head)
        unknown, _, _ = await served.ask(path, json={"input": LATE})
        counts = await served.metrics("free-key-4711")
    assert (status, unknown) == (429, 401)
    assert counts[f'pco_requests_total{{path="{path}",status="200"}}'] == 3
    record = find_record(tmp_path / "records.sqlite", headers["x-request-id"])
    assert (record.status, record.route) == (200, (1, 3)) and record.prompt
