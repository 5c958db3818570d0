"""What a run on private rows says when things go wrong: never a word of a row.

The rows are invented, and the server and the code are of the kind that quotes what it was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.calls import Chat, Reply
from promptcodebook.config import load_config
from promptcodebook.lm.stack import Supplies
from promptcodebook.method.executor import roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.store.events import Ended, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.pupa.task import load_pupa
from promptcodebook.tasks.task import asks_nobody
from promptcodebook.types import Example, Output, Prompt, Rewrite
from tests.cli.invoked import Result, pco, served
from tests.lm.server import Server

NAME = "Quillfeather"


def _row(index: int) -> dict[str, str]:
    return {
        "id": f"own-{index}",
        "user_query": f"Write a note from Ottokar {NAME} about matter {index}.",
        "target_response": f"Dear reader, {index} is my matter.",
        "pii_units": f"ottokar {NAME.lower()}",
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for at, split in enumerate(("train", "val", "test")):
        rows = [json.dumps(_row(10 * at + i)) for i in range(6)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


async def quotes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Refuses, and says what."""
    said = " ".join(str(m["content"]) for m in body["messages"])
    return web.json_response({"error": {"message": f"cannot read: {said[-250:]}"}}, status=400)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.default = quotes
    with served(made):
        yield made


def _train(cwd: Path, data: Path, server: Server) -> Result:
    return pco("train", "--task", "pupa", "--data", str(data), "--lm", server.spec, cwd=cwd)


def test_a_server_that_quotes_the_request_reaches_no_screen_log_or_report(
    tmp_path: Path, data: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    broken = _train(tmp_path, data, server)
    assert broken.code == 1 and "answered 400: withheld" in broken.err
    assert any(NAME in str(body) for body in server.bodies), "the request did hold the name"
    [run] = (tmp_path / "runs").iterdir()
    ref = ("eval", run.name, "--json")
    for args in (("runs", "show", run.name), ("runs", "show", run.name, "--json"), ref):
        result = pco(*args, cwd=tmp_path)
        assert NAME not in result.out + result.err, args
    assert NAME not in broken.out + broken.err + caplog.text
    page = tmp_path / "page.html"
    assert pco("report", run.name, "-o", str(page), cwd=tmp_path).code == 0
    assert NAME not in page.read_text("utf-8")
    doctor = pco(
        *("doctor", "--task", "pupa", "--data", str(data), "--lm", server.spec), cwd=tmp_path
    )
    assert NAME not in doctor.out + doctor.err


def test_what_is_stored_of_such_a_fault_does_not_quote_it_either(
    tmp_path: Path, data: Path, server: Server
) -> None:
    _train(tmp_path, data, server)
    [run] = (tmp_path / "runs").iterdir()
    store = RunStore.open(run)
    endings = [e for e in store.events(full=True) if isinstance(e, Ended)]
    failures = [t.rollout.failure for t in _broken(store)]
    store.close()
    assert endings and failures
    assert NAME not in repr(endings) + repr(failures)


def _broken(store: RunStore) -> list[Any]:
    return [t for event in store.events(full=True) for t in getattr(event, "traces", ())]


def test_of_data_that_are_not_private_the_servers_words_are_told(
    tmp_path: Path, server: Server
) -> None:
    """Else the tests above would prove nothing."""
    said = pco("train", "--task", "pupa", "--lm", server.spec, cwd=tmp_path).err
    assert "cannot read: " in said and "withheld" not in said


class Explodes:
    name = "explodes"
    stages: tuple[str, ...] = ()
    roles: frozenset[Any] = frozenset()

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        raise KeyError(example.input)


class Answers(Explodes):
    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        return Output("an answer")


def _assembled(data: Path, **parts: Any) -> Assembled:
    """The task with code of somebody else's, as a plug-in would bring it."""
    config = load_config({"task": "pupa", "data_dir": str(data), "lm": "own"})
    plan = plan_run(config, Sources())
    task = replace(load_pupa(data), **parts)
    assert task.private

    async def lm(request: Any) -> Reply:
        return Reply("fine")

    return Plan(plan.config, task, plan.templates).connect(Supplies(own=lm))


def _reward(example: Example, output: str) -> float:
    raise ValueError(example.input)


@pytest.mark.parametrize(
    ("parts", "stage", "kind"),
    [
        ({"program": Explodes()}, "execute", "KeyError"),
        ({"program": Answers(), "reward": asks_nobody(_reward)}, "reward", "ValueError"),
        (
            {"program": Answers(), "reward": asks_nobody(lambda e, y: e.input)},
            "reward",
            "RewardError",
        ),
    ],
)
async def test_code_that_quotes_a_row_when_it_fails_is_told_by_its_kind(
    data: Path, parts: dict[str, Any], stage: str, kind: str
) -> None:
    assembled = _assembled(data, **parts)
    example = assembled.dataset.train[0]
    draws = assembled.config.randomness.at(0, example.id)
    rollout = await roll_out(FixedPrompt("p"), assembled.trial(), example, draws)
    assert rollout.failure is not None and rollout.failure.stage == stage
    assert kind in rollout.failure.message
    assert NAME not in repr(rollout.failure)


def test_a_refusal_that_quotes_is_told_by_its_kind(tmp_path: Path, data: Path) -> None:
    """In the log of rewrites as in the report."""
    typed = ("--task", "pupa", "--data", str(data), "--lm", "simulated", "--preset", "quick")
    assert pco("train", *typed, "--set", "update.epochs=2", cwd=tmp_path).code == 0
    [run] = (tmp_path / "runs").iterdir()
    store = RunStore.open(run, write=True)
    step = store.step_at(store.outline().step)
    rewrite = Rewrite(
        1, "Be brief.", f"Greet {NAME}.", f"greet {NAME}", False, f'it copies "{NAME}"'
    )
    quoted = replace(rewrite, reason=f"it contains an address: {NAME}.example")
    store.append(Stepped(replace(step, index=step.index + 1, rewrites=(rewrite, quoted))))
    store.close()
    for args in (("codebook", "log", run.name), ("codebook", "log", run.name, "--json")):
        result = pco(*args, cwd=tmp_path)
        assert "it copies" in result.out and "it contains an address" in result.out
        assert NAME not in result.out
    page = tmp_path / "page.html"
    assert pco("report", run.name, "-o", str(page), cwd=tmp_path).code == 0
    assert NAME not in page.read_text("utf-8")
