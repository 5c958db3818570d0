"""The same seed gives the same bytes, whoever answers first, and wherever the model is served."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.store.run import RunStore
from tests.cli.invoked import pco
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


REAL_AIME = Path(os.environ.get("PCO_SHARED") or ROOT.parent / "shared") / "data" / "aime"
# Read here: tests are run without the developer's PCO_* variables.


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
@pytest.mark.skipif(
    not (REAL_AIME / "train.jsonl").is_file(),
    reason="no real AIME data; set PCO_SHARED to its folder",
)
def test_real_aime_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, AIME, REAL_AIME)
    assert_the_same(here, there)
    assert len(here.rewards()["learned"]) >= 15  # AIME 2025: the held-out year


def test_our_own_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    assert_the_same(*both_ways(tmp_path, {**AIME, "update": {"epochs": 2}}, None))


def test_the_shipped_task_gives_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, SMALL, None)
    assert_the_same(here, there)


# Nothing is kept for the verdict: a stop then brings no figures of its own, which cost calls.
TYPED = (
    *("--task", "constraints", "--preset", "quick", "--set", "update.epochs=3"),
    *("--set", "budget.reserve_for_verdict=0"),
)


def policy_of(folder: Path) -> bytes:
    [run] = (folder / "runs").iterdir()
    return (run / "policy.json").read_bytes()


@pytest.mark.slow
def test_a_run_that_moves_twice_is_the_run_that_stayed(tmp_path: Path) -> None:
    """Byte by byte, and it paid for as many calls."""
    stayed, moved = tmp_path / "stayed", tmp_path / "moved"
    stayed.mkdir()
    moved.mkdir()
    with served() as one, served() as two, served() as three:
        whole = pco("train", *TYPED, "--lm", one.lm, "--set", "cache=false", cwd=stayed)
        assert whole.code == 0, whole.err
        begun = pco(
            *("train", *TYPED, "--lm", one.lm, "--set", "cache=false", "--budget", "150calls"),
            cwd=moved,
        )
        assert begun.code == 3, begun.err
        again = ("train", "--resume", "last", "--set", "cache=false")
        second = pco(*again, "--lm", two.lm, "--budget", "300calls", cwd=moved)
        assert second.code == 3, second.err
        assert f"is called at {two.lm} now" in second.err
        last = pco(*again, "--lm", three.lm, "--budget", "9999calls", cwd=moved)
        assert last.code == 0, last.err
    assert policy_of(moved) == policy_of(stayed)
    paid = list[int]()
    for folder, lm in ((moved, three.lm), (stayed, one.lm)):
        [run] = (folder / "runs").iterdir()
        with closing(RunStore.open(run)) as store:
            paid.append(sum(usage.calls for usage in store.usage().values()))
            assert store.ours and store.header.config["lm"] == lm
    assert paid[0] == paid[1]
