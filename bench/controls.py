"""Controls, two-sided, over worlds: is there something to learn, and does it go when what teaches
it is broken? First the simulated model is broken, then our own code.

Task constraints; a world draws what the executor lacks, the inputs and the noise. The figure is the
gain: test reward of the learned policy minus that of the untrained codebook, with 95 % intervals
over worlds and examples. Fixed before the first run:

- true rewards: the gain's lower end is above 0.05;
- of the model a critic of capacity 0, attribution at random (which loses the condition of the
  advice too, so that it is no control of credit assignment), random verdicts, shuffled rewards, and
  of our code a codebook that is never rewritten: each loses at least four fifths of the gain (the
  upper end of `gain - 0.2 * true gain`, paired by world, is not above 0);
- the other operators of ours (`OURS`) are measured and not bounded: what is lost without each,
  paired by world. A part earns its calls here where that is clearly above 0;
- in a homogeneous world (every input has the same four kinds of constraint) "worth deploying" fires
  no oftener than the stated 2.5 % allows: in at most 2 of 20 worlds;
- concat - learned is reported at three loads and not bounded.

    python -m bench.controls              (PCO_BENCH_WORLDS=5 for a look; two processes)

What was missed before: "worth deploying" fired in 14 of 16 homogeneous worlds against `concat`
alone, and in 10 of 20 against the S instincts chosen most. Then `best_fixed` became the rival, and
twenty worlds that were unseen until then are run since (1 of 20). concat - learned was +0.043
[+0.027, +0.058] without load, -0.074 [-0.096, -0.053] at the default, and -0.285 [-0.312, -0.258]
at three times that (27 November 2026).

Every figure is simulated. It shows whether the loop is wired up, and nothing about any real model.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.figures import Figure, clustered_interval, shown
from promptcodebook.assemble import Sources
from promptcodebook.base.intervals import Interval
from promptcodebook.base.randomness import keyed_int
from promptcodebook.base.sync import run_sync
from promptcodebook.config import Config, load_config
from promptcodebook.data import Dataset
from promptcodebook.optimizers.base import Problem
from promptcodebook.optimizers.pco import PCO, build_learner
from promptcodebook.paper.experiments.lab import run_once
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.tasks.constraints.checks import KINDS
from promptcodebook.paper.tasks.constraints.task import compatible, draw_constraints, reward
from promptcodebook.progress import silent
from promptcodebook.run.opening import Session, Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.store.events import Concluded
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Reward, Score

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "20"))
BROKEN = {
    "critic of capacity 0": "&capacity=0",
    "random attribution, conditions lost": "&attribution_error=1",
    "random verdicts": "&verdict_noise=1",
    "shuffled rewards": "",
}
LOADS = {"no load": "&load=0", "load": "", "thrice the load": "&load=0.15"}
SETTINGS: dict[str, Any] = {
    "preset": "full",
    "update": {"epochs": 20, "batch_size": 12},
    "validation": {"every": 10, "subset": 40, "finalists": 2},
}
LEAST_GAIN, KEPT, FALSE_ALARMS = 0.05, 0.2, 2
OURS = (
    *("codebook-fixed", "blame-random", "blame-lowest", "feedback-swapped", "scores-random"),
    *("ema-frozen", "no-exploration", "psi-fixed", "theta-fixed", "phi-fixed"),
)
# Which of `OPERATORS` are broken here, and the one that is bounded.
MUST_LOSE = "codebook-fixed"


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a world, what follows its spec, what is done to its data, and which of `OURS` is
    broken in it ('' = none)."""

    world: int
    extra: str = ""
    # 'shuffled' or 'homogeneous', else as drawn.
    data: str = ""
    ours: str = ""
    epochs: int = SETTINGS["update"]["epochs"]


@dataclass(frozen=True, slots=True)
class Done:
    """Test rewards by row, and whether the verdict was "worth deploying"."""

    rewards: Mapping[str, tuple[float, ...]]
    worth: bool


@dataclass(frozen=True)
class _Shuffled:
    """Grades an example under another one's demands; test examples keep their own."""

    other: Mapping[str, Example]

    def __call__(self, example: Example, output: str) -> Score:
        return reward(self.other.get(example.id, example), output)


def _shuffled(data: Dataset, world: int) -> Reward:
    pool = [*data.train, *data.val]
    order = sorted(range(len(pool)), key=lambda i: keyed_int("shuffled", world, pool[i].id))
    return _Shuffled({e.id: pool[i] for e, i in zip(pool, order, strict=True)})


def kinds_of(world: int) -> list[str]:
    """Four kinds of constraint that go together, drawn by world."""
    found: list[str] = []
    for kind in sorted(KINDS, key=lambda kind: keyed_int("homogeneous", world, kind)):
        if len(found) < 4 and compatible(kind, found):
            found.append(kind)
    return found


def run_broken(operator: str, config: Config, sources: Sources, where: Where) -> Path:
    """A run with one broken operator ('' = a sound one). Raises what a run raises, or the Stop that
    ended it."""
    if not operator:
        return run_once(config, sources, where)
    opened = open_run(config, sources, where)
    optimizer = PCO(lambda assembled: OPERATORS[operator](build_learner(assembled)))
    session = Session(Problem(opened.assembled, opened.store, silent), optimizer)
    run = run_sync(finish(session), session.interrupt)
    if run.stop is not None:
        raise run.stop
    return run.path


def run(job: Job) -> Done:
    """One whole run in process, thrown away."""
    task = load_task("constraints")
    data = draw_constraints(job.world, kinds_of(job.world) if job.data == "homogeneous" else ())
    graded = _shuffled(data, job.world) if job.data == "shuffled" else reward
    config = load_config(
        {
            **SETTINGS,
            "update": {"epochs": job.epochs},
            "lm": f"simulated?world={job.world}&noise_seed={job.world}{job.extra}",
            "seed": job.world,
            "init": {"instincts": task.seeds, "prompt": task.zero_shot},
            "output_format": task.output_format,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        sources = Sources(data=data, reward=graded)
        store = RunStore.open(run_broken(job.ours, config, sources, Where(Path(folder))))
        try:
            rewards = {e.name: tuple(e.rewards) for e in store.test_evaluations()}
            worth = any(e.worth for e in store.events() if isinstance(e, Concluded))
        finally:
            store.close()
    return Done(rewards, worth)


class Judged(Protocol):
    """What a run came to: its test rewards by row."""

    @property
    def rewards(self) -> Mapping[str, tuple[float, ...]]: ...


def difference(done: Sequence[Judged], row: str, other: str) -> list[list[float]]:
    """`row` minus `other` by world and example."""
    pairs = [(d.rewards[row], d.rewards[other]) for d in done]
    return [[a - b for a, b in zip(x, y, strict=True)] for x, y in pairs]


def gain_of(done: Sequence[Judged]) -> Interval:
    """Learned minus untrained."""
    return clustered_interval(difference(done, "learned", "untrained"))


def kept_of(broken: Sequence[Judged], true: Sequence[Judged]) -> Interval:
    """The gain minus a fifth of the true gain, paired by world: at most 0 if enough is lost."""
    pairs = zip(
        difference(broken, "learned", "untrained"),
        difference(true, "learned", "untrained"),
        strict=True,
    )
    return clustered_interval([[a - KEPT * b for a, b in zip(x, y, strict=True)] for x, y in pairs])


def lost_of(broken: Sequence[Done], true: Sequence[Done]) -> Interval:
    """The learned policy's reward without the breakage minus that with it, paired by world."""
    pairs = [
        (t.rewards["learned"], b.rewards["learned"]) for t, b in zip(true, broken, strict=True)
    ]
    return clustered_interval([[a - b for a, b in zip(x, y, strict=True)] for x, y in pairs])


def measure() -> list[Figure]:
    worlds = range(1, WORLDS + 1)
    with ProcessPoolExecutor(max_workers=2) as pool:

        def made(extra: str = "", data: str = "", ours: str = "") -> list[Done]:
            return list(pool.map(run, (Job(world, extra, data, ours) for world in worlds)))

        true = made()
        gain = gain_of(true)
        figures = [
            Figure(
                "true rewards: gain, lower end",
                gain.low,
                "",
                LEAST_GAIN,
                True,
                shown_interval(gain),
            )
        ]
        for name, extra in BROKEN.items():
            broken = made(extra, "shuffled" if name == "shuffled rewards" else "")
            over = kept_of(broken, true)
            beside = f"{shown_interval(over)}; gain {shown_interval(gain_of(broken))}"
            name = f"{name}: gain - 0.2 of the true one, upper end"
            figures.append(Figure(name, over.high, "", 0.0, beside=beside))
        for name in OURS:
            broken = made(ours=name)
            lost, over = lost_of(broken, true), kept_of(broken, true)
            beside = f"{shown_interval(lost)}; gain {shown_interval(gain_of(broken))}"
            figures.append(Figure(f"ours, {name}: lost", lost.mean, beside=beside))
            if name == MUST_LOSE:
                title = f"ours, {name}: gain - 0.2 of the true one, upper end"
                figures.append(Figure(title, over.high, "", 0.0, beside=shown_interval(over)))
        fired = sum(d.worth for d in made(data="homogeneous"))
        name = f"homogeneous: worth deploying, of {WORLDS}"
        figures.append(Figure(name, fired, "", FALSE_ALARMS))
        for name, extra in LOADS.items():
            done = made(extra) if extra else true
            apart = clustered_interval(difference(done, "concat", "learned"))
            figures.append(
                Figure(f"concat - learned, {name}", apart.mean, beside=shown_interval(apart))
            )
    return figures


def shown_interval(found: Interval) -> str:
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


if __name__ == "__main__":
    raise SystemExit(shown(measure, "controls of model and code (all figures simulated)"))
