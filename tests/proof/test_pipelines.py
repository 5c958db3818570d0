"""Every pipeline over HTTP among faults: it completes, and both sides count the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.proof.runs import finished
from tests.proof.served import served

pytestmark = pytest.mark.slow

TASKS = ("aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa")
FAULTS = "faults=429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05"
SETTINGS: dict[str, Any] = {
    "update": {"epochs": 2, "batch_size": 4},
    "validation": {"every": 2, "subset": 4, "finalists": 1},
    "cache": False,
}
WIRE = {"429": "rate_limited", "500": "server_error", "drop": "dropped"}


@pytest.mark.parametrize("task", TASKS)
def test_a_pipeline_comes_through_the_tour_of_faults(task: str, tmp_path: Path) -> None:
    with served(f"simulated?{FAULTS}", task) as server:
        run = finished(tmp_path, server.lm, {**SETTINGS, "task": task})
        stats = server.stats()
    assert list(run.rewards()) == ["present", "concat", "best_fixed", "untrained", "learned"]
    tallies = run.tallies()
    counted = {name: tallies.get(ours, 0) for name, ours in WIRE.items()}
    assert counted == {name: stats["faults"][name] for name in WIRE}
    assert sum(counted.values()) > 0, "no fault of the wire struck"
    # Cut by the fault or at a length cap, each cut reply is told once.
    assert tallies.get("truncated", 0) == stats["cut"]
