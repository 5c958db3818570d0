"""Loading PUPA, its place in a session, and the advice about the untrusted endpoint."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.assemble import Plan, Sources, plan_run, simulated_model
from promptcodebook.calls import Chat, Reply, Request, Usage
from promptcodebook.config import load_config
from promptcodebook.doctor.checkup import checkup
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import StackResources
from promptcodebook.method.executor import roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.paper.tasks import pupa
from promptcodebook.paper.tasks.pupa.score import leaked_units
from promptcodebook.paper.tasks.pupa.task import NoUnitCheck, load_pupa, units_of
from promptcodebook.report.page import render_report
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.store.events import Ended, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.task import asks_nobody, load_task
from promptcodebook.types import Example, Output, Prompt, Rewrite
from tests.build.cli import Result, pco, served
from tests.build.server import Server


def test_what_ships() -> None:
    task = load_task("pupa")
    assert task.reward_range == (-1.0, 1.0)
    assert "quality - 1 x leakage" in task.description and "--data" in task.description
    for _, examples in task.dataset.items():
        for example in examples:
            units = units_of(example)
            # A unit that the query does not hold could neither leak nor be removed.
            assert units and leaked_units(example.input, units) == units


def test_doctor_warns_of_a_shared_endpoint_even_where_none_is_named(tmp_path: Path) -> None:
    def endpoint(**settings: Any) -> list[tuple[str, str]]:
        config = load_config({"lm": "simulated", "cache": False, **settings})

        async def looked() -> list[tuple[str, str]]:
            found = [s async for s in checkup(config, tmp_path, tmp_path / "runs")]
            return [(f.level, f.what) for s in found if s.title == "untrusted" for f in s.findings]

        return asyncio.run(looked())

    [(level, what)] = endpoint(task="pupa")
    assert level == "warn" and "executor" in what
    own = {"untrusted": {"model": "simulated?world=2"}}
    assert [level for level, _ in endpoint(task="pupa", roles=own)] == ["warn"]
    apart = {"untrusted": {"model": "http://127.0.0.1:9/v1#m"}}
    assert [level for level, _ in endpoint(task="pupa", roles=apart, retries=0)] == ["ok"]
    assert endpoint(task="constraints") == []


# A whole run of PUPA: the judge is asked, and nothing private goes outside or into a policy.


LEAKED = "Hide names such as Mirelle Ostvang."
OUTSIDE = "Write a general text of a few sentences."
VERDICT = json.dumps({"reasoning": "so", "at_least_as_good": True, "count": 1})


class Recorded:
    """The simulated model, with the roles that matter here played by the script."""

    def __init__(self) -> None:
        plan = plan_run(load_config({"task": "pupa", "lm": "simulated"}))
        self._rest = simulated_model("pupa", plan.dataset, parse_spec("simulated"))
        self.asked: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.asked.append(request)
        match request.role:
            case "executor":
                text = f"reasoning: all is private\nllm_request: {OUTSIDE}"
            case "untrusted":
                text = "A general text for [NAME]."
            case "judge":
                text = VERDICT
            case "updater":
                text = LEAKED
            case _:
                return await self._rest(request)
        return Reply(text, usage=Usage(1, 5, 5))

    def of(self, role: str) -> list[Request]:
        return [request for request in self.asked if request.role == role]


async def ran(lm: Recorded, folder: Path, **settings: str) -> Run:
    update = {"epochs": 1, "batch_size": 5}
    config = load_config({"preset": "quick", "task": "pupa", "update": update, **settings})
    return await finish(open_run(config, Sources(lm=lm), Where(folder)))


def reported(run: Run) -> str:
    known = {e.id: e for _, es in load_task("pupa").dataset.items() for e in es}
    with closing(RunStore.open(run.path)) as store:
        return html.unescape(render_report(store, known))


async def test_a_run_asks_the_judge_and_keeps_private_pieces_home(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lm = Recorded()
    run = await ran(lm, tmp_path)
    assert run.ended == "finished"
    assert lm.of("judge") and lm.of("untrusted")
    units = {u for _, es in load_task("pupa").dataset.items() for e in es for u in units_of(e)}
    for request in lm.of("untrusted"):
        assert [m.content for m in request.messages] == [OUTSIDE]
    assert leaked_units(caplog.text, units) == ()
    assert leaked_units((run.path / "policy.json").read_text("utf-8"), units) == ()
    with closing(RunStore.open(run.path)) as store:
        rewrites = [rewrite for step in store.steps() for rewrite in step.rewrites]
    assert rewrites and not any(rewrite.kept for rewrite in rewrites)
    assert {r.reason for r in rewrites if r.after == LEAKED} == {
        "it holds a private piece of training example pupa-own-00"
    }
    # Our own examples are not private: a report shows them.
    shown = reported(run)
    assert leaked_units(shown, units) != () and OUTSIDE in shown and LEAKED in shown


async def test_a_report_hides_a_data_folder_and_the_stand_in_asks_no_judge(
    tmp_path: Path,
) -> None:
    given, lm = tmp_path / "given", Recorded()
    shutil.copytree(Path(pupa.__file__).parent / "examples", given)
    run = await ran(lm, tmp_path / "theirs", data_dir=str(given), reward="stand-in")
    assert run.ended == "finished" and lm.of("judge") == [] and lm.of("untrusted")
    hidden = reported(run)
    units = {u for e in load_task("pupa").dataset.train for u in units_of(e)}
    assert leaked_units(hidden, units) == () and OUTSIDE not in hidden
    assert "stage craft" in hidden and "(private: " in hidden and "it holds a private" in hidden


# What a rewrite must not take over from the training queries.


CHECK = NoUnitCheck(
    [
        Example("a", "q", fields={"pii_units": "mirelle ostvang||al||fennick lane 14"}),
        Example("b", "q", fields={"pii_units": "mari||"}),
    ]
)


@pytest.mark.parametrize(("text", "before", "whose"), [
    ("Hide names such as Mirelle  Ostvang.", "", "example a"),
    ("Drop streets (Fennick Lane, 14).", "", "example a"),
    ("Ask Mari first.", "", "example b"),
    ("Summarise the text.", "", None),
    ("Speak to al, and be brief.", "", None),
    ("Hide the name Mirelle.", "", None),
    ("Ask Mari, then write.", "Ask Mari first.", None),
])  # fmt: skip
def test_a_private_piece_is_refused_by_its_owner(text: str, before: str, whose: str | None) -> None:
    refusal = CHECK("c3", text, before, ())
    assert (refusal is None) == (whose is None)
    if refusal is not None:
        assert whose is not None and whose in refusal
        assert not any(word in refusal.lower() for word in ("mirelle", "fennick", "mari"))


# What a run on private rows says when things go wrong: never a word of a row.


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
    text = " ".join(str(m["content"]) for m in body["messages"])
    return web.json_response({"error": {"message": f"cannot read: {text[-250:]}"}}, status=400)


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
    given = ("--task", "pupa", "--data", str(data), "--lm", server.spec)
    doctor = pco("doctor", *given, cwd=tmp_path)
    assert NAME not in doctor.out + doctor.err
    with closing(RunStore.open(run)) as store:
        events = list(store.events(full=True))
    endings = [event for event in events if isinstance(event, Ended)]
    failures = [t.rollout.failure for event in events for t in getattr(event, "traces", ())]
    assert endings and failures
    assert NAME not in repr(endings) + repr(failures)


def test_of_public_data_the_servers_words_are_told(tmp_path: Path, server: Server) -> None:
    """Else the tests above would prove nothing."""
    stderr = pco("train", "--task", "pupa", "--lm", server.spec, cwd=tmp_path).err
    assert "cannot read: " in stderr and "withheld" not in stderr


class Program:
    name = "program"
    stages: tuple[str, ...] = ()
    roles: frozenset[Any] = frozenset()

    def __init__(self, raises: bool) -> None:
        self._raises = raises

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        if self._raises:
            raise KeyError(example.input)
        return Output("an answer")


def _reward(example: Example, output: str) -> float:
    raise ValueError(example.input)


@pytest.mark.parametrize(("raises", "reward", "stage", "kind"), [
    (True, _reward, "execute", "KeyError"),
    (False, _reward, "reward", "ValueError"),
    (False, lambda e, y: e.input, "reward", "RewardError"),
])  # fmt: skip
async def test_code_that_quotes_a_row_when_it_fails_is_told_by_its_kind(
    data: Path, raises: bool, reward: Any, stage: str, kind: str
) -> None:
    plan = plan_run(load_config({"task": "pupa", "data_dir": str(data), "lm": "own"}), Sources())
    task = replace(load_pupa(data), program=Program(raises), reward=asks_nobody(reward))
    assert task.private
    own = StackResources(client=ScriptedLM().reply_with(lambda request: "fine"))
    assembled = Plan(plan.config, task, plan.templates).connect(own)
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
    texts = ("Be brief.", f"Greet {NAME}.", f"greet {NAME}")
    rewrite = Rewrite(1, *texts, False, f'it copies "{NAME}"')
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
