"""A library's run that was killed goes the same way in a new process, whatever its hash seed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.calls import Reply, Request
from tests.build.teachable import learn, model, total, two_steps

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def go(runs: Path, optimizer: str, calls: int, seed: int) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.paper.rivals.test_killed", str(runs), optimizer, str(calls)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 9), done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.parametrize("optimizer", ["gepa-merge", "mipro"])
def test_it_comes_to_the_same_prompt_and_pays_once(tmp_path: Path, optimizer: str) -> None:
    _, whole = go(tmp_path / "whole", optimizer, 10**6, seed=1)
    part = tmp_path / "part"
    for seed, calls in ((2, 60), (3, 50)):
        assert go(part, optimizer, calls, seed) == (9, {})
    code, rest = go(part, optimizer, 10**6, seed=4)
    assert code == 0
    same = ("prompt", "reward", "verdict")
    assert [rest[key] for key in same] == [whole[key] for key in same]
    # A reply that was on its way at the kill may be asked for again: those in flight, no more.
    assert rest["asked"] <= whole["calls"] - 60 - 50 + 2 * 64


def run_killed(runs: Path, optimizer: str, calls: int) -> None:
    """As a program: after so many calls the process is gone, as by kill -9; with a run there
    already it goes on. Prints the run's row as JSON."""
    scripted = model()

    async def lm(request: Request) -> Reply:
        if len(scripted.history) >= calls:
            os._exit(9)
        return await scripted(request)

    again = "last" if (runs / "runs").exists() else ""
    staged = {"compose_per_stage": True, "gepa": {"rollouts": 150}}
    run = learn(runs, optimizer, lm, config=staged, executor=two_steps, resume=again)
    row = run.rows[optimizer]
    told = {"prompt": row.prompt, "reward": row.score.mean, "verdict": run.verdict}
    sys.stdout.write(json.dumps({**told, "calls": total(run), "asked": len(scripted.history)}))


if __name__ == "__main__":
    run_killed(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
