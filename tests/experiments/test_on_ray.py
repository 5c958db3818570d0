"""Cells as tasks of a cluster: what is handed over, what comes back, and a real Ray here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.experiments import on_ray
from promptcodebook.experiments.experiment import Order
from promptcodebook.experiments.lab import open_lab
from promptcodebook.experiments.on_ray import OnRay, measure_job
from promptcodebook.experiments.reproduce import experiment_named

SWEEP = experiment_named("sweep-s")


def job(folder: Path, **changes: Any) -> str:
    """The first cell, as the lab hands it over."""
    lab = open_lab(folder, "simulated")
    order = Order(SWEEP, "quick", 1)
    try:
        text = OnRay(order, lab, "local", 2, 64)._job(SWEEP.cells(order, "simulated")[0])  # pyright: ignore[reportPrivateUsage]
    finally:
        lab.close()
    return json.dumps({**json.loads(text), **changes})


def test_a_task_on_another_machine_sends_its_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    home = tmp_path / "lab"
    answer = measure_job(job(home, machine="another"))
    assert not list(home.glob("2*"))
    result = on_ray._unpacked(answer, home)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(result, dict) and result["rows"]["learned"]["rewards"]
    [run] = home.glob("2*")
    assert run.name == result["run"] and (run / "run.sqlite").is_file()


def test_a_task_on_this_machine_works_in_the_labs_folder(tmp_path: Path) -> None:
    answer = measure_job(job(tmp_path))
    line, _, runs = answer.partition(b"\n")
    assert runs == b"" and json.loads(line)["result"]["run"] == next(tmp_path.glob("2*")).name


def test_a_machine_with_another_version_measures_nothing(tmp_path: Path) -> None:
    outcome = on_ray._unpacked(measure_job(job(tmp_path, version="0.0.1")), tmp_path)  # pyright: ignore[reportPrivateUsage]
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
    until = time.monotonic() + 120
    while not list(there.rglob("cells/*/0.json")):
        assert time.monotonic() < until and first.poll() is None
        time.sleep(0.05)
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
