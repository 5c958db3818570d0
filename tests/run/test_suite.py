"""Cells of a suite: begun once, resumed where they stopped, skipped when they are done."""

import sys
from pathlib import Path

import pytest

from promptcodebook.config import load_config
from promptcodebook.errors import BudgetReached, ConfigError, MissingExtra, TaskError
from promptcodebook.run.suite import SUITES, Cell, run_cell, suite_named
from promptcodebook.store.runs import list_runs

SMALL = {
    "lm": "simulated",
    "update": {"epochs": 2, "batch_size": 3},
    "validation": {"every": 2, "subset": 4, "finalists": 1},
}


def cell(folder: Path, task: str = "aime", **changed: object) -> Cell:
    config = load_config(SUITES["quick"].settings, SMALL, {"task": task, **changed})
    return Cell(config, folder, folder / "cells")


def test_a_finished_cell_is_read_back(tmp_path: Path) -> None:
    first = run_cell(cell(tmp_path), "typed")
    again = run_cell(cell(tmp_path), "typed")
    assert (first.state, again.state) == ("ran", "skipped")
    assert (again.run, again.rows, again.calls) == (first.run, first.rows, first.calls)
    assert len(list_runs(tmp_path / "cells")) == 1
    assert first.simulated
    assert first.updates == 2
    assert [row["name"] for row in first.rows] == [
        "present",
        "concat",
        "best_fixed",
        "untrained",
        "learned",
    ]
    assert first.base == first.rows[0] and first.result == first.rows[-1]
    assert first.rows[-1]["score"]["n"] == 4
    assert len(first.inputs) == 12


def test_another_setting_or_other_data_is_another_cell(tmp_path: Path) -> None:
    first = run_cell(cell(tmp_path))
    seeded = run_cell(cell(tmp_path, seed=7))
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        rows = [f'{{"id":"{split}{n}","problem":"{split} {n}","answer":"{n}"}}' for n in range(4)]
        (data / f"{split}.jsonl").write_text("\n".join(rows), "utf-8")
    other = run_cell(cell(tmp_path, data_dir=str(data)))
    assert [r.state for r in (first, seeded, other)] == ["ran"] * 3
    assert len({r.run for r in (first, seeded, other)}) == 3
    # How much may be spent and how fast is no part of what a cell is.
    assert run_cell(cell(tmp_path, concurrency=2, budget={"calls": 10**6})).run == first.run


def test_a_stopped_cell_goes_on(tmp_path: Path) -> None:
    whole = run_cell(cell(tmp_path / "whole"))
    with pytest.raises(BudgetReached):
        run_cell(cell(tmp_path / "parts", budget={"calls": whole.calls // 3}))
    [stopped] = list_runs(tmp_path / "parts" / "cells")
    assert stopped.ended == "budget"
    done = run_cell(cell(tmp_path / "parts"))
    assert done.state == "resumed"
    assert done.run == stopped.id
    assert [r["score"] for r in done.rows] == [r["score"] for r in whole.rows]
    assert run_cell(cell(tmp_path / "parts")).state == "skipped"


def test_a_cell_that_cannot_begin_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        run_cell(cell(tmp_path, data_dir=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="needs a ready-made task"):
        run_cell(cell(tmp_path, task=""))
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("task", "module"), [("livebench_math", "lark"), ("hotpotqa", "bm25s"), ("hover", "Stemmer")]
)
def test_a_cell_whose_package_is_missing_is_never_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        run_cell(cell(tmp_path, task))
    assert caught.value.hint == "pip install 'promptcodebook[bench]'"
    assert not (tmp_path / "cells").exists()


def test_suites_and_their_tasks() -> None:
    suite = suite_named("quick")
    assert "aime" in suite.tasks()
    assert "constraints" not in suite.tasks()
    assert suite.tasks(["aime"]) == ("aime",)
    with pytest.raises(ConfigError, match="did you mean 'aime'"):
        suite.tasks(["amie"])
    with pytest.raises(ConfigError, match=r"unknown suite 'quik'.*did you mean 'quick'"):
        suite_named("quik")
