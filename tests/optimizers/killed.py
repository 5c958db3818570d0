"""A run on the teachable task as a program: python -m tests.optimizers.killed RUNS NAME CALLS.

After so many calls the process is gone, as by kill -9; with a run there already it goes on. Prints
the run's row as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from promptcodebook.calls import Reply, Request
from tests.optimizers.teachable import learn, model, total
from tests.optimizers.test_gepa import two_steps

runs, optimizer, calls = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
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
