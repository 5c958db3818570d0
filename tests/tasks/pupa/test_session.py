"""A whole run of PUPA: the judge is asked, and nothing private goes outside or into a policy."""

from __future__ import annotations

import html
import json
import logging
import shutil
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.config import load_config
from promptcodebook.lm.spec import parse_spec
from promptcodebook.report import render_report
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.store.run import RunStore
from promptcodebook.tasks import pupa
from promptcodebook.tasks.pupa.judge import units_of
from promptcodebook.tasks.pupa.score import leaked_units
from promptcodebook.tasks.task import load_task

LEAKED = "Hide names such as Mirelle Ostvang."
OUTSIDE = "Write a general text of a few sentences."
VERDICT = json.dumps({"reasoning": "so", "at_least_as_good": True, "count": 1})


class Recorded:
    """The simulated model, with the roles that matter here played by the script."""

    def __init__(self) -> None:
        plan = plan_run(load_config({"task": "pupa", "lm": "simulated"}))
        self._rest = plan.simulated(parse_spec("simulated"))
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


async def ran(lm: Recorded, folder: Path, reward: str = "", data_dir: str = "") -> Run:
    tree = {
        "data_dir": data_dir,
        "preset": "quick",
        "task": "pupa",
        "reward": reward,
        "update": {"epochs": 1, "batch_size": 5},
    }
    return await finish(open_run(load_config(tree), Sources(lm=lm), Where(folder)))


@pytest.fixture(autouse=True)
def _own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PCO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no copy here"))


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
    store = RunStore.open(run.path)
    rewrites = [rewrite for step in store.steps() for rewrite in step.rewrites]
    store.close()
    assert rewrites and not any(rewrite.kept for rewrite in rewrites)
    assert {r.reason for r in rewrites if r.after == LEAKED} == {
        "it holds a private piece of training example pupa-own-00"
    }


def reported(run: Run) -> str:
    store = RunStore.open(run.path)
    try:
        inputs = {e.id: e.input for _, es in load_task("pupa").dataset.items() for e in es}
        return html.unescape(render_report(store, inputs))
    finally:
        store.close()


async def test_a_report_shows_our_own_examples_and_of_a_data_folder_their_lengths(
    tmp_path: Path,
) -> None:
    own = load_task("pupa").dataset
    shutil.copytree(Path(pupa.__file__).parent / "examples", tmp_path / "given")
    units = {u for e in own.train for u in units_of(e)}
    shown = reported(await ran(Recorded(), tmp_path / "own"))
    assert leaked_units(shown, units) != () and OUTSIDE in shown and LEAKED in shown
    hidden = reported(await ran(Recorded(), tmp_path / "theirs", data_dir=str(tmp_path / "given")))
    assert leaked_units(hidden, units) == () and OUTSIDE not in hidden
    assert "stage craft" in hidden and "(private: " in hidden and "it holds a private" in hidden


async def test_the_stand_in_asks_no_judge(tmp_path: Path) -> None:
    lm = Recorded()
    run = await ran(lm, tmp_path, reward="stand-in")
    assert run.ended == "finished"
    assert lm.of("judge") == [] and lm.of("untrusted")
