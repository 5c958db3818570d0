"""A linear router that imitates E_θ: it ranks the instincts without a call.

Beyond the paper (method decision 26). For each instinct a ridge regression on φ(x) (`ranking.py`)
predicts whether the encoder chose it, in the dual form, with the penalty of `_RIDGES` that has the
least leave-one-out error. An example counts once, however many routes it has. The route is the S
instincts that rank first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.intervals import Interval, mean_interval
from promptcodebook.routing.ranking import BUCKETS, Ranker, Vocabulary
from promptcodebook.types import Ranking

OLDER = 0.25
"""Weight of a route that the encoder gave when θ or the codebook had other texts."""
FOLDS = 5
_CONSTANT = 1.0
"""Prior variance of an instinct's own constant, beside φ·φ = 1."""
_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_DIGITS = 1000
"""Weights are kept as whole thousandths of the greatest."""
_WHAT = "a distilled router"


@dataclass(frozen=True, slots=True)
class Imitated:
    """A route that the encoder gave for an input; `weight` is below 1 under other texts."""

    example_id: str
    input: str
    indices: tuple[int, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two routers agree: the share of inputs with the same set, and the mean share of the
    instincts in either that are in both."""

    exact: Interval
    overlap: Interval


def agreement(
    routes: Sequence[Sequence[int]], others: Sequence[Sequence[int]], seed: int = 0
) -> Agreement:
    """Of two routers on the same inputs, in the same order."""
    pairs = [(set(a), set(b)) for a, b in zip(routes, others, strict=True)]
    exact = [float(a == b) for a, b in pairs]
    overlap = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]
    return Agreement(mean_interval(exact, seed), mean_interval(overlap, seed))


def distil(routes: Sequence[Imitated], size: int, select: int) -> Ranking:
    """The ranking that imitates the routes best, for a codebook of `size`. MissingExtra."""
    np = import_extra("numpy", _WHAT, "router")
    pools = import_extra("threadpoolctl", _WHAT, "router")
    by_example = _by_example(routes)
    vocabulary = Vocabulary.of([own[0].input for own in by_example.values()])
    x, y = np.zeros((len(by_example), BUCKETS)), np.zeros((len(by_example), size))
    weights = np.zeros(len(by_example))
    for i, own in enumerate(by_example.values()):
        features = vocabulary.features(own[0].input)
        x[i, list(features)] = list(features.values())
        weights[i] = max(route.weight for route in own)
        for route in own:
            y[i, list(route.indices)] += route.weight / sum(r.weight for r in own)
    # In one thread the sums do not depend on the number of cores.
    with pools.ThreadpoolController().limit(limits=1, user_api="blas"):
        mean = weights @ y / weights.sum()
        dual = _dual(np, x, y - mean, weights)
        own_weights = dual.T @ x
        constant = mean + _CONSTANT * dual.sum(axis=0)
    unit = float(np.abs(own_weights).max(initial=0.0)) / _DIGITS
    whole = np.rint(own_weights / unit).astype(int) if unit else np.zeros((size, BUCKETS), int)
    return Ranking(
        rarity=vocabulary.rarity,
        unit=float(f"{unit:.4g}"),
        weights=((0,) * BUCKETS, *(tuple(row) for row in whole.tolist())),
        bias=(0.0, *(round(b, 5) for b in constant.tolist())),
        least=select,
        outcomes=len(by_example),
        kind="distilled",
    )


def cross_agreement(
    routes: Sequence[Imitated], texts: Sequence[str], select: int, seed: int = 0
) -> Agreement | None:
    """With the encoder on examples that were held out of the fit, in five folds; None below ten
    examples. An example's route is the last of those that weigh most."""
    names = sorted({route.example_id for route in routes})
    if len(names) < 2 * FOLDS:
        return None
    ours: list[tuple[int, ...]] = []
    theirs: list[tuple[int, ...]] = []
    by_example = _by_example(routes)
    for fold in range(FOLDS):
        inside = set(names[fold::FOLDS])
        others = [route for route in routes if route.example_id not in inside]
        ranker = Ranker(distil(others, len(texts), select), texts)
        for name in sorted(inside):
            most = max(route.weight for route in by_example[name])
            last = [route for route in by_example[name] if route.weight == most][-1]
            ours.append(ranker.choose(last.input, select))
            theirs.append(last.indices)
    return agreement(ours, theirs, seed)


def _by_example(routes: Sequence[Imitated]) -> Mapping[str, Sequence[Imitated]]:
    found: defaultdict[str, list[Imitated]] = defaultdict(list)
    for route in routes:
        found[route.example_id].append(route)
    return found


def _dual(np: Any, x: Any, y: Any, weights: Any) -> Any:
    """(Q + λ/w)^-1 y under the λ whose leave-one-out residuals, dual / diag, are least."""
    kernel = _CONSTANT + x @ x.T
    best, least = None, float("inf")
    for ridge in _RIDGES:
        inverse = np.linalg.inv(kernel + ridge * np.diag(1.0 / weights))
        dual = inverse @ y
        left_out = dual / np.diag(inverse)[:, None]
        error = float((weights[:, None] * left_out**2).sum())
        if error < least:
            best, least = dual, error
    return best
