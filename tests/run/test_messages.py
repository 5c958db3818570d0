"""Images, tool messages, `tools` and `response_format`: from a row of data to the model's address,
and from its reply to the reward, the critic and the report."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources, plan_run
from promptcodebook.base.randomness import Randomness
from promptcodebook.calls import Reply, read_message
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, DataError, TooManyFailures
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.stack import StackResources
from promptcodebook.report.page import render_report
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import body_fields
from promptcodebook.types import Prompt, Rollout
from tests.build.optimize import QUICK
from tests.build.server import Server, says

TOOLS = [{
    "type": "function",
    "function": {"name": "look_up", "parameters": {
        "type": "object", "properties": {"api_key": {"type": "string"}, "n": {"type": "integer"}},
    }},
}]  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"n": 3}'}}


def image(n: int) -> str:
    return "data:image/png;base64," + base64.b64encode(bytes([n]) * 3000).decode()


def seen(n: int) -> list[dict[str, Any]]:
    """A question on an image: the same words in every row."""
    parts = [{"type": "text", "text": "Which digit?"}, {"type": "image_url", "image_url": {
        "url": image(n), "detail": "low",
    }}]  # fmt: skip
    return [{"role": "developer", "content": "Look."}, {"role": "user", "content": parts}]


def asked(n: int) -> list[dict[str, Any]]:
    """A conversation in which a tool was called and has answered."""
    call = {**CALL, "function": {"name": "look_up", "arguments": json.dumps({"n": n})}}
    return [
        {"role": "user", "content": f"Look {n} up."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": f"It is {n}."},
    ]


def rows() -> list[dict[str, Any]]:
    return [
        *({"input": seen(n), "target": str(n), "response_format": FORM} for n in range(6)),
        *({"input": asked(n), "target": str(n), "tools": TOOLS} for n in range(6)),
    ]


def reward(example: pco.Example, output: pco.Output) -> pco.Score:
    calls: Any = output.fields.get("tool_calls", ())
    texts = [call["function"]["arguments"] for call in calls] or [output.text]
    return pco.Score(float(str(example.target) in texts[0]), feedback="say the digit")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Calls a tool where it is offered one."""
    served = Server()
    text, call = (
        says('{"digit": 3}'),
        says(None, finish="tool_calls", message={"tool_calls": [CALL]}),
    )
    served.default = lambda request, body: (call if "tools" in body else text)(request, body)
    await served.start()
    yield served
    await served.stop()


async def test_a_run_sends_messages_as_they_are_written_and_pays_each_once(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    data, roles = pco.load(file), {"executor": {"model": server.spec, "max_tokens": 64}}
    config = {**QUICK, "update": {"epochs": 1, "batch_size": 6}}
    given: Any = {"config": config, "roles": roles, "runs_dir": tmp_path}
    part = await pco.aoptimize(data, reward, "simulated", budget="30calls", **given)
    paid = server.calls
    run = await pco.aoptimize(
        data, reward, "simulated", resume=part.id, budget="9999calls", **given
    )
    assert (part.ended, run.ended) == ("budget", "finished") and 0 < paid < server.calls
    sent = [json.dumps(body, sort_keys=True) for body in server.bodies]
    assert len(sent) == len(set(sent)), "a resumed run asks for nothing twice"

    def apart(messages: Any) -> tuple[str, str]:
        """The last system message, and all that is none."""
        systems = [m["content"] for m in messages if m["role"] in ("system", "developer")]
        others = [m for m in messages if m["role"] not in ("system", "developer")]
        return systems[-1] if systems else "", json.dumps(others)

    wrote = {others: own for own, others in (apart(row["input"]) for row in rows())}
    for body in server.bodies:
        # The prompt comes before, where there is one: a row's own joins it.
        joined, others = apart(body["messages"])
        assert joined.endswith(wrote[others])
        offered = body["messages"][-1]["role"] == "tool"
        assert body.get("tools") == (TOOLS if offered else None)
        assert body.get("response_format") == (None if offered else FORM)
    with closing(RunStore.open(run.path)) as store:
        page = render_report(store, {e.id: e for e in data.test})
    assert "[image]" in page and "look_up({" in page and image(3)[:99] not in page
    for kept in run.path.iterdir():
        assert image(3)[40:80].encode() not in kept.read_bytes()


def test_equal_words_about_other_images_are_other_inputs() -> None:
    data = pco.load(rows()[:6])
    assert [e.input for e in data.train][:1] == ["system: Look.\n\nuser: Which digit?\n[image]"]
    again = pco.load([*rows()[:5], {**rows()[0], "input": seen(99)}])
    assert data.fingerprint() != again.fingerprint()
    with pytest.raises(DataError, match="appears in two splits"):
        pco.load({"train": rows()[:2], "val": rows()[2:4], "test": rows()[1:2]})


TEXTS = [{"input": f"q{n}", "target": "3"} for n in range(12)]


async def test_a_tool_call_where_text_was_expected_is_a_failure(
    server: Server, tmp_path: Path
) -> None:
    server.default = says(None, finish="tool_calls", message={"tool_calls": [CALL]})
    with pytest.raises(TooManyFailures, match="calls a tool where text was expected") as caught:
        await pco.aoptimize(
            pco.load(TEXTS), reward, "simulated", roles={"executor": server.spec},
            config=QUICK, runs_dir=tmp_path,
        )  # fmt: skip
    assert "roles.executor.extra" in caught.value.hint
    assert "look_up" not in str(caught.value), "the reply may quote private data"
    failed = caught.value.traces[0].rollout
    assert failed.usage.completion_tokens >= 3, "the reply was paid for"


async def test_an_agent_may_offer_tools_itself_and_see_the_calls(tmp_path: Path) -> None:
    lm = ScriptedLM().reply_with(
        lambda request: Reply("", tool_calls=(CALL,)) if request.sampling.extra else "3"
    )

    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
        turn = {"role": "user", "content": [{"type": "text", "text": example.input}]}
        made = await lm([read_message(turn)], system=prompt, extra={"tools": TOOLS})
        return str(made.tool_calls[0]["function"]["name"])

    config = load_config({"lm": "own"})
    plan = plan_run(config, Sources(data=pco.load(TEXTS), reward=reward, executor=agent, lm=lm))
    trial = plan.connect(StackResources(client=lm)).trial()
    example = plan.dataset.train[0]
    made = await trial.run(example, Prompt("p"), Randomness(0).at(0, "x"), Rollout(example.id))
    assert (made.output, made.failure) == ("look_up", None)
    [request] = lm.history
    assert request.sampling.extra == {"tools": TOOLS}
    assert request.messages[1].wire["content"] == [{"type": "text", "text": example.input}]


@pytest.mark.parametrize(("column", "value", "sent"), [
    ("tools", json.dumps(TOOLS), TOOLS),  # as a CSV cell has it
    ("response_format", FORM, FORM),
    ("response_format", "", None),
    ("tools", None, None),
    ("tools", "look_up", DataError),
    ("tools", {"look_up": 1}, DataError),
    ("tools", [{"headers": {"api_key": "$PCO_API_KEY"}}], DataError),
    ("response_format", ["json"], DataError),
])  # fmt: skip
def test_a_column_is_sent_in_openais_shape_or_refused(
    column: str, value: object, sent: Any
) -> None:
    example = pco.Example("x", "q", fields={column: value})
    if sent is DataError:
        with pytest.raises(DataError, match=f"the column '{column}' cannot be sent"):
            body_fields(example)
    else:
        assert body_fields(example) == ({column: sent} if sent else {})


def test_fields_of_all_rows_are_settings_of_the_executor_alone() -> None:
    extra: Any = {"tools": TOOLS, "response_format": FORM}
    made = load_config({"roles": {"executor": {"extra": extra}}})
    assert made.roles["executor"].extra == extra
    with pytest.raises(ConfigError, match="the form of a reply of role critic is decided"):
        load_config({"roles": {"critic": {"extra": {"response_format": FORM}}}})


@pytest.mark.parametrize(("calls", "text"), [
    ([CALL, CALL], 'so\nlook_up({"n": 3})\nlook_up({"n": 3})'),
    *((calls, "so") for calls in (None, 3, [3], "look_up", [{"function": None}])),
])  # fmt: skip
def test_an_output_is_shown_with_its_tool_calls(calls: object, text: str) -> None:
    """A field of that name may be the agent's own."""
    assert Rollout("x", output="so", fields={"tool_calls": calls}).said == text
