"""The same seed gives the same bytes, whoever answers first, and wherever the model is served."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.store.run import RunStore
from tests.build.cli import pco
from tests.build.proof_server import ROOT, served
from tests.build.runs import SMALL, Finished, finished


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_whoever_answers_first(tmp_path: Path) -> None:
    """Three orders of replies, three calls at a time against as many as there are, and another hash
    seed of the process; another seed gives another run."""
    spread = "simulated?latency=uniform:0.001-0.08"
    runs: dict[str, Finished] = {}
    for name, spec, more in (
        ("plain", "simulated", {}),
        ("first", spread, {}),
        ("shuffled", f"{spread}&latency_seed=7", {"concurrency": 3}),
    ):
        with served(spec) as server:
            runs[name] = finished(tmp_path / name, server.lm, SMALL, **more)
    plain, first, shuffled = runs.values()
    assert first.policy == shuffled.policy == plain.policy
    assert first.events() == shuffled.events() == plain.events()

    # They were shuffled indeed: who is slow in one run is not who is slow in the other.
    def slowest(run: Finished) -> list[int]:
        seconds = [r.usage.latency_s for e in run.test_evaluations() for r in e.rollouts]
        return sorted(range(40), key=seconds.__getitem__)

    assert slowest(first) != slowest(shuffled)

    code = (
        "import sys; from pathlib import Path; from tests.build.runs import SMALL, finished;"
        "made = finished(Path(sys.argv[1]), 'simulated?latency=uniform:0-0.01', SMALL);"
        "sys.stdout.write(str(made.path))"
    )
    hashed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hashed")],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert Finished(Path(hashed.stdout.decode())).policy == plain.policy
    assert finished(tmp_path / "other", "simulated", SMALL, seed=1).events() != plain.events()


AIME: dict[str, Any] = {
    "task": "aime",
    "update": {"epochs": 2},
    "validation": {"every": 3, "subset": 20, "finalists": 2},
    "cache": False,
}


@pytest.mark.slow
def test_a_run_in_process_is_that_over_http(tmp_path: Path) -> None:
    """Not only the end: every route, prompt, output, verdict and gradient on the way. Another task
    and among faults: tests/proof/test_kill.py."""
    with served("simulated", AIME["task"]) as server:
        there = finished(tmp_path / "http", server.lm, AIME)
        assert server.stats()["replies"] > 0
    here = finished(tmp_path / "here", "simulated", AIME)
    assert here.policy == there.policy
    assert list(here.rewards()) == ["present", "learned", "concat", "best_fixed", "untrained"]
    assert here.rewards() == there.rewards() and here.events() == there.events()


# Nothing is kept for the verdict: a stop then brings no figures of its own, which cost calls.
TYPED = (
    *("--task", "constraints", "--preset", "quick", "--set", "update.epochs=3"),
    *("--set", "budget.reserve_for_verdict=0"),
)


@pytest.mark.slow
def test_a_run_that_moves_twice_is_the_run_that_stayed(tmp_path: Path) -> None:
    """Byte by byte, and it paid for as many calls."""
    stayed, moved = tmp_path / "stayed", tmp_path / "moved"
    stayed.mkdir()
    moved.mkdir()
    with served() as one, served() as two, served() as three:
        begin = ("train", *TYPED, "--set", "cache=false", "--lm", one.lm)
        again = ("train", "--resume", "last", "--set", "cache=false", "--lm")
        whole = pco(*begin, cwd=stayed)
        begun = pco(*begin, "--budget", "150calls", cwd=moved)
        second = pco(*again, two.lm, "--budget", "300calls", cwd=moved)
        assert f"is now called at {two.lm}" in second.err
        last = pco(*again, three.lm, "--budget", "9999calls", cwd=moved)
        for done, code in ((whole, 0), (begun, 3), (second, 3), (last, 0)):
            assert done.code == code, done.err
    left: list[tuple[bytes, int]] = []
    for folder, lm in ((moved, three.lm), (stayed, one.lm)):
        [run] = (folder / "runs").iterdir()
        with closing(RunStore.open(run)) as store:
            paid = sum(usage.calls for usage in store.usage().values())
            assert store.ours and store.header.config["lm"] == lm
        left.append(((run / "policy.json").read_bytes(), paid))
    assert left[0] == left[1]
