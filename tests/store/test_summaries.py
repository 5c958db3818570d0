"""Lines about runs that are kept: never a stale one, and never a reason to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.paths import cache_folder
from promptcodebook.store import runs as module
from promptcodebook.store.events import Ended
from promptcodebook.store.header import Header
from promptcodebook.store.lock import RunLock
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import list_runs, remove_run


@pytest.fixture
def runs(tmp_path: Path, header: Header) -> Path:
    store = RunStore.create(tmp_path / "runs", header)
    store.append(Ended("budget"))
    store.close()
    return tmp_path / "runs"


def never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> RunStore:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(RunStore, "open", refuse)


def test_a_run_that_has_ended_is_opened_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list_runs(runs)
    never_opened(monkeypatch)
    assert list_runs(runs) == first and first[0].ended == "budget"
    assert list_runs(runs.parent / "runs" / ".." / "runs") != []  # the same folder, said otherwise


def test_it_says_whether_a_model_was_simulated(tmp_path: Path, header: Header) -> None:
    for name, model in {"real": "openai/m", "served": "http://localhost:1/v1#simulated"}.items():
        config = {"lm": "openai/m", "roles": {"critic": {"model": model}}}
        store = RunStore.create(tmp_path / "runs", replace(header, id=name, config=config))
        store.append(Ended("budget"))
        store.close()
    for _ in ("read", "kept"):
        assert {run.id: run.simulated for run in list_runs(tmp_path / "runs")} == {
            "real": False,
            "served": True,
        }


def test_one_that_was_written_to_since_is_read_anew(runs: Path) -> None:
    [before] = list_runs(runs)
    store = RunStore.open(before.path, write=True)
    assert list_runs(runs)[0].running
    store.append(Ended("finished"))
    store.close()
    assert list_runs(runs)[0].ended == "finished"


def test_one_whose_lock_was_taken_since_is_running_though_nothing_is_written(runs: Path) -> None:
    [before] = list_runs(runs)
    lock = RunLock(before.path)
    assert list_runs(runs)[0].writer == os.getpid()
    lock.release()
    assert list_runs(runs) == [before]


def test_a_list_of_kept_runs_opens_nothing_and_waits_for_no_pydantic(runs: Path) -> None:
    list_runs(runs)
    code = (
        "import sys; from pathlib import Path; from promptcodebook.store.runs import list_runs;"
        "print(list_runs(Path(sys.argv[1]))[0].ended, 'pydantic' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(runs)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["budget", "False"]


def test_a_run_without_an_end_is_not_kept(
    tmp_path: Path, header: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunStore.create(tmp_path, header).close()
    assert list_runs(tmp_path)[0].ended is None
    never_opened(monkeypatch)
    with pytest.raises(AssertionError):
        list_runs(tmp_path)


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"form": 1, "runs": 3}', "\x00"])
def test_a_damaged_file_of_summaries_is_done_without(runs: Path, damage: str) -> None:
    first = list_runs(runs)
    [file] = (cache_folder() / "runs").iterdir()
    kept = json.loads(file.read_text("utf-8"))
    file.write_text(damage, "utf-8")
    assert list_runs(runs) == first
    for run in kept["runs"].values():
        run["summary"] = {"id": 3}
    kept["runs"]["another"] = 7
    file.write_text(json.dumps(kept), "utf-8")
    assert list_runs(runs) == first


def test_where_nothing_can_be_kept_runs_are_listed_all_the_same(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    assert len(list_runs(runs)) == 1


def test_runs_that_are_gone_are_forgotten(runs: Path) -> None:
    [run] = list_runs(runs)
    remove_run(run.path)
    assert list_runs(runs) == []
    [file] = (cache_folder() / "runs").iterdir()
    assert json.loads(file.read_text("utf-8"))["runs"] == {}
