"""How often the verdict says "worth deploying" where nothing is gained, and what it finds.

Worlds in pure numbers, without a model, judged by the verdict's own rule (`run/verdict.py`): every
example has a chance p of being right, drawn evenly from 0 to 1, and a row's reward there is one
draw (binary) or the share of four (share). Each of eight candidates is better on some examples and
worse on others by up to 0.3, and equal to all others on the whole; the best of them on 40
validation examples is judged on n fresh ones against the present prompt and against concat, which
costs a third of its calls.

Nothing is gained where (1) all are equal, (2) concat is worse, (3) the present prompt is worse and
concat is as good: there the gain is real, and the routing is worth nothing; (4) one example in
eight is lost wholly, and the others gain as much together. Nominal is 2.5 %, the goal 4 %.
Then the power: the share of worlds with a true gain in which it is seen, concat being no better
than the present prompt.

    python -m bench.verdict_null          (PCO_BENCH_WORLDS=5000 for a sharper table)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from random import Random

from bench.figures import Figure, shown
from promptcodebook.calls import Usage
from promptcodebook.intervals import Interval, paired_interval
from promptcodebook.randomness import keyed_random
from promptcodebook.run.verdict import ENOUGH, Row, decide

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "1000"))
SIZES = (8, 20, 60, 200)
REWARDS = ("binary", "share")
NULLS = ("all equal", "concat worse", "concat as good", "rare heavy losses")
GAINS = (0.05, 0.1, 0.2)
GOAL = 4.0
CANDIDATES, VALIDATION = 8, 40
SWAY = 0.3
WORSE = 0.2
LOST = 1 / 8


@dataclass(frozen=True, slots=True)
class Job:
    """So many worlds of one kind: a null by its name, or '' and a true gain."""

    n: int
    reward: str
    null: str
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """Shares of the worlds, in percent: worth deploying, any row but the present one recommended;
    and the mean gain that the chosen candidate showed on validation and on test."""

    worth: float
    other: float
    validation: float
    test: float


def shift(p: float, gain: float) -> float:
    """A chance that is evenly spread over 0..1, moved by `gain` on average, within 0..1."""
    return p * (1 - 2 * abs(gain)) + max(0.0, 2 * gain)


def earn(p: float, reward: str, draw: Random) -> float:
    if reward == "binary":
        return float(draw.random() < p)
    flip = draw.random
    return ((flip() < p) + (flip() < p) + (flip() < p) + (flip() < p)) / 4


def chances(job: Job) -> tuple[float, float]:
    """By how much the present prompt and concat differ from the candidates' level before gains."""
    return {
        "concat worse": (0.0, -WORSE),
        "concat as good": (-WORSE, 0.0),
    }.get(job.null, (0.0, 0.0))


def candidate(job: Job, draw: Random) -> Callable[[float], float]:
    """The chance of one candidate where the common one is p: swayed, and on the whole equal."""
    if job.null == "rare heavy losses":
        even = LOST * 0.5 / (1 - LOST)
        return lambda p: 0.0 if draw.random() < LOST else shift(p, even)

    def swayed(p: float) -> float:
        moved = shift(p, job.gain)
        # As far up as down, so that the mean over all examples stays where it is.
        return moved + draw.uniform(-1, 1) * min(SWAY, moved, 1 - moved)

    return swayed


def world(job: Job, number: int) -> tuple[bool, bool, float, float]:
    """One world: worth deploying, anything but the present prompt recommended, and the gains of
    the chosen candidate on validation and on test."""
    draw = keyed_random("null world", job.n, job.reward, job.null, job.gain, number)
    present_at, concat_at = chances(job)

    def rewards(at: Callable[[float], float], ps: Sequence[float]) -> list[float]:
        return [earn(at(p), job.reward, draw) for p in ps]

    valid = [draw.random() for _ in range(VALIDATION)]
    candidates = [candidate(job, draw) for _ in range(CANDIDATES)]
    scored = [(sum(rewards(each, valid)) / VALIDATION, i) for i, each in enumerate(candidates)]
    score, best = max(scored)
    before = sum(rewards(lambda p: shift(p, present_at), valid)) / VALIDATION
    test = [draw.random() for _ in range(job.n)]
    present = rewards(lambda p: shift(p, present_at), test)
    concat = rewards(lambda p: shift(p, concat_at), test)
    learned = rewards(candidates[best], test)

    def over(a: Sequence[float], b: Sequence[float]) -> Interval:
        return paired_interval(a, b, number)

    rows = [
        row("present", 1.0),
        row("concat", 1.0, over(concat, present), over(learned, concat)),
        row("learned", 3.0, over(learned, present)),
    ]
    _, worth, deploy = decide(rows)
    test_gain = (sum(learned) - sum(present)) / job.n
    return bool(worth), deploy not in ("", "present"), score - before, test_gain


def row(name: str, calls: float, gain: Interval | None = None, over: Interval | None = None) -> Row:
    unscored = Interval(0.0, 0.0, 0.0, 1)
    return Row(name, unscored, gain, None, 0, 0, Usage(), calls, title=name, over=over)


def work(job: Job) -> Done:
    # Below 20 examples there is no verdict, and power is not held to a cap: fewer will do.
    worlds = WORLDS // 2 if job.n < ENOUGH or job.gain else WORLDS
    made = [world(job, number) for number in range(worlds)]
    worth, other, validation, test = (sum(column) / worlds for column in zip(*made, strict=True))
    return Done(100 * worth, 100 * other, validation, test)


def measure() -> Sequence[Figure]:
    nulls = [Job(n, reward, null) for null, n, reward in product(NULLS, SIZES, REWARDS)]
    powers = [Job(n, reward, "", gain) for gain, n, reward in product(GAINS, SIZES, REWARDS)]
    with ProcessPoolExecutor() as pool:
        done = list(pool.map(work, [*nulls, *powers]))
    figures: list[Figure] = []
    for job, result in zip([*nulls, *powers], done, strict=True):
        where = f"{job.reward} rewards, n = {job.n}"
        if job.null:
            beside = (
                f"any other row {result.other:.1f} %; validation showed "
                f"{result.validation:+.3f}, test {result.test:+.3f}"
            )
            name = f"false 'worth deploying', {job.null}, {where}"
            figures.append(Figure(name, result.worth, "%", GOAL, beside=beside))
        else:
            figures.append(Figure(f"power at a gain of {job.gain:g}, {where}", result.worth, "%"))
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
