"""A tour of every fault: the run completes, and both sides counted the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build.proof_server import served
from tests.build.runs import SMALL, finished

pytestmark = pytest.mark.slow

FAULTS = "faults=429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05"
TOUR: dict[str, Any] = {
    **SMALL,
    "update": {"epochs": 3, "batch_size": 8},
    "validation": {"every": 3, "subset": 8, "finalists": 1},
}
# The server's name of a fault -> ours of the incident it is on our side.
OURS = {
    "429": "rate_limited",
    "500": "server_error",
    "drop": "dropped",
    "json": "malformed",
    "truncate": "truncated",
    "routes": "faulty",
}


def test_the_run_completes_and_its_counts_are_the_servers_and_those_in_process(
    tmp_path: Path,
) -> None:
    """A whole run among faults over HTTP, and what the server counted."""
    with served(f"simulated?{FAULTS}") as server:
        run = finished(tmp_path / "http", server.lm, TOUR)
        stats = server.stats()
    assert list(run.rewards()) == ["present", "concat", "best_fixed", "untrained", "learned"]
    ours, faults = run.tallies(), stats["faults"]
    assert {OURS[name]: count for name, count in faults.items()} == {
        name: ours.get(name, 0) for name in OURS.values()
    }
    assert stats["cut"] == faults["truncate"], "something else was cut too"
    assert min(faults.values()) > 0, "a fault of the tour never struck"
    here = finished(tmp_path / "here", f"simulated?{FAULTS}", TOUR)
    assert here.policy == run.policy
    assert here.tallies() == ours
