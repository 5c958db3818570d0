"""The same seed gives the same bytes, whoever answers first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.runs import SMALL, Finished, finished
from tests.proof.served import ROOT, served

pytestmark = pytest.mark.slow


def run_against(folder: Path, spec: str, **more: object) -> Finished:
    with served(spec) as server:
        return finished(folder, server.lm, SMALL, **more)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run to compare with: every reply comes at once."""
    return run_against(tmp_path_factory.mktemp("plain"), "simulated")


def latencies(run: Finished) -> list[float]:
    """Seconds of each test rollout, in the examples' order."""
    return [r.usage.latency_s for e in run.test_evaluations() for r in e.rollouts]


def test_the_same_seed_with_three_orders_of_replies(plain: Finished, tmp_path: Path) -> None:
    spread = "latency=uniform:0.001-0.08"
    first = run_against(tmp_path / "first", f"simulated?{spread}")
    shuffled = run_against(tmp_path / "shuffled", f"simulated?{spread}&latency_seed=7")

    assert shuffled.policy == first.policy and shuffled.events() == first.events()
    assert plain.policy == first.policy and plain.events() == first.events()

    # They were shuffled indeed: who is slow in one run is not who is slow in the other.
    slow, slow_too = (sorted(range(40), key=latencies(r).__getitem__) for r in (first, shuffled))
    assert slow != slow_too


def test_another_seed_gives_another_run(plain: Finished, tmp_path: Path) -> None:
    other = run_against(tmp_path, "simulated", seed=1)
    assert other.events() != plain.events()


def test_how_many_calls_are_in_flight_changes_nothing(plain: Finished, tmp_path: Path) -> None:
    """Three at a time, against as many as there are."""
    narrow = run_against(tmp_path, "simulated?latency=0.005", concurrency=3)
    assert narrow.policy == plain.policy and narrow.events() == plain.events()


def test_the_hash_seed_of_the_process_changes_nothing(tmp_path: Path) -> None:
    made = [tmp_path / name for name in ("one", "two")]
    code = (
        "import sys; from pathlib import Path; from tests.proof.runs import SMALL, finished;"
        "path = Path(sys.argv[1]);"
        "lm = 'simulated?latency=uniform:0-0.01&latency_seed=' + sys.argv[2];"
        "path.joinpath('policy').write_bytes(finished(path, lm, SMALL).policy)"
    )
    for seed, folder in enumerate(made, start=1):
        folder.mkdir()
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run(
            [sys.executable, "-c", code, str(folder), str(seed)], env=env, check=True, cwd=ROOT
        )
    first, second = (folder.joinpath("policy").read_bytes() for folder in made)
    assert first == second
