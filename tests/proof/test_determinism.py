"""The same seed gives the same bytes, whoever answers first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proof.runs import SMALL, Finished, finished
from tests.proof.served import ROOT, served


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


@pytest.mark.slow
def test_the_same_seed_with_three_orders_of_replies(plain: Finished, tmp_path: Path) -> None:
    spread = "latency=uniform:0.001-0.08"
    first = run_against(tmp_path / "first", f"simulated?{spread}")
    shuffled = run_against(tmp_path / "shuffled", f"simulated?{spread}&latency_seed=7")

    assert shuffled.policy == first.policy and shuffled.events() == first.events()
    assert plain.policy == first.policy and plain.events() == first.events()

    # They were shuffled indeed: who is slow in one run is not who is slow in the other.
    slow, slow_too = (sorted(range(40), key=latencies(r).__getitem__) for r in (first, shuffled))
    assert slow != slow_too


@pytest.mark.slow
def test_another_seed_gives_another_run(plain: Finished, tmp_path: Path) -> None:
    other = run_against(tmp_path, "simulated", seed=1)
    assert other.events() != plain.events()


@pytest.mark.slow
def test_how_many_calls_are_in_flight_changes_nothing(plain: Finished, tmp_path: Path) -> None:
    """Three at a time, against as many as there are."""
    narrow = run_against(tmp_path, "simulated?latency=0.005", concurrency=3)
    assert narrow.policy == plain.policy and narrow.events() == plain.events()


@pytest.mark.slow
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


AIME: dict[str, Any] = {
    "task": "aime",
    "update": {"epochs": 6, "batch_size": 15},
    "validation": {"every": 3, "subset": 20, "finalists": 2},
    "cache": False,
}


def real_aime() -> Path | None:
    """The folder of the real problems: $PCO_SHARED/data/aime, else beside the repository."""
    shared = Path(os.environ.get("PCO_SHARED") or ROOT.parent / "shared")
    folder = shared / "data" / "aime"
    return folder if (folder / "train.jsonl").is_file() else None


REAL_AIME = real_aime()  # read here: tests are run without the developer's PCO_* variables


def both_ways(tmp_path: Path, settings: dict[str, Any], data: Path | None) -> list[Finished]:
    """The same run twice: in process, and over HTTP."""
    where = {"data_dir": str(data)} if data is not None else {}
    with served("simulated", settings["task"], data) as server:
        over_http = finished(tmp_path / "http", server.lm, settings, **where)
        asked = server.stats()["replies"]
    assert asked > 0
    return [finished(tmp_path / "here", "simulated", settings, **where), over_http]


def assert_the_same(here: Finished, there: Finished) -> None:
    assert here.policy == there.policy
    rewards = here.rewards()
    assert list(rewards) == ["present", "concat", "best_fixed", "untrained", "learned"]
    assert rewards == there.rewards()
    # Not only the end: every route, prompt, output, verdict and gradient on the way.
    assert here.events() == there.events()


@pytest.mark.slow
@pytest.mark.skipif(REAL_AIME is None, reason="no real AIME data; set PCO_SHARED to its folder")
def test_real_aime_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, AIME, REAL_AIME)
    assert_the_same(here, there)
    assert len(here.rewards()["learned"]) >= 15  # AIME 2025: the held-out year


def test_our_own_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    assert_the_same(*both_ways(tmp_path, {**AIME, "update": {"epochs": 2}}, None))


def test_the_shipped_task_gives_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, SMALL, None)
    assert_the_same(here, there)
