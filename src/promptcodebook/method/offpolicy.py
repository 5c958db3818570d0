"""What the learned routes are worth by the outcomes of training alone: before any test example.

A doubly robust estimate (Dudík, Langford and Li 2011): where the logged route is the policy's own,
the fitted model's forecast is corrected by what came of it, over the chance that the route had. It
is cross-fitted by example: policy, best single instinct and forecast of an example come from the
outcomes of other examples, so that nothing is judged by what it was chosen on. A weight is at most
`MOST_WEIGHT`, which keeps the interval narrow and lets a forecast count where a route was rare.
Outcomes of an instinct before its last rewrite are fitted to, and not judged by. Where unsolved
examples were visited more often than solved ones, an example's later visits hang on its earlier
outcomes and their mean would be biased: its first visit alone is judged by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptcodebook.intervals import Interval, mean_interval
from promptcodebook.method.outcomes import Outcome, OutcomeModel
from promptcodebook.method.ranking import Expected, Ranker, chosen

FOLDS = 5
MOST_WEIGHT = 20.0
_FEWEST = 20
"""Examples below which there is no estimate."""


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Expected reward (in [0, 1]) of the learned routes, and their gain over the best single
    instinct and over none; n counts examples, `rollouts` what was logged of them."""

    value: Interval
    over_single: Interval
    over_none: Interval
    rollouts: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What routes are chosen under, and whether only first visits are judged by."""

    select: int
    least: int
    seed: int = 0
    first_visits: bool = False


def off_policy(
    model: OutcomeModel,
    inputs: Mapping[str, str],
    texts: Sequence[str],
    outcomes: Sequence[Outcome],
    versions: Sequence[int],
    terms: Terms,
) -> OffPolicy | None:
    """None where fewer than 20 examples have an outcome of the instincts as they are now."""
    columns: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    names = sorted({o.example_id for o in outcomes})
    logged = _first_visits(outcomes) if terms.first_visits else outcomes
    for fold in range(FOLDS):
        inside = set(names[fold::FOLDS])
        others = [o for o in outcomes if o.example_id not in inside]
        if not others:
            return None
        ranker = Ranker(model.fit(others, versions).ranking(terms.least), texts)
        expected = {name: ranker.of(model.features(name)) for name in inputs}
        single = _best_single(list(expected.values()))
        for outcome in logged:
            if outcome.example_id in inside and _counts(outcome, versions):
                own = expected[outcome.example_id]
                route = chosen(own.marginal, own.more, terms.select, terms.least)
                columns[outcome.example_id].append(
                    (
                        _doubly_robust(outcome, own, route),
                        _doubly_robust(outcome, own, (single,)),
                        _doubly_robust(outcome, own, ()),
                    )
                )
    if len(columns) < _FEWEST:
        return None
    means = [tuple(sum(c) / len(c) for c in zip(*rows, strict=True)) for rows in columns.values()]
    learned = [m[0] for m in means]
    return OffPolicy(
        mean_interval(learned, terms.seed),
        mean_interval([m[0] - m[1] for m in means], terms.seed, (-1.0, 1.0)),
        mean_interval([m[0] - m[2] for m in means], terms.seed, (-1.0, 1.0)),
        sum(map(len, columns.values())),
    )


def _first_visits(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The first reward of each example, in their order."""
    first: dict[str, Outcome] = {}
    for outcome in outcomes:
        if not outcome.part:
            first.setdefault(outcome.example_id, outcome)
    return list(first.values())


def _counts(outcome: Outcome, versions: Sequence[int]) -> bool:
    """Whether it says something of the instincts as they are now, with a known chance."""
    current = all(v == versions[k] for k, v in zip(outcome.indices, outcome.versions, strict=True))
    return current and not outcome.part and outcome.propensity is not None


def _best_single(expected: Sequence[Expected]) -> int:
    sums = [sum(column) for column in zip(*(e.marginal for e in expected), strict=True)]
    return sums.index(max(sums))


def _doubly_robust(outcome: Outcome, expected: Expected, route: tuple[int, ...]) -> float:
    forecast = expected.of(route)
    if outcome.indices != route or outcome.propensity is None:
        return forecast
    weight = min(MOST_WEIGHT, 1.0 / outcome.propensity)
    return forecast + weight * (outcome.reward - forecast)
