"""An optimizer of somebody else: named in the configuration, judged and metered like ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

import promptcodebook as pco
from promptcodebook.assemble import Sources, assemble
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.config.loading import describe, describe_group, training_keys
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.optimizers.base import (
    Problem,
    Result,
    make_optimizer,
    optimize_metered,
    optimizer_names,
)
from promptcodebook.store.run import RunStore
from tests.cli.invoked import served
from tests.lm.server import Server
from tests.optimizers.teachable import answer, learn
from tests.run.test_optimize import train

MODULE = '''
from promptcodebook.calls import Message, Request
from promptcodebook.config import OptimizerSettings
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.optimizers.base import Result


class AskSettings(OptimizerSettings):
    """What is asked for."""

    table = "asking"
    longer = "tries"
    request: str = "Write a system prompt."
    """The request to the updater."""
    tries: int = 1
    """How often it asks."""


class Asks:
    """Asks the updater for one prompt and uses it for everything."""

    settings = AskSettings

    async def optimize(self, problem):
        asked = AskSettings.of(problem.assembled.config).request
        request = Request("updater", (Message("user", asked),))
        reply = await problem.assembled.models.lm(request)
        return Result("asked", "the prompt that was asked for", FixedPrompt(reply.text))
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "theirs_optimizer.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[promptcodebook.optimizers]\nasks = theirs_optimizer:Asks\n"
    )
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("installed")
def test_it_runs_through_the_same_models_store_and_verdict(tmp_path: Path) -> None:
    run = train(tmp_path, config={"optimizer": "asks"})
    assert run.ended == "finished"
    assert run.conclusion is not None
    assert [row.name for row in run.conclusion.rows] == ["present", "asked"]
    assert run.usage["updater"].calls == 1 and run.usage["executor"].calls > 0
    with pytest.raises(pco.PcoError, match="leaves no policy"):
        _ = run.policy
    store = RunStore.open(run.path)
    assert store.outline().ended == "finished"
    assert {e.name for e in store.test_evaluations()} == {"present", "asked"}
    store.close()


@pytest.mark.usefixtures("installed")
def test_it_is_listed_beside_ours_and_a_wrong_name_says_so() -> None:
    assert {"asks", "pco"} <= set(optimizer_names())
    with pytest.raises(ConfigError, match=r"unknown optimizer 'pcoo'.*did you mean 'pco'"):
        make_optimizer("pcoo")


@pytest.mark.usefixtures("installed")
def test_it_brings_settings_that_are_keys_like_ours(tmp_path: Path) -> None:
    asked = {"request": "Write ten words."}
    run = train(tmp_path, config={"optimizer": "asks", "asking": asked})
    store = RunStore.open(run.path)
    assert store.header.settings["asking"] == {**asked, "tries": 1}
    store.close()
    assert "asking" in training_keys()
    (key,) = (key for key in describe() if key.key == "asking.request")
    assert (key.text, describe_group("asking")) == (
        "The request to the updater.", "What is asked for.",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"unknown key 'asking.reqest'.*did you mean 'request'"):
        load_config({"asking": {"reqest": "x"}})
    with pytest.raises(ConfigError, match=r"asking.tries: .* not 'often'"):
        load_config({"asking": {"tries": "often"}})
    with pytest.raises(pco.PcoError, match="there is nothing to resume") as refused:
        train(tmp_path, resume=run.id, config={"optimizer": "asks", "asking": asked})
    assert "'asking': {'tries': MORE}" in refused.value.hint


def test_a_table_of_no_installed_optimizer_is_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match="unknown key 'asking'"):
        load_config({"asking": {}})


class Asks:
    """Two calls, one after the other."""

    async def optimize(self, problem: Problem) -> Result:
        for text in ("Write a prompt.", "Write a better one."):
            reply = await problem.assembled.models.lm(Request("updater", (Message("user", text),)))
        return Result("asked", "the prompt that was asked for", FixedPrompt(reply.text))


async def test_a_result_holds_what_its_own_optimizing_took() -> None:
    config = load_config({"lm": "simulated", "cache": False})
    data = pco.load([{"input": f"{n}?", "target": "light"} for n in range(9)])
    lm = ScriptedLM().enqueue("First.", "Second.", "Third.")
    assembled = assemble(config, Sources(data=data, reward=lambda example, output: 0.0, lm=lm))
    problem = Problem(assembled, cast("RunStore", None), lambda _: None)
    await assembled.models.lm(Request("executor", (Message("user", "before"),)))
    result = await optimize_metered(Asks(), problem)
    assert result.spent.calls == 2
    assert result.spent.calls + 1 == assembled.models.ledger.total.calls


# A server that counts, while GEPA and MIPROv2 learn: what our meter says is what it answered.


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
