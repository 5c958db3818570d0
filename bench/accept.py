"""`update.accept`: always against improve, on the simulated model, over several simulated worlds.

The constraints task, equal settings but for that key; each world is one seed, for the simulated
model and the run alike. `improve` runs each batch a second time, so it is also set beside `always`
with as many more steps as spend the same number of training calls. Every figure is simulated.

    python -m bench.accept
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.assemble import Sources
from promptcodebook.calls import Usage
from promptcodebook.config import load_config
from promptcodebook.intervals import Interval, clustered_interval
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.store import RunStore

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "5"))
EPOCHS = 30


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make. `keep` is 'best_val' or 'last'."""

    world: int
    accept: str
    epochs: int
    keep: str


@dataclass(frozen=True, slots=True)
class Done:
    """What it came to: test rewards of the learned policy, and what was spent."""

    rewards: tuple[float, ...]
    spent: Usage
    judging: int
    steps: int
    reverted: int


def run(job: Job) -> Done:
    """One whole run in process, thrown away."""
    config = load_config(
        {
            "task": "constraints",
            "lm": f"simulated?world_seed={job.world}",
            "seed": job.world,
            "keep": job.keep,
            "update": {"epochs": job.epochs, "accept": job.accept},
            # No early stop, so that equal settings are equal numbers of steps.
            "validation": {"every": 6 if job.keep == "best_val" else 0, "patience": 10**6},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        made = asyncio.run(finish(open_run(config, Sources(), Where(Path(folder)))))
        store = RunStore.open(made.path)
        try:
            rows = {e.name: e for e in store.test_evaluations()}
            judging = sum(e.usage.calls for e in rows.values())
            steps = list(store.steps())
            spent = sum(store.usage().values(), Usage())
        finally:
            store.close()
    reverted = sum(s.reverted for s in steps)
    return Done(rows["learned"].rewards, spent, judging, len(steps), reverted)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    worlds = range(1, WORLDS + 1)
    with ProcessPoolExecutor(max_workers=2) as pool:
        for keep in ("best_val", "last"):
            always = list(pool.map(run, (Job(w, "always", EPOCHS, keep) for w in worlds)))
            improve = list(pool.map(run, (Job(w, "improve", EPOCHS, keep) for w in worlds)))
            more = round(EPOCHS * _training(improve) / _training(always))
            longer = list(pool.map(run, (Job(w, "always", more, keep) for w in worlds)))
            named = {
                f"always, {EPOCHS} steps": always,
                f"improve, {EPOCHS} steps": improve,
                f"always, {more} steps": longer,
            }
            figures += [_row(f"keep={keep}: {name}", done) for name, done in named.items()]
            figures.append(_difference(f"keep={keep}: improve - always", improve, always))
            figures.append(_difference(f"keep={keep}: the same at equal calls", improve, longer))
    return figures


def _calls(done: list[Done]) -> float:
    return sum(d.spent.calls for d in done) / len(done)


def _training(done: list[Done]) -> float:
    """Calls before the verdict."""
    return sum(d.spent.calls - d.judging for d in done) / len(done)


def _row(name: str, done: list[Done]) -> Figure:
    interval = clustered_interval([d.rewards for d in done])
    calls, tokens = _calls(done), sum(d.spent.tokens for d in done) / len(done)
    reverted = sum(d.reverted for d in done) / sum(d.steps for d in done)
    beside = f"{_said(interval)}, {calls:.0f} calls, {tokens / 1e6:.2f} Mtok a run"
    beside += f", {reverted:.0%} of steps reverted" if reverted else ""
    return Figure(f"simulated, {name}", interval.mean, beside=beside)


def _difference(name: str, one: list[Done], other: list[Done]) -> Figure:
    pairs = [
        [x - y for x, y in zip(a.rewards, b.rewards, strict=True)]
        for a, b in zip(one, other, strict=True)
    ]
    interval = clustered_interval(pairs)
    by_world = " ".join(f"{sum(p) / len(p):+.3f}" for p in pairs)
    beside = f"{_said(interval)}, by world {by_world}"
    return Figure(f"simulated, {name}", interval.mean, beside=beside)


def _said(interval: Interval) -> str:
    return f"95 % {interval.low:+.3f}..{interval.high:+.3f}"


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
