"""Wall time of a training step over its critical path, against the simulated model over HTTP.

Every reply takes 200 ms; batch 15, limit 64, `accept: always`, no validation, nothing solved, no
cache. The critical path is the longest chain of calls that must follow one another: route (unless
explored), compose, execute, critique, attribute with g_psi beside it, then one rewrite, and one
more where a refused rewrite was asked for again. Printed beside it: the share of rewrites that were
refused, those that a second reply mended among them.

    python -m bench.step
"""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.data import Dataset
from promptcodebook.paper.tasks.constraints.task import reward
from promptcodebook.progress import ProgressEvent, StepDone
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Score, Step, Trace
from tests.build.proof_server import served

LATENCY_S = 0.2
STEPS = 10
BATCH = 15
GOAL = 1.08
# At most one rewrite in ten.
REFUSED = 0.1


def unsolved(example: Example, output: str) -> Score:
    """Never the full reward, so that every example is critiqued, and what the checks say, so that
    each step has rewrites of every kind."""
    found = reward(example, output)
    faults = found.feedback if found.value < 1.0 else "It misses the limit on words."
    return Score(found.value / 2, faults)


def depth(step: Step) -> int:
    """Calls on the critical path of a step."""
    again = any(rewrite.earlier is not None for rewrite in step.rewrites)
    return max(map(_chain, step.traces)) + (1 if step.rewrites else 0) + again


def refused(steps: Sequence[Step]) -> float:
    """Share of the rewrites whose first reply was refused."""
    rewrites = [rewrite for step in steps for rewrite in step.rewrites]
    assert rewrites, "nothing was rewritten: nothing to measure"
    return sum(r.earlier is not None or not r.kept for r in rewrites) / len(rewrites)


def _chain(trace: Trace) -> int:
    route = trace.rollout.route
    assert route is not None and trace.failure is None, "a chain broke: nothing to measure"
    assert trace.penalty > 0.0, "not critiqued: the chain is shorter than it says"
    return (0 if route.explored else 1) + 4  # the last is g_psi, asked for in every chain


def trained(lm: str, folder: Path, epsilon: float) -> list[StepDone]:
    """The steps of one run, with what each took."""
    stepped: list[StepDone] = []

    def listen(event: ProgressEvent) -> None:
        if isinstance(event, StepDone):
            stepped.append(event)

    found = load_task("constraints").dataset
    data = Dataset(found.train, (), found.test[:2], input=found.input)
    config = load_config(
        {
            "preset": "full",
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
    return stepped


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with served(f"simulated?latency={LATENCY_S}") as server, tempfile.TemporaryDirectory() as temp:
        for name, epsilon in (("encoder-routed", 0.0), ("half explored", 0.5)):
            done = trained(server.lm, Path(temp) / name, epsilon)
            depths = [depth(e.step) for e in done]
            found = [e.seconds / (d * LATENCY_S) for e, d in zip(done, depths, strict=True)]
            each = " ".join(f"{r:.2f}" for r in found)
            print(f"  {name} (simulated), {max(depths)} calls deep: {each}", flush=True)
            median, most = statistics.median(found), max(found[1:])
            figures += [
                Figure(f"step over critical path, {name}, median", median, "x", GOAL),
                Figure(f"the slowest after the first, {name}", most, "x", GOAL),
                Figure(f"the first, which opens the connections, {name}", found[0], "x"),
                Figure(f"refused rewrites, {name}", refused([e.step for e in done]), "", REFUSED),
            ]
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
