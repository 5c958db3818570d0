"""`update.accept` and `accept_on`, on the simulated model, over several simulated worlds.

The constraints task, equal settings but for those keys; each world is one seed, for the simulated
model and the run alike. The rules run examples again, so each is also set beside `always` with as
many more steps as spend the same number of training calls. Every figure is simulated.

    python -m bench.accept
    PCO_BENCH_RULES=improve:batch,improve_each:others python -m bench.accept
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, clustered_interval, shown
from promptcodebook.assemble import Sources
from promptcodebook.base.intervals import Interval
from promptcodebook.calls import Usage
from promptcodebook.config import load_config
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.store.run import RunStore

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "5"))
RULES = os.environ.get(
    "PCO_BENCH_RULES", "improve:batch,improve:others,improve_each:batch,improve_each:others"
).split(",")
EPOCHS = 30


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make. `rule` is ACCEPT:ACCEPT_ON, `keep` 'best_val' or 'last'."""

    world: int
    rule: str
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
    accept, _, on = job.rule.partition(":")
    config = load_config(
        {
            "task": "constraints",
            "lm": f"simulated?world={job.world}",
            "seed": job.world,
            "keep": job.keep,
            "update": {"epochs": job.epochs, "accept": accept, "accept_on": on},
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
    reverted = sum(len(s.reverted) for s in steps)
    return Done(rows["learned"].rewards, spent, judging, len(steps), reverted)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with ProcessPoolExecutor(max_workers=2) as pool:
        for keep in ("best_val", "last"):

            def made(rule: str, epochs: int = EPOCHS, keep: str = keep) -> list[Done]:
                jobs = (Job(world, rule, epochs, keep) for world in range(1, WORLDS + 1))
                return list(pool.map(run, jobs))

            always = made("always:batch")
            figures.append(_row(f"keep={keep}: always, {EPOCHS} steps", always))
            for rule in RULES:
                figures += _beside(keep, rule, made(rule), always, made)
    return figures


def _beside(
    keep: str, rule: str, done: list[Done], always: list[Done], made: Callable[..., list[Done]]
) -> list[Figure]:
    """A rule's row, and its difference from `always` at as many steps and at as many calls."""
    more = round(EPOCHS * _training(done) / _training(always))
    longer = made("always:batch", more)
    return [
        _row(f"keep={keep}: {rule}, {EPOCHS} steps", done),
        _row(f"keep={keep}: always, {more} steps", longer),
        _difference(f"keep={keep}: {rule} - always", done, always),
        _difference(f"keep={keep}: the same at equal calls", done, longer),
    ]


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
