"""Images, tool messages, `tools` and `response_format`: from a row of data to the model's address,
and from its reply to the reward, the critic and the report."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.calls import Message, Reply, Request
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.report import write_report
from tests.lm.server import Server, says
from tests.run.test_optimize import QUICK

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
        *({"input": seen(n), "target": str(n), "response_format": FORM} for n in range(12)),
        *({"input": asked(n), "target": str(n), "tools": TOOLS} for n in range(12)),
    ]


def reward(example: pco.Example, output: pco.Output) -> pco.Score:
    calls: Any = output.fields.get("tool_calls", ())
    said = [call["function"]["arguments"] for call in calls] or [output.text]
    return pco.Score(float(str(example.target) in said[0]), feedback="say the digit")


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
    given: Any = {"config": QUICK, "roles": roles, "runs_dir": tmp_path}
    part = await pco.aoptimize(data, reward, "simulated", budget="60calls", **given)
    paid = server.calls
    run = await pco.aoptimize(
        data, reward, "simulated", resume=part.id, budget="9999calls", **given
    )
    assert (part.ended, run.ended) == ("budget", "finished") and 0 < paid < server.calls
    sent = [json.dumps(body, sort_keys=True) for body in server.bodies]
    assert len(sent) == len(set(sent)), "a resumed run asks for nothing twice"
    wrote = [json.dumps(row["input"]) for row in rows()]
    for body in server.bodies:
        assert body["messages"][0]["role"] == "system", "the prompt comes before"
        assert json.dumps(body["messages"][1:]) in wrote
        offered = body["messages"][-1]["role"] == "tool"
        assert body.get("tools") == (TOOLS if offered else None)
        assert body.get("response_format") == (None if offered else FORM)
    called = [r for r in run.rollouts.to_dict("records") if "tool" in r["input"]]
    assert called and all(r["failure"] == "" for r in called)
    page = write_report(run.path, tmp_path / "report.html").read_text()
    assert "[image]" in page and "look_up({" in page and "base64" not in page
    for kept in run.path.iterdir():
        assert image(3)[40:80].encode() not in kept.read_bytes()


def test_equal_words_about_other_images_are_other_inputs() -> None:
    data = pco.load(rows()[:12])
    assert [e.input for e in data.train][:1] == ["system: Look.\n\nuser: Which digit?\n[image]"]
    again = pco.load([*rows()[:11], {**rows()[0], "input": seen(99)}])
    assert data.fingerprint() != again.fingerprint()
    with pytest.raises(DataError, match="appears in two splits"):
        pco.load({"train": rows()[:2], "val": rows()[2:4], "test": rows()[1:2]})


def lm(*replies: Reply | str) -> ScriptedLM:
    return ScriptedLM().enqueue(*replies, role="executor")


TEXTS = [{"input": f"q{n}", "target": "3"} for n in range(12)]


async def rollout(scripted: ScriptedLM, row: Any, tmp_path: Path, **settings: Any) -> Any:
    """One input of a policy that asks the scripted model."""
    ...
