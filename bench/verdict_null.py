"""How often the verdict says "worth deploying" where nothing is gained, and what it finds.

Worlds in pure numbers, without a model, judged by the verdict's own rule (`run/verdict.py`). Every
example has a chance p of being right, drawn evenly from 0 to 1. A row's reward there is one draw
(binary), the share of four draws (share), or one minus a loss (lognormal: the rows lose much the
same everywhere, the policy loses little mostly and much now and then, median 0.1 and sigma 1).
Each of eight candidates is better on some examples and worse on others by up to 0.3, and equal to
all others on the whole. The best of them on 40 validation examples is judged on n fresh ones.

Two modes: policies of one call, as in preset small, where all rows cost the same, and policies with
an encoder and a generator at three calls. Nothing is gained where all rows are equal; where one
row is as good as the policy and all others are worse by 0.2 (the gain over them is real, and what
was learned is worth nothing beyond that row); and where one example in eight is lost wholly and
the others gain as much together. Then a run is made longer four times and judged at each end on
the same test split, five looks in all. Last the power: the share of worlds with a true gain over
every row in which it is seen. Where inputs depend on one another, each is in the test rows 2, 5
or 10 times, in copies that earn the same; beside it stands what intervals over rows would say.

Last, the rows fall into 20 slices, and some slice is called worse where none is; beside it stands
what intervals say that do not hold together.

Nominal is 2.5 %. Fixed before the first run: no cell above 5 %, five looks together at most 5 %,
and the looks after the first find at most 2.5 % more; with copies no cell above 4 %; of 20 slices
one is called worse in at most 5 %.

    python -m bench.verdict_null          (PCO_BENCH_WORLDS=5000 for a sharper table)
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from random import Random
from statistics import NormalDist

from bench.figures import Figure, shown
from promptcodebook.base.intervals import SIDE, Interval, paired_interval
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Usage
from promptcodebook.run.decision import decide, side_of
from promptcodebook.run.slices import gains_by_slice, worse_in
from promptcodebook.run.verdict import VerdictRow

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "500"))
SIZES = (20, 60, 200)
REWARDS = ("binary", "share", "lognormal")
# Calls per query of each row beside the policy; 1.02 is a re-ask now and then.
MODES: Mapping[str, Mapping[str, float]] = {
    "one call": {"present": 1.0, "concat": 1.0, "untrained": 1.02, "best_single": 1.0},
    "encoder": {"present": 1.0, "concat": 1.0, "untrained": 3.0, "best_fixed": 1.0},
}
CALLS = {"one call": 1.0, "encoder": 3.0}
ALL, HEAVY = "all equal", "rare heavy losses"
GAINS = (0.05, 0.1, 0.2)
GOAL, MORE = 5.0, 2.5
LOOKS = 5
CANDIDATES, VALIDATION = 8, 40
COPIES, COPIED_GOAL = (2, 5, 10), 4.0
SLICES, IN_SLICE = 20, (20, 60)
SWAY = 0.3
WORSE = 0.2
LOST = 1 / 8
MEDIAN, SIGMA = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """Worlds of one kind: a null by its name, or '' and a true gain over every row."""

    mode: str
    n: int
    reward: str
    null: str
    gain: float = 0.0
    copies: int = 1


def shift(p: float, gain: float) -> float:
    """A chance that is evenly spread over 0..1, moved by `gain` on average, within 0..1."""
    return p * (1 - 2 * abs(gain)) + max(0.0, 2 * gain)


def earn(p: float, reward: str, draw: Random) -> float:
    if reward == "binary":
        return float(draw.random() < p)
    flip = draw.random
    return ((flip() < p) + (flip() < p) + (flip() < p) + (flip() < p)) / 4


def mean_loss() -> float:
    """Of the lognormal loss, which is at most 1."""
    normal, log = NormalDist(), math.log(MEDIAN)
    within = math.exp(log + SIGMA**2 / 2) * normal.cdf(-log / SIGMA - SIGMA)
    return within + 1 - normal.cdf(-log / SIGMA)


def row_rewards(job: Job, name: str, ps: Sequence[float], draw: Random) -> list[float]:
    """Of a row beside the policy: as good as the policy, or worse."""
    equal = not job.null or job.null in (ALL, HEAVY, f"{name} equal")
    below = 0.0 if equal else WORSE
    if job.reward == "lognormal":
        level = 1 - mean_loss() - below
        return [min(1.0, level + draw.gauss(0.0, 0.02)) for _ in ps]
    return [earn(shift(p, -below), job.reward, draw) for p in ps]


def candidate(job: Job, draw: Random) -> Callable[[float], float]:
    """The reward of one candidate where the common chance is p: swayed, and on the whole equal."""
    if job.reward == "lognormal":
        return lambda _: 1 - min(1.0, MEDIAN * math.exp(SIGMA * draw.gauss(0.0, 1.0)))
    if job.null == HEAVY:
        even = LOST * 0.5 / (1 - LOST)
        return lambda p: 0.0 if draw.random() < LOST else earn(shift(p, even), job.reward, draw)

    def swayed(p: float) -> float:
        moved = shift(p, job.gain)
        # As far up as down, so that the mean over all examples stays where it is.
        moved += draw.uniform(-1, 1) * min(SWAY, moved, 1 - moved)
        return earn(moved, job.reward, draw)

    return swayed


def learned_rewards(job: Job, ps: Sequence[float], draw: Random) -> list[float]:
    """Of the candidate that is best on fresh validation examples."""
    valid = [draw.random() for _ in range(VALIDATION)]
    candidates = [candidate(job, draw) for _ in range(CANDIDATES)]
    best = max(candidates, key=lambda each: sum(map(each, valid)))
    return [best(p) for p in ps]


def judged(
    job: Job,
    rows: Mapping[str, Sequence[float]],
    learned: Sequence[float],
    look: int,
    *,
    grouped: bool = True,
) -> tuple[bool, str]:
    """Worth deploying or not, and what to deploy; copies form groups, unless not `grouped`."""
    groups = [i for i in range(len(learned)) for _ in range(job.copies)]

    def over(a: Sequence[float], b: Sequence[float]) -> Interval:
        a, b = ([reward for reward in side for _ in range(job.copies)] for side in (a, b))
        return paired_interval(a, b, side=side_of(look), groups=groups if grouped else ())

    made = [
        row(name, calls, over(rows[name], rows["present"]), over(learned, rows[name]))
        for name, calls in MODES[job.mode].items()
    ]
    made.append(row("learned", CALLS[job.mode], over(learned, rows["present"])))
    _, worth, deploy = decide(made, look)
    return bool(worth), deploy


def row(
    name: str, calls: float, gain: Interval | None = None, over: Interval | None = None
) -> VerdictRow:
    unscored = Interval(0.0, 0.0, 0.0, 1)
    return VerdictRow(name, unscored, gain, None, 0, 0, Usage(), calls, title=name, over=over)


def world(job: Job, number: int) -> tuple[bool, bool]:
    """One world: worth deploying, and any row but the present one recommended."""
    draw = keyed_random("null world", *map(str, (job.mode, job.n, job.reward, job.null)), number)
    test = [draw.random() for _ in range(job.n)]
    rows = {name: row_rewards(job, name, test, draw) for name in MODES[job.mode]}
    worth, deploy = judged(job, rows, learned_rewards(job, test, draw), 1)
    return worth, deploy not in ("", "present")


def looked(job: Job, number: int) -> tuple[bool, bool, bool]:
    """One world, and a policy that is learned again before each look: found at the first look, at
    any by the rule, and at any if each look were the first."""
    draw = keyed_random("looks", job.mode, job.n, job.reward, job.null, number)
    test = [draw.random() for _ in range(job.n)]
    rows = {name: row_rewards(job, name, test, draw) for name in MODES[job.mode]}
    first = by_rule = uncorrected = False
    for look in range(1, LOOKS + 1):
        learned = learned_rewards(job, test, draw)
        found = judged(job, rows, learned, 1)[0]
        uncorrected = uncorrected or found
        first = first or (found and look == 1)
        # Wider intervals find nothing that narrower ones do not.
        by_rule = by_rule or (found and judged(job, rows, learned, look)[0])
    return first, by_rule, uncorrected


def copied(job: Job, number: int) -> tuple[bool, bool]:
    """One world of n rows in copies: worth deploying by groups, and by rows."""
    draw = keyed_random("copies", job.n, job.reward, job.copies, number)
    test = [draw.random() for _ in range(job.n // job.copies)]
    rows = {name: row_rewards(job, name, test, draw) for name in MODES[job.mode]}
    learned = learned_rewards(job, test, draw)
    by_groups, by_rows = (judged(job, rows, learned, 1, grouped=g)[0] for g in (True, False))
    return by_groups, by_rows


def sliced(job: Job, number: int) -> tuple[bool, bool]:
    """One world of SLICES times n rows: some slice called worse, by intervals that hold together
    and by others."""
    draw = keyed_random("slices", job.n, job.reward, number)
    ids = [str(i) for i in range(SLICES * job.n)]
    test = [draw.random() for _ in ids]
    before = dict(zip(ids, row_rewards(job, "present", test, draw), strict=True))
    after = dict(zip(ids, row_rewards(job, "present", test, draw), strict=True))
    slices = {name: [str(int(name) % SLICES)] for name in ids}
    together, alone = (
        worse_in(gains_by_slice(before, after, slices, {}, side=side))
        for side in (SIDE, SIDE * SLICES)
    )
    return bool(together), bool(alone)


def shares_of_slices(job: Job) -> tuple[float, ...]:
    made = [sliced(job, number) for number in range(WORLDS)]
    return tuple(100 * sum(column) / WORLDS for column in zip(*made, strict=True))


def shares_of_copies(job: Job) -> tuple[float, ...]:
    made = [copied(job, number) for number in range(WORLDS)]
    return tuple(100 * sum(column) / WORLDS for column in zip(*made, strict=True))


def shares(job: Job) -> tuple[float, ...]:
    """In percent, of what `world` says."""
    made = [world(job, number) for number in range(WORLDS)]
    return tuple(100 * sum(column) / WORLDS for column in zip(*made, strict=True))


def shares_of_looks(job: Job) -> tuple[float, ...]:
    made = [looked(job, number) for number in range(WORLDS)]
    return tuple(100 * sum(column) / WORLDS for column in zip(*made, strict=True))


def binomial(percent: float) -> str:
    """The 95 % interval of a share of the worlds (Wilson)."""
    z, share = 1.96, percent / 100
    centre = (share + z**2 / (2 * WORLDS)) / (1 + z**2 / WORLDS)
    reach = math.sqrt(share * (1 - share) / WORLDS + z**2 / (4 * WORLDS**2)) * z
    reach /= 1 + z**2 / WORLDS
    return f"95 % {100 * (centre - reach):.1f} to {100 * (centre + reach):.1f}"


def nulls(mode: str, reward: str) -> Sequence[str]:
    equal = [f"{name} equal" for name in MODES[mode]]
    return [ALL, *equal] if reward == "lognormal" else [ALL, *equal, HEAVY]


def measure() -> Sequence[Figure]:
    cells = product(MODES, REWARDS, SIZES)
    false = [Job(m, n, reward, null) for m, reward, n in cells for null in nulls(m, reward)]
    looks = [Job("one call", n, r, "present equal") for r, n in product(REWARDS, SIZES)]
    sizes = product(COPIES, REWARDS[:2], SIZES[1:])
    copies = [Job("one call", n, r, "present equal", copies=c) for c, r, n in sizes]
    powers = [Job(m, n, r, "", g) for m, g, r, n in product(MODES, GAINS, REWARDS[:2], SIZES)]
    parts = [Job("one call", n, r, ALL) for r, n in product(REWARDS[:2], IN_SLICE)]
    with ProcessPoolExecutor() as pool:
        done = list(pool.map(shares, [*false, *powers]))
        again = list(pool.map(shares_of_looks, looks))
        alike = list(pool.map(shares_of_copies, copies))
        parted = list(pool.map(shares_of_slices, parts))
    figures: list[Figure] = []
    for job, (worth, other) in zip([*false, *powers], done, strict=True):
        where = f"{job.mode}, {job.reward}, n = {job.n}"
        if job.null:
            beside = f"{binomial(worth)}; any other row named {other:.1f} %"
            name = f"false, {job.null}, {where}"
            figures.append(Figure(name, worth, "%", GOAL, beside=beside))
        else:
            figures.append(Figure(f"power at {job.gain:g}, {where}", worth, "%"))
    for job, (first, by_rule, uncorrected) in zip(looks, again, strict=True):
        where = f"{LOOKS} looks, {job.reward}, n = {job.n}"
        beside = f"{binomial(by_rule)}; each at 95 %: {uncorrected:.1f} %"
        figures.append(Figure(f"false, {where}", by_rule, "%", GOAL, beside=beside))
        figures.append(Figure(f"of it after the first, {where}", by_rule - first, "%", MORE))
    for job, (by_groups, by_rows) in zip(copies, alike, strict=True):
        where = f"{job.copies} copies, {job.reward}, {job.n} rows"
        beside = f"{binomial(by_groups)}; by rows {by_rows:.1f} %"
        figures.append(Figure(f"false, {where}", by_groups, "%", COPIED_GOAL, beside=beside))
    for job, (together, alone) in zip(parts, parted, strict=True):
        where = f"{SLICES} slices of {job.n}, {job.reward}"
        beside = f"{binomial(together)}; each at 95 %: {alone:.1f} %"
        figures.append(Figure(f"some worse, {where}", together, "%", GOAL, beside=beside))
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
