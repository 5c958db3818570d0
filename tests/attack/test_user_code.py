"""User code that hangs, blocks, prints and exits, against a whole process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PCO = [sys.executable, "-m", "promptcodebook.cli"]
QUICK = ("--preset", "quick", "--set", "update.epochs=2", "--set", "validation.every=0")

SCRIPT = """
import sys, time, asyncio, threading
import promptcodebook as pco

rows = [{"input": f"In {n} words: what is it?", "target": f"it {n}"} for n in range(2, 26)]
config = {"preset": "quick", "update": {"epochs": 1, "batch_size": 6}, "validation": {"every": 0}}

def began():
    sys.stderr.write("at work\\n"); sys.stderr.flush()

def hangs(example, output):
    began(); threading.Event().wait(); return 1.0

async def blocks(example, output):
    began(); time.sleep(3600); return 1.0

async def deaf(example, output):
    began()
    while True:
        try:
            await asyncio.sleep(3600)
            return 1.0
        except BaseException: pass

pco.optimize(pco.load(rows), REWARD, "simulated", config=config)
"""


def _started(folder: Path, reward: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("REWARD", reward))
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert any("at work" in line for line in process.stderr)
    return process


@pytest.mark.parametrize("reward", ["hangs", "blocks", "deaf"])
def test_ctrl_c_always_answers(tmp_path: Path, reward: str) -> None:
    """The first asks for an end in order, the second does not ask; no hung thread holds the process
    when it wants to end."""
    process = _started(tmp_path, reward)
    assert process.stderr is not None
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert time.monotonic() - began < 30


def test_stdout_holds_the_result_alone(tmp_path: Path) -> None:
    init = [*PCO, "init", "--lm", "simulated"]
    assert subprocess.run(init, cwd=tmp_path, capture_output=True).returncode == 0
    reward = tmp_path / "reward.py"
    loud = reward.read_text() + "\n\nprint('read')\n_quiet = reward\n\n"
    loud += (
        "def reward(example, output):\n    print('scored')\n    return _quiet(example, output)\n"
    )
    reward.write_text(loud)
    done = subprocess.run(
        [*PCO, "train", *QUICK, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == "finished"
    assert "read" in done.stderr and "scored" in done.stderr
