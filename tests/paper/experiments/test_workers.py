"""Cells at work side by side: one limit for all, one order where it matters, one Ctrl-C."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from promptcodebook.base.sync import run_sync
from promptcodebook.calls import Reply, Request
from promptcodebook.errors import DataError, Interrupted
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import reproduce as reproducing
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, open_lab
from promptcodebook.paper.experiments.page import Page
from tests.build.cases import table

SPEC = "http://127.0.0.1:9/v1#scripted"
[SETTINGS] = table(__file__, "settings")


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
    return reproducing.measure(order(cells), lab, tell, width)


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
    assert told[0] == "c (1 of 6)" and "5 of 6 cells finished" in told[-1]
    assert ["left" in line for line in told if "finished" in line] == [False, False, *[True] * 3]


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
