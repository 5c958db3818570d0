"""`pco bench`: every cell run, reported and tabled; the same command again skips and goes on."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import Budget, load_config
from promptcodebook.errors import BudgetReached
from promptcodebook.run.opening import Where
from promptcodebook.run.optimize import BENCHMARKS, CellState, run_once
from promptcodebook.store.runs import list_runs
from tests.cli.invoked import pco

SMALL = (
    *("--set", "update.epochs=1", "--set", "update.batch_size=2"),
    *("--set", "validation.every=0", "--set", "keep=last"),
)


def test_a_table_a_report_each_and_nothing_twice(tmp_path: Path) -> None:
    first = pco("bench", "quick", "--task", "aime", *SMALL, cwd=tmp_path)
    assert first.code == 0, first.err
    assert "suite quick: 1 finished, 0 failed" in first.out
    scores, row, _, cells, cell = first.out.splitlines()[2:7]
    assert scores.split()[:2] == ["task", "n"] and row.split()[:2] == ["aime", "4"]
    assert cells.split()[:2] == ["task", "model"] and cell.split()[:2] == ["aime", "simulated"]
    assert cell.split()[-1] == "ran"
    assert "not that it is any good" in first.out
    [report] = (tmp_path / "runs/bench/quick").glob("*/report.html")
    assert "simulated" in report.read_text("utf-8")
    again = pco("bench", "quick", "--task", "aime", *SMALL, cwd=tmp_path)
    assert "aime: finished before, skipped" in again.err
    assert again.out == first.out.replace("  ran\n", "  skipped\n")
    [run] = (tmp_path / "runs/bench/quick").iterdir()
    assert report.parent == run


@pytest.mark.parametrize("out", [(), ("--out", "my cells")])
def test_what_a_stopped_cell_says_to_type_goes_on_with_it(
    tmp_path: Path, out: tuple[str, ...]
) -> None:
    typed = ("bench", "quick", "--task", "aime", *SMALL, *out)
    stopped = pco(*typed, "--budget", "20calls", "--plain", cwd=tmp_path)
    [printed] = re.findall(r"Ctrl-C stops, `pco (.*)` resumes it", stopped.err)
    run = shlex.split(printed)[-1]
    if not out:
        assert run in pco("runs", "list", cwd=tmp_path).out
    assert "budget" in pco("runs", "show", run, cwd=tmp_path).out
    assert stopped.code == 3 and "the same command resumes it" in stopped.err
    resumed = pco(*shlex.split(printed), "--budget", "10000calls", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    again = pco(*typed, "--json", cwd=tmp_path)
    assert again.code == 0 and "aime: finished before, skipped" in again.err
    [cell] = again.json["cells"]
    assert cell["state"] == "skipped" and cell["simulated"] and again.json["failed"] == {}
    assert len(list(tmp_path.glob("**/report.html"))) == 1


def test_one_that_fails_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "aime").mkdir(parents=True)
    for split in ("train", "val", "test"):
        rows = [{"id": f"{split}{n}", "problem": f"{split} {n}", "answer": n} for n in range(3)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (data / "aime" / f"{split}.jsonl").write_text(text, "utf-8")
    done = pco("bench", "quick", "--data", str(data), *SMALL, cwd=tmp_path)
    assert done.code == 1
    others = len(BENCHMARKS) - 1  # without aime
    assert f"1 finished, {others} failed" in done.out
    assert "no train.jsonl in" in done.out
    assert "--data DIR" in done.out


def test_a_missing_extra_stops_the_suite_before_its_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    tasks = ("--task", "aime", "--task", "livebench_math")
    told = pco("bench", "quick", *tasks, *SMALL, cwd=tmp_path)
    told.error(2, "comparing mathematical answers needs", "pip install 'promptcodebook[bench]'")
    assert not (tmp_path / "runs").exists()


def test_what_was_mistyped(tmp_path: Path) -> None:
    for typed, said in (
        (("bench", "quik"), "no suite 'quik' (did you mean 'quick'?)"),
        (("bench", "quick", "--task", "amie"), "no task 'amie' (did you mean 'aime'?)"),
        (("bench", "quick", "--task", "constraints"), "no task 'constraints'"),
        (("reproduce", "abblation"), "did you mean 'ablation'"),
        (("reproduce", "small-real-model", "--preset", "paper"), "--preset quick or default"),
    ):
        pco(*typed, cwd=tmp_path).error(2, said)


def once(folder: Path, **changed: Any) -> tuple[Path, CellState]:
    """A run of a few steps, by its settings."""
    small = {
        "lm": "simulated",
        "preset": "quick",
        "task": "aime",
        "update": {"epochs": 1, "batch_size": 2},
        "validation": {"every": 0},
        "keep": "last",
    }
    return run_once(load_config(small, changed), Sources(folder), Where(folder / "cells"))


def test_another_setting_or_other_data_is_another_run(tmp_path: Path) -> None:
    first = once(tmp_path)
    seeded = once(tmp_path, seed=7)
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        rows = [f'{{"id":"{split}{n}","problem":"{split} {n}","answer":"{n}"}}' for n in range(4)]
        (data / f"{split}.jsonl").write_text("\n".join(rows), "utf-8")
    other = once(tmp_path, data_dir=str(data))
    assert [state for _, state in (first, seeded, other)] == ["ran"] * 3
    assert len({path for path, _ in (first, seeded, other)}) == 3
    # How much may be spent and how fast is no part of what a run is.
    again = once(tmp_path, concurrency=2, budget={"calls": 10**6})
    assert again == (first[0], "skipped")


def test_a_stopped_run_is_resumed_unless_it_is_compared_at_its_budget(tmp_path: Path) -> None:
    with pytest.raises(BudgetReached):
        once(tmp_path, budget={"calls": 20})
    [stopped] = list_runs(tmp_path / "cells")
    config = load_config(
        {"lm": "simulated", "preset": "quick", "task": "aime", "update": {"epochs": 1}}
    ).model_copy(update={"budget": Budget(calls=20)})
    where = Where(tmp_path / "budgets")
    made = [run_once(config, Sources(tmp_path), where, at_budget=True) for _ in range(2)]
    assert [state for _, state in made] == ["ran", "skipped"] and made[0][0] == made[1][0]
    more = config.model_copy(update={"budget": Budget(calls=30)})
    assert run_once(more, Sources(tmp_path), where, at_budget=True)[1] == "ran"
    path, state = once(tmp_path)
    assert state == "resumed" and path.name == stopped.id


# `pco reproduce`: a page by its name, and what is typed next where it cannot be made.


def test_a_page_is_written_once(tmp_path: Path) -> None:
    sweep = ("reproduce", "sweep-s", "--preset", "quick", "--out", "results", "--json")
    first = pco(*sweep, cwd=tmp_path)
    assert first.code == 0, first.err
    told = first.json
    assert told["finished"] == ["S-1/0", "S-2/0", "S-4/0"] and told["missing"] == {}
    assert "S-1/0 (1 of 3)" in first.err
    page = (tmp_path / told["page"]).read_text("utf-8")
    assert told["page"] == "results/sweep-s.md" and "**Simulated.**" in page
    beside = {path.suffix for path in (tmp_path / "results" / "sweep-s").iterdir()}
    assert beside == {".tex", ".svg", ".png", ".json"}
    again = pco(*sweep, cwd=tmp_path)
    assert "(1 of 3)" not in again.err and again.json == told
    [folder] = (tmp_path / "runs/bench").iterdir()
    assert folder.name == "tables-simulated"
