"""A library's run that was killed goes the same way in a new process, whatever its hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def go(runs: Path, optimizer: str, calls: int, seed: int) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.optimizers.killed", str(runs), optimizer, str(calls)],
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
