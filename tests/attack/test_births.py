"""kill -9 while runs are being made: whatever is left is in nobody's way."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run, list_runs

HEADER = Header(id="", created="2026-01-31T15:45:02+00:00", version="0", task="attack")
MAKE = """
import pathlib, sys
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
header = Header(id="", created=sys.argv[2], version="0", task="attack")
print("ready", flush=True)
while True:
    RunStore.create(pathlib.Path(sys.argv[1]), header).close()
"""
KILLS = 12


def test_runs_killed_at_any_moment_of_their_making(tmp_path: Path) -> None:
    draw = random.Random(7)
    left, seen = 0, set[str]()
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", MAKE, str(tmp_path), HEADER.created],
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.03))
            child.kill()
        listed = list_runs(tmp_path)
        half_made = {f.name for f in tmp_path.iterdir()} - {run.id for run in listed}
        left += bool(half_made - seen)
        seen |= half_made
        if listed:
            assert find_run(tmp_path, "last").name in {run.id for run in listed}
        assert {run.id for run in list_runs(tmp_path)} >= {run.id for run in listed}
        RunStore.create(tmp_path, HEADER).close()
    assert left, "no kill hit a run that was being made"
