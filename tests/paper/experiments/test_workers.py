"""Cells at work side by side: one limit for all, one order where it matters, one Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.base.sync import run_sync
from promptcodebook.calls import Reply, Request
from promptcodebook.errors import DataError, Interrupted
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import reproduce as reproducing
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, open_lab
from promptcodebook.paper.experiments.page import Page
from tests.build.clock import until
from tests.build.server import Server, says

SPEC = "http://127.0.0.1:9/v1#scripted"
SETTINGS = {
    "task": "constraints",
    "lm": SPEC,
    "size": 4,
    "select": 1,
    "update": {"epochs": 1, "batch_size": 4, "text_updates": False},
    "router": {"kind": "outcomes"},
    "compose": "verbatim",
    "keep": "last",
    "validation": {"every": 0, "subset": 2},
    "verdict_examples": 4,
}


class Counting:
    """Answers slowly, and knows how many calls were in flight at the most, in how many loops."""

    def __init__(self, seconds: float = 0.01) -> None:
        self._seconds = seconds
        self.now = self.most = self.calls = 0
        self.loops: set[int] = set()

    async def __call__(self, request: Request) -> Reply:
        self.calls += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(self._seconds)
        self.now -= 1
        return Reply("ok")


def order(cells: Sequence[Cell]) -> shared.ExperimentRequest:
    one = shared.Experiment(
        "e", "", lambda order, spec: cells, lambda measured: Page("e", []), presets=("quick",)
    )
    return shared.ExperimentRequest(one, "quick", 1)


def made(
    cells: Sequence[Cell], lab: Lab, width: int, told: list[str] | None = None
) -> shared.Results:
    tell = (told if told is not None else []).append
    return reproducing.measure(order(cells), lab, tell, reproducing.Threads(lab, width).measure)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with closing(open_lab(tmp_path, SPEC, lm=Counting())) as made:
        yield made


def waiting_for(name: str, others: threading.Barrier) -> Cell:
    def together(lab: Lab) -> CellResult:
        others.wait(60)
        return {"name": name}

    return Cell(name, {}, together)


def test_so_many_cells_are_at_work_at_once_and_results_keep_their_order(lab: Lab) -> None:
    three, told = threading.Barrier(3), list[str]()
    measured = made([waiting_for(n, three) for n in "cabfde"], lab, 3, told)
    assert list(measured.results) == list("cabfde") and not measured.missing
    assert told[0] == "c (1 of 6)" and "5 of 6 cells finished" in told[-1] and "left" in told[-1]


@pytest.mark.slow
def test_runs_at_once_share_one_loop_and_an_equal_run_is_made_once(tmp_path: Path) -> None:
    lm = Counting()
    lab = open_lab(tmp_path, SPEC, lm=lm)
    cells = [shared.trained(f"{name}/0", {**SETTINGS, "seed": int(name)}) for name in "01234"]
    again = shared.trained("again/0", {**SETTINGS, "seed": 0})
    measured = made([*cells, again], lab, 6)
    lab.close()
    assert not measured.missing and len(lm.loops) == 1
    runs = {name: result["run"] for name, result in measured.results.items()}
    assert runs["again/0"] == runs["0/0"] and len(set(runs.values())) == 5


def test_a_run_under_another_budget_is_another_run(lab: Lab) -> None:
    small = shared.trained("small/0", {**SETTINGS, "budget": {"calls": 6}})
    large = shared.trained("large/0", {**SETTINGS, "budget": {"calls": 3_000}})
    measured = made([small, large], lab, 1)
    ended = {name: result["ended"] for name, result in measured.results.items()}
    assert ended == {"small/0": "budget", "large/0": "finished"}
    assert measured.results["large/0"]["rows"].keys() > measured.results["small/0"]["rows"].keys()


def test_a_cell_waits_for_those_it_comes_after(lab: Lab) -> None:
    seen, noted = list[str](), threading.Event()

    def noting(name: str) -> Cell:
        def note(lab: Lab) -> CellResult:
            if name == "first":
                noted.wait(60)
            seen.append(name)
            noted.set()
            return {}

        return Cell(name, {}, note, after=("first",) if name == "second" else ())

    made([noting(name) for name in ("second", "first", "third")], lab, 2)
    assert seen == ["third", "first", "second"]


def test_one_that_fails_is_noted_and_the_others_go_on(lab: Lab) -> None:
    two = threading.Barrier(2)

    def fail(lab: Lab) -> CellResult:
        raise DataError("no such column")

    measured = made([Cell("bad", {}, fail), *(waiting_for(n, two) for n in "ab")], lab, 3)
    assert list(measured.results) == ["a", "b"] and measured.missing == {"bad": "no such column"}
    assert measured.stop is None


def asleep(started: threading.Event) -> Cell:
    async def sleep() -> None:
        started.set()
        await asyncio.sleep(60)

    def work(lab: Lab) -> CellResult:
        run_sync(sleep(), relay=lab.relay)
        return {}

    return Cell("asleep", {}, work)


def test_a_stop_in_one_ends_all_and_keeps_what_was_finished(lab: Lab) -> None:
    started = threading.Event()

    def stop(lab: Lab) -> CellResult:
        started.wait(60)
        raise Interrupted("by the user")

    quick = Cell("quick", {}, lambda lab: {"it": 1})
    later = Cell("later", {}, lambda lab: {}, after=("stops",))
    measured = made([asleep(started), Cell("stops", {}, stop), quick, later], lab, 3)
    assert isinstance(measured.stop, Interrupted)
    assert list(measured.results) == ["quick"]
    assert set(measured.missing) == {"asleep", "stops", "later"}


@pytest.mark.slow
async def test_the_limit_of_a_labs_model_is_that_of_all_its_cells(tmp_path: Path) -> None:
    server = Server()
    server.default = says("ok", delay=0.02)
    await server.start()
    settings = {**SETTINGS, "lm": server.spec}
    cells = [shared.trained(f"s/{seed}", {**settings, "seed": seed}) for seed in range(4)]
    lab = open_lab(tmp_path / "three", server.spec, concurrency=3)
    try:
        measured = await asyncio.to_thread(made, cells, lab, 4)
        await asyncio.to_thread(lab.close)
    finally:
        await server.stop()
    assert not measured.missing and not any(r["stopped"] for r in measured.results.values())
    assert server.peak == 3


# Cells as tasks of a cluster: what is handed over, what comes back, and a real Ray here.


SWEEP = reproducing.experiment_named("sweep-s")


def job(folder: Path, **changes: Any) -> str:
    """The first cell, as the lab hands it over."""
    lab = open_lab(folder, "simulated")
    order = shared.ExperimentRequest(SWEEP, "quick", 1)
    try:
        text = reproducing.OnRay(order, lab, "local", 2, 64)._job(
            SWEEP.cells(order, "simulated")[0]
        )  # pyright: ignore[reportPrivateUsage]
    finally:
        lab.close()
    return json.dumps({**json.loads(text), **changes})


def test_a_task_on_another_machine_sends_its_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    home = tmp_path / "lab"
    answer = reproducing.measure_job(job(home, machine="another"))
    assert not list(home.glob("2*"))
    result = reproducing._unpacked(answer, home)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(result, dict) and result["rows"]["learned"]["rewards"]
    [run] = home.glob("2*")
    assert run.name == result["run"] and (run / "run.sqlite").is_file()


def test_a_task_on_this_machine_works_in_the_labs_folder(tmp_path: Path) -> None:
    answer = reproducing.measure_job(job(tmp_path))
    line, _, runs = answer.partition(b"\n")
    assert runs == b"" and json.loads(line)["result"]["run"] == next(tmp_path.glob("2*")).name


def test_a_machine_with_another_version_measures_nothing(tmp_path: Path) -> None:
    outcome = reproducing._unpacked(
        reproducing.measure_job(job(tmp_path, version="0.0.1")), tmp_path
    )  # pyright: ignore[reportPrivateUsage]
    assert f"has promptcodebook {version('promptcodebook')}, and 0.0.1" in str(outcome)
    assert not list(tmp_path.glob("2*"))


def reproduce(folder: Path, *more: str) -> subprocess.Popen[str]:
    typed = ("reproduce", "sweep-s", "--preset", "quick", "--lm", "simulated", "--json", *more)
    return subprocess.Popen(
        [sys.executable, "-m", "promptcodebook.cli", *typed],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rewards(told: dict[str, Any]) -> dict[str, Any]:
    return {
        cell: {name: row["rewards"] for name, row in result["rows"].items()}
        for cell, result in told["results"].items()
    }


@pytest.mark.slow
def test_ctrl_c_on_a_cluster_keeps_what_is_finished_and_the_end_is_that_of_one_machine(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    alone, _ = reproduce(here, "--cells", "1", "--seeds", "2").communicate(timeout=120)
    first = reproduce(there, "--ray", "local", "--cells", "2", "--seeds", "2")
    asyncio.run(until(lambda: any(there.rglob("cells/*/0.json"))))
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=120)
    assert first.returncode == 130 and "the same command resumes it" in err
    kept = json.loads(out)["finished"]
    assert 1 <= len(kept) < 6
    second = reproduce(there, "--ray", "local", "--cells", "2", "--seeds", "2")
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert all(f"{name} (" not in err for name in kept)
    assert rewards(json.loads(out)) == rewards(json.loads(alone))


@pytest.mark.slow
def test_an_address_where_no_cluster_is_says_what_to_type(tmp_path: Path) -> None:
    tried = reproduce(tmp_path, "--ray", "127.0.0.1:9")
    _, err = tried.communicate(timeout=120)
    assert tried.returncode == 2 and "no Ray cluster could be joined at 127.0.0.1:9" in err
    assert "ray start --head" in err
