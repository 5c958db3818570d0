"""`pco demo --simulated` after set-up: wall seconds of the tour in a fresh process and folder.

python -m bench.demo
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time

from bench.figures import Figure, shown

GOAL_S = 30.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, "PCO_RUNS": f"{folder}/runs"}
        command = [sys.executable, "-m", "promptcodebook.cli", "demo", "--simulated", "--plain"]
        begun = time.perf_counter()
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
        taken = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"pco demo failed:\n{done.stderr[-2000:]}")
    print(textwrap.indent(done.stdout.strip(), "  "), flush=True)
    return [Figure("pco demo", taken, "s", GOAL_S)]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
