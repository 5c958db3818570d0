"""Wall time of a training step over its critical path, against the simulated model over HTTP.

Every reply takes 200 ms; batch 15, limit 64, `accept: always`, no validation, nothing solved, no
cache. The critical path is the longest chain of calls that must follow one another: route (unless
explored), compose, execute, critique, attribute with g_psi beside it, then one rewrite.

    python -m bench.step
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.data import Dataset
from promptcodebook.progress import ProgressEvent, StepDone
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.step import Step
from promptcodebook.tasks.registry import load_task
from promptcodebook.types import Example, Score, Trace
from tests.proof.served import served

LATENCY_S = 0.2
STEPS = 10
BATCH = 15
GOAL = 1.15


def unsolved(example: Example, output: str) -> Score:
    """Never the full reward, so that every example is critiqued and blamed."""
    return Score(0.5, "It misses the limit on words and the list that was asked for.")


def depth(step: Step) -> int:
    """Calls on the critical path of a step."""
    return max(map(_chain, step.traces)) + (1 if step.rewrites else 0)


def _chain(trace: Trace) -> int:
    route = trace.rollout.route
    assert route is not None and trace.failure is None, "a chain broke: nothing to measure"
    assert trace.penalty > 0.0, "not critiqued: the chain is shorter than it says"
    return (0 if route.explored else 1) + 4  # the last is g_psi, asked for in every chain


def ratios(lm: str, folder: Path, epsilon: float) -> tuple[list[float], list[int]]:
    """Wall time over critical path, and the path's calls, of each step of one run."""
    stepped: list[StepDone] = []

    def listen(event: ProgressEvent) -> None:
        if isinstance(event, StepDone):
            stepped.append(event)

    found = load_task("constraints").dataset
    data = Dataset(found.train, (), found.test[:2], input=found.input)
    config = load_config(
        {
            "lm": lm,
            "cache": False,
            "concurrency": 64,
            "update": {"epochs": STEPS, "batch_size": BATCH, "accept": "always"},
            "explore": {"epsilon": epsilon, "epsilon_min": epsilon},
            "validation": {"every": 0},
            "init": {"instincts": load_task("constraints").seeds[:16]},
        }
    )
    opened = open_run(config, Sources(data=data, reward=unsolved), Where(folder), listen)
    asyncio.run(finish(opened))
    assert len(stepped) == STEPS and all(len(e.step.traces) == BATCH for e in stepped)
    depths = [depth(e.step) for e in stepped]
    return [e.seconds / (d * LATENCY_S) for e, d in zip(stepped, depths, strict=True)], depths


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with served(f"simulated?latency={LATENCY_S}") as server, tempfile.TemporaryDirectory() as temp:
        for name, epsilon in (("encoder-routed", 0.0), ("half explored", 0.5)):
            found, depths = ratios(server.lm, Path(temp) / name, epsilon)
            each = " ".join(f"{r:.2f}" for r in found)
            print(f"  {name} (simulated), {max(depths)} calls deep: {each}", flush=True)
            median, most = statistics.median(found), max(found[1:])
            figures += [
                Figure(f"step over critical path, {name}, median", median, "x", GOAL),
                Figure(f"the slowest after the first, {name}", most, "x", GOAL),
                Figure(f"the first, which opens the connections, {name}", found[0], "x"),
            ]
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
