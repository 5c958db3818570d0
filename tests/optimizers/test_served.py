"""A server that counts, while GEPA and MIPROv2 learn: what our meter says is what it answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.calls import Message, Request
from tests.cli.invoked import served
from tests.lm.server import Server
from tests.optimizers.teachable import answer, learn


@pytest.mark.parametrize("optimizer", ["gepa", "mipro"])
def test_the_server_counts_what_our_meter_does(tmp_path: Path, optimizer: str) -> None:
    paid: list[int] = []

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
        role = "updater" if body["max_tokens"] == 1024 else "executor"
        text = answer(Request(role, messages, sample=body.get("seed", 0)))
        usage = {"prompt_tokens": sum(len(m.content) for m in messages), "completion_tokens": 5}
        paid.append(sum(usage.values()))
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": usage})

    server = Server()
    server.default = step
    with served(server):
        run = learn(
            tmp_path,
            optimizer,
            server.spec,
            roles={"updater": {"max_tokens": 50}, "executor": {"max_tokens": 20}},
            config={"cache": False, "gepa": {"rollouts": 60}},
        )
    assert run.ended == "finished" and run.rows[optimizer].score.mean > 0.5
    assert run.spent.calls == server.calls == len(paid) > 60
    assert run.spent.tokens == sum(paid)
    assert {b["temperature"] for b in server.bodies if b["max_tokens"] == 1024} == {1.0}
    assert not {body["model"] for body in server.bodies} - {"m"}
