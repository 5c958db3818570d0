"""How often a canary is wrongly promoted or rolled back, and how soon it finds a harm of 0.1.

Simulated worlds in pure numbers, judged by `deploy/online/canary_decision.py` after each single
feedback of up to 5,000. A share of the traffic (10 % or 50 %) goes to the canary. Rewards are 0 or
1 with mean 0.7, or graded: a Beta(3.5, 1.5) of the same mean. In a null world both arms are equal,
or both fall from 0.9 to 0.5 together, which the theory does not cover. Guards: the canary's
requests take longer by exactly the 0.02 that are allowed (seconds are lognormal, median 3 and sigma
0.5), or fail as often as those of the control (2 %), and no reward is known.

A fixed-horizon test is the z-test of two means whose size is chosen for a power before it starts,
at the same error of 3.5 %: what a canary could do that is looked at once.

Expected, and fixed before the first run. What was known then: 40 worlds with a look at every 100th
feedback found the harm of 0.1 after 3,400 feedbacks in the median at 10 % traffic, and after 5,850
in 90 % of worlds; at 50 %, after 1,500 and 2,420.

- Null worlds: at most 5 % end in either way, in each cell of 2,000 worlds, drifting ones included.
- Guards at the bound: at most 0.5 % of 2,000 worlds are rolled back.
- The control of the bench: a z-test at 5 % after each feedback ends more than 20 % of null worlds.
- Harm of 0.1 at 10 % traffic: found after at most 4,000 feedbacks in the median and 7,000 in 90 %
  of 500 worlds. That is at most 3.5 and 2.5 times what the fixed-horizon test of that power needs.
- By 20,000 feedbacks, harm of 0.1 is rolled back and gain of 0.1 promoted in at least 99 % of 500
  worlds.

Found: 0.4 % (10 % traffic) and 0.8 % of 0/1 null worlds end, 0.2 % and 0.5 % of graded ones,
and 0.8 % and 0.4 % of 0/1 worlds in which both arms fall. No guard at its bound rolled back. A
z-test at each feedback ends 44 to 50 %. At 10 %, harm of 0.1 in 0/1 rewards is found after 3,237
feedbacks in the median and 6,675 in 90 % of worlds, 2.8 and 2.2 times what the fixed-horizon test
needs; by 5,000, in 78 %. In graded rewards it takes 509 and 914. All harm and gain ends the right
way. That was without `decide_without_one`. With it, harm of 0.1 in 0/1 rewards at 50 % is found
after 2,250 feedbacks of ten equal keys in the median, 3,500 where one of ten gives half, and 3,750
of two keys; without it after 1,500 (20 worlds, a look at every 250th feedback).

Feedback that is given unequally: both versions earn the same mean of 0.5, 0.7 or 0.9, and users
answer at 10 %, but at 20 % where they are content with the canary (praise), or not content with
today's version (complaint), or both. 2,000 worlds a cell of up to 5,000 feedbacks. A canary counts
as promoted though it may have been rolled back before. Goals, fixed before the first run:

- In each cell at most 5 % of canaries are promoted. Of both at a mean of 0.5 the shares of requests
  with feedback are equal, and no data can tell it from a gain: it has no goal, and the figure says
  what factor the promotion states. There the true one is 4.
- Where all users answer at 10 %, and the canary earns 0.8 instead of 0.7: of 2,000 worlds at least
  0.8 times as many are promoted as without the tests of who answers, by 20,000 feedbacks at either
  traffic, and by 5,000 at 50 %. By 5,000 at 10 % it is for reading: on paper more praise at 10 %
  traffic takes about four times the feedback of a gain among answers.

Found: at most 0.6 % are promoted in each cell that has a goal, and without these tests 56 to 100 %.
Of both at a mean of 0.5 it is 83 % and 100 %, with a stated factor of 2.5 in the median. The power
is 0.87 (10 %) and 1.00 (50 %) of that without these tests by 20,000 feedbacks, and 0.87 at 50 % by
5,000. At 10 % by 5,000 it is 0.10 (7.9 of 79.6 %).

    python -m bench.canary          (PCO_BENCH_WORLDS=200: a quick look)
    PCO_BENCH_UNEQUAL=1 python -m bench.canary      (unequal feedback alone)
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_int
from promptcodebook.deploy.online.canary_decision import (
    ALIKE,
    ALLOWED,
    ANSWER_ALPHA,
    FULL,
    GUARD_ALPHA,
    REWARD_ALPHA,
    decide,
    decide_without_one,
)
from promptcodebook.deploy.online.sequences import KNOTS, MEANS, ValueCounts, interval, log_capital

WORLDS = int(os.environ.get("PCO_BENCH_WORLDS", "2000"))
FEWER = WORLDS // 4
NULL_HORIZON, HORIZON = 5_000, 20_000
MEAN, HARM = 0.7, 0.1
TRAFFIC = (0.1, 0.5)
REWARDS = ("0/1", "graded")
FALSE, GUARD_FALSE, PEEKING = 5.0, 0.5, 20.0
MEDIAN_GOAL, MOST_GOAL, MEDIAN_TIMES, MOST_TIMES, RIGHT = 4_000, 7_000, 3.5, 2.5, 99.0
BLOCK = 1_000
LOOK = 250
KEYS = {"no key": (1,), "10 keys": (1,) * 10, "one of half": (9, *(1,) * 9), "2 keys": (1, 1)}
ANSWERS = {
    "praise": ((0.2, 0.1), (0.1, 0.1)),
    "complaint": ((0.1, 0.1), (0.1, 0.2)),
    "both": ((0.2, 0.1), (0.1, 0.2)),
    "equally": ((0.1, 0.1), (0.1, 0.1)),
}
"""How likely users of the canary and of today's version answer if they are content, and if not."""
LEVELS, POWER = (0.5, 0.7, 0.9), 0.8
STREAMS, SPANS = 40, (50, 200, 1_000, 5_000)


@dataclass(frozen=True, slots=True)
class Job:
    """Worlds of one kind. `gain` is the canary's over the control; of a guard, what it is worse."""

    kind: str
    traffic: float
    gain: float = 0.0
    drifting: bool = False
    horizon: int = NULL_HORIZON
    mean: float = MEAN

    @property
    def guard(self) -> str:
        return self.kind if self.kind in FULL else ""


def world(job: Job, number: int) -> tuple[np.ndarray, np.ndarray]:
    """By feedback: whether the canary had it, and its value from 0 to 1."""
    draw = np.random.default_rng(keyed_int("canary", str(job), number))
    canary = draw.random(job.horizon) < job.traffic
    level = np.linspace(0.9, 0.5, job.horizon) if job.drifting else np.full(job.horizon, MEAN)
    if job.kind == "0/1":
        return canary, (draw.random(job.horizon) < level + job.gain * canary).astype(float)
    if job.kind == "graded":
        mean = level + job.gain * canary
        return canary, draw.beta(5 * mean, 5 * (1 - mean))
    if job.kind == "failed":
        return canary, (draw.random(job.horizon) < 0.02 + job.gain * canary).astype(float)
    seconds = 3 * np.exp(0.5 * draw.standard_normal(job.horizon)) / FULL["seconds"]
    return canary, np.minimum(seconds + job.gain * canary, 1.0)


def counted(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The tally of the chosen values, a column for each moment."""
    below = np.minimum((values * KNOTS).astype(int), KNOTS - 1)
    part, each = values * KNOTS - below, np.arange(len(values))
    counts = np.zeros((KNOTS + 1, len(values)))
    counts[below, each], counts[below + 1, each] = (1 - part) * chosen, part * chosen
    used = counts.any(axis=1)
    counts[used] = counts[used].cumsum(axis=1)
    return counts


def candidates(
    job: Job, canary: np.ndarray, control: np.ndarray, among: np.ndarray | None = None
) -> Iterator[int]:
    """The moments (of these) at which a decision is possible at all. Both ends of a difference
    exclude a margin only if at each single mean the arms' capitals are together large enough: seven
    means near that of both arms leave few moments."""
    need = math.log(1 / GUARD_ALPHA if job.guard else 2 / REWARD_ALPHA)
    shift = round(ALLOWED * MEANS) if job.guard else 0
    used = np.flatnonzero(canary[:, -1] + control[:, -1])
    canary, control = canary[used], control[used]

    def passed(rising: np.ndarray, falling: np.ndarray, left: np.ndarray) -> np.ndarray:
        last = left[-1]
        pooled = (rising[:, last] + falling[:, last]) @ used / KNOTS / (last + 1)
        for off in (0.0, 0.01, -0.01, 0.02, -0.02, 0.04, -0.04):
            # The capital against "at most row + 1", and against "at least row - shift - 1".
            row = min(max(round((pooled + off) * MEANS) + shift // 2, shift + 1), MEANS - 1)
            up = log_capital(rising[:, left], [row], used)[0]
            down = log_capital(falling[:, left], [MEANS - row + shift], KNOTS - used)[0]
            left = left[up + down >= need]
        return left

    among = np.arange(job.horizon) if among is None else among
    for block in np.array_split(among, math.ceil(len(among) / BLOCK) or 1):
        if not len(block):
            return
        found = passed(canary, control, block)
        if not job.guard:
            found = np.union1d(found, passed(control, canary, block))
        yield from map(int, found)


def ended(job: Job, number: int) -> tuple[str, int]:
    """How a canary ends and after how many feedbacks."""
    chosen, values = world(job, number)
    canary, control = counted(values, chosen), counted(values, ~chosen)
    for moment in candidates(job, canary, control):
        action = at(job, canary[:, moment], control[:, moment])
        if action != "wait":
            return action, moment + 1
    return "wait", job.horizon


def at(job: Job, canary: np.ndarray, control: np.ndarray) -> str:
    """What is decided on these counts."""
    a, b = (ValueCounts(tuple(counts.tolist())) for counts in (canary, control))
    if job.guard:
        return decide(ValueCounts(), ValueCounts(), {job.guard: (a, b)}).action
    return decide(a, b, {}).action


def answers(job: Job, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By feedback: whether the canary had it, its value, and how many requests of either version
    there were until then."""
    draw = np.random.default_rng(keyed_int("answers", str(job), number))
    canary = draw.random(15 * job.horizon) < job.traffic
    content = draw.random(len(canary)) < job.mean + job.gain * canary
    chances = np.array(ANSWERS[job.kind])[1 - canary.astype(int), 1 - content.astype(int)]
    heard = np.flatnonzero(draw.random(len(canary)) < chances)[: job.horizon]
    requests = np.stack([canary.cumsum(), (~canary).cumsum()])[:, heard]
    return canary[heard], content[heard].astype(float), requests


def exceeds(ours: np.ndarray, theirs: np.ndarray, odds: np.ndarray, least: float) -> np.ndarray:
    """Where the lower end of `rate_ratio` is above `least`; a row of the capital says it."""
    thin, other = np.minimum(1, 2 / odds), np.minimum(1, 2 * odds)
    equal = least * odds * thin / other
    rows = (equal / (1 + equal) * MEANS).astype(int)
    counts, above = np.stack([theirs * other, ours * thin]), np.zeros(len(rows), bool)
    for row in np.unique(rows):
        at_row = np.flatnonzero(rows == row)
        capital = log_capital(counts[:, at_row], [row], [0, KNOTS])[0]
        above[at_row] = capital >= math.log(2 / ANSWER_ALPHA)
    return above


def promoted(job: Job, number: int) -> tuple[int, int, float]:
    """The feedbacks after which a canary is promoted if it is not asked who answers, and if it is
    (0: never), and the factor that is stated then."""
    chosen, values, requests = answers(job, number)
    canary, control = counted(values, chosen), counted(values, ~chosen)
    odds = np.maximum(requests[0] / np.maximum(requests[1], 1), 1e-3)
    heard, others = chosen.cumsum(), (~chosen).cumsum()
    (praise, usual), (blame, less) = (
        ((kept * chosen).cumsum(), (kept * ~chosen).cumsum()) for kept in (values, 1 - values)
    )
    passes = exceeds(praise, usual, odds, 1.0) & exceeds(less, blame, 1 / odds, 1.0)
    passes &= exceeds(heard, others, odds, 1 / ALIKE) & exceeds(others, heard, 1 / odds, 1 / ALIKE)

    def first(among: np.ndarray | None, *, asked: bool) -> tuple[int, float]:
        for moment in candidates(job, canary, control, among):
            a, b = (ValueCounts(tuple(arm[:, moment].tolist())) for arm in (canary, control))
            n, m = requests[:, moment] - (a.n, b.n) if asked else (0, 0)
            if (made := decide(a, b, {}, silent=(float(n), float(m)))).action == "promote":
                return moment + 1, made.factor
        return 0, 0.0

    return (first(None, asked=False)[0], *first(np.flatnonzero(passes), asked=True))


def unequal(pool: ProcessPoolExecutor) -> Iterator[Figure]:
    """What unequal feedback promotes, and what it costs where feedback is given equally."""
    for kind, mean, traffic in product(("praise", "complaint", "both"), LEVELS, TRAFFIC):
        job = Job(kind, traffic, mean=mean)
        ends = list(pool.map(promoted, [job] * WORLDS, range(WORLDS), chunksize=50))
        before, now = (100 * sum(each[k] > 0 for each in ends) / WORLDS for k in (0, 1))
        beside, told = f"not asked who answers {before:.1f} %", kind == "both" and mean == 0.5
        if factors := [each[2] for each in ends if each[1]]:
            beside += f"; factor {np.median(factors):.2f}, at most {max(factors):.2f}"
        name = f"promoted, unequal {kind}, {mean:g}, {traffic:.0%}"
        yield Figure(name, now, "%", None if told else FALSE, beside=beside)
    for traffic in TRAFFIC:
        job = Job("equally", traffic, HARM, horizon=HORIZON)
        ends = list(pool.map(promoted, [job] * WORLDS, range(WORLDS), chunksize=50))
        for horizon in (NULL_HORIZON, HORIZON):
            before, now = (
                100 * sum(0 < each[k] <= horizon for each in ends) / WORLDS for k in (0, 1)
            )
            medians = [np.median([each[k] or np.inf for each in ends]) for k in (0, 1)]
            goal = None if (traffic, horizon) == (TRAFFIC[0], NULL_HORIZON) else POWER
            name = f"power for 0.1 beside not asking, {traffic:.0%}, by {horizon:,}"
            beside = f"{now:.1f} of {before:.1f} %; medians {medians[1]:,.0f}, {medians[0]:,.0f}"
            yield Figure(name, now / before, "", goal, at_least=True, beside=beside)


def peeked(job: Job, number: int) -> bool:
    """Whether a z-test at 5 % ends a null world, asked after each feedback from the 100th on."""
    chosen, values = world(job, number)

    def moments(mask: np.ndarray) -> Iterator[np.ndarray]:
        n = np.maximum(mask.cumsum(), 1)
        mean = (values * mask).cumsum() / n
        yield mean
        yield np.maximum((values**2 * mask).cumsum() / n - mean**2, 1e-9) / n

    (a, a_error), (b, b_error) = moments(chosen), moments(~chosen)
    z = np.abs(a - b) / np.sqrt(a_error + b_error)
    return bool((z[100:] > NormalDist().inv_cdf(0.975)).any())


def by_keys(weights: Sequence[int], number: int) -> int:
    """The feedbacks of keys with these shares after which a harm of 0.1 is found at 50 %."""
    chosen, values = world(Job("0/1", 0.5, -HARM, horizon=HORIZON), number)
    keys = np.random.default_rng(number).choice(np.repeat(range(len(weights)), weights), HORIZON)
    for moment in range(LOOK, HORIZON, LOOK):
        canary, control = (
            {str(k): ValueCounts.of(values[:moment][(arm & (keys == k))[:moment]]) for k in {*keys}}
            for arm in (chosen, ~chosen)
        )
        if decide_without_one((canary, control), {}).action == "roll back":
            return moment
    return HORIZON


def fixed_horizon(job: Job, power: float) -> float:
    """Feedbacks that a z-test of two shares needs for this power."""
    normal, p, q = NormalDist(), MEAN + job.gain, MEAN
    variance = p * (1 - p) / job.traffic + q * (1 - q) / (1 - job.traffic)
    reach = normal.inv_cdf(1 - REWARD_ALPHA / 2) + normal.inv_cdf(power)
    return reach**2 * variance / job.gain**2


def hedged_width(values: np.ndarray, span: int, alpha: float = 0.05) -> float:
    """Of the paper's hedged capital, its running intersection included."""
    x, t = values[:span], np.arange(1, span + 1)
    mean = (0.5 + x.cumsum()) / (t + 1)
    variance = (0.25 + ((x - mean) ** 2).cumsum()) / (t + 1)
    before = np.array([0.25, *variance[:-1]])
    bets = np.sqrt(2 * math.log(2 / alpha) / (before * t * np.log(1 + t)))[:, None]
    means = np.arange(1, MEANS) / MEANS
    up = np.log1p(np.minimum(bets, 0.5 / means) * (x[:, None] - means)).cumsum(axis=0)
    down = np.log1p(-np.minimum(bets, 0.5 / (1 - means)) * (x[:, None] - means)).cumsum(axis=0)
    left = means[(np.maximum(up, down) < math.log(2 / alpha)).all(axis=0)]
    return float(left[-1] - left[0]) + 2 / MEANS


def widths(kind: str) -> Iterator[Figure]:
    """Of one mean's interval, beside the paper's."""
    job = Job(kind, 0.0)
    streams = [world(job, number)[1] for number in range(STREAMS)]
    for span in SPANS:
        ours = [interval(ValueCounts.of(values[:span])) for values in streams]
        width = float(np.mean([high - low for low, high in ours]))
        beside = float(np.mean([hedged_width(values, span) for values in streams]))
        text = f"hedged capital {beside:.3f}; {width / beside:.2f} of it"
        yield Figure(f"width after {span:,}, {kind}", width, beside=text)


def both_sides(pool: ProcessPoolExecutor) -> Iterator[Figure]:
    """Harm and gain of 0.1: what is decided, and how soon."""
    for gain, traffic, kind in product((-HARM, HARM), TRAFFIC, REWARDS):
        job = Job(kind, traffic, gain, horizon=HORIZON)
        ends = list(pool.map(ended, [job] * FEWER, range(FEWER), chunksize=50))
        wanted = "roll back" if gain < 0 else "promote"
        where = f"{'harm' if gain < 0 else 'gain'} of 0.1, {kind}, {traffic:.0%}"
        right = 100 * sum(action == wanted for action, _ in ends) / FEWER
        wrong = 100 * sum(action not in (wanted, "wait") for action, _ in ends) / FEWER
        early = 100 * sum(after <= NULL_HORIZON for _, after in ends) / FEWER
        beside = f"by {NULL_HORIZON:,}: {early:.1f} %; the other way {wrong:.2f} %"
        yield Figure(f"{wanted}, {where}", right, "%", RIGHT, at_least=True, beside=beside)
        judged = gain < 0 and traffic == TRAFFIC[0] and kind == "0/1"
        for power, goal, times in ((0.5, MEDIAN_GOAL, MEDIAN_TIMES), (0.9, MOST_GOAL, MOST_TIMES)):
            after = float(np.quantile([after for _, after in ends], power))
            name = f"feedbacks for {power:.0%}, {where}"
            if kind == "graded":
                yield Figure(name, after)
                continue
            fixed = fixed_horizon(job, power)
            text = f"fixed-horizon test {fixed:,.0f}; {after / fixed:.2f} times as many"
            yield Figure(name, after, "", goal if judged else None, beside=text)
            if judged:
                yield Figure(
                    f"  times the fixed-horizon test, {power:.0%}", after / fixed, "", times
                )


def measure() -> Sequence[Figure]:
    if os.environ.get("PCO_BENCH_UNEQUAL"):
        with ProcessPoolExecutor() as pool:
            return list(unequal(pool))
    figures = [figure for kind in REWARDS for figure in widths(kind)]
    nulls = [Job(k, t, drifting=d) for d, k, t in product((False, True), REWARDS, TRAFFIC)]
    bounds = [Job("seconds", t, ALLOWED) for t in TRAFFIC] + [Job("failed", t) for t in TRAFFIC]
    with ProcessPoolExecutor() as pool:
        for job in [*nulls, *bounds]:
            ends = list(pool.map(ended, [job] * WORLDS, range(WORLDS), chunksize=50))
            false = 100 * sum(action != "wait" for action, _ in ends) / WORLDS
            up = sum(action == "promote" for action, _ in ends)
            down = sum(action == "roll back" for action, _ in ends)
            drifts = ", both drifting" if job.drifting else ""
            name = f"false, {'guard ' if job.guard else ''}{job.kind}, {job.traffic:.0%}{drifts}"
            beside = f"{up} promoted, {down} rolled back of {WORLDS:,}"
            goal = GUARD_FALSE if job.guard else FALSE
            figures.append(Figure(name, false, "%", goal, beside=beside))
        for job in nulls[: len(nulls) // 2]:
            ends = pool.map(peeked, [job] * WORLDS, range(WORLDS), chunksize=50)
            name = f"false, z-test at each feedback, {job.kind}, {job.traffic:.0%}"
            figures.append(Figure(name, 100 * sum(ends) / WORLDS, "%", PEEKING, at_least=True))
        figures += [*both_sides(pool), *unequal(pool)]
        for name, weights in KEYS.items():
            found = pool.map(by_keys, [weights] * (FEWER // 25), range(FEWER // 25))
            figures.append(Figure(f"feedbacks for 50%, {name}", float(np.median([*found]))))
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
