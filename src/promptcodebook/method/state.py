"""What Algorithm 1 carries from one update to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcodebook.types import Parameters, Step, Trace

__all__ = [
    "RoutingStatistics",
    "State",
    "average_success",
    "entropy",
    "has_collapsed",
    "utilisation",
    "utilisation_bound",
]


@dataclass(frozen=True, slots=True)
class RoutingStatistics:
    """How the codebook's entries have done, each of length K: r̄, the EMA of r, and counts."""

    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]

    @classmethod
    def fresh(cls, size: int) -> RoutingStatistics:
        """Algorithm 1, line 2: r̄_k = 0 for all k."""
        return cls((0.0,) * size, (0.0,) * size, (0,) * size)

    def pick(self, origins: Sequence[int | None]) -> RoutingStatistics:
        """Those of the entries `origins`, in that order; None = an entry that begins anew."""
        return RoutingStatistics(
            tuple(0.0 if k is None else self.ema[k] for k in origins),
            tuple(0.0 if k is None else self.success[k] for k in origins),
            tuple(0 if k is None else self.selected[k] for k in origins),
        )


@dataclass(frozen=True, slots=True)
class State:
    """Θ and the routing statistics; `step` is the index of the next update."""

    step: int
    parameters: Parameters
    statistics: RoutingStatistics

    @classmethod
    def first(cls, parameters: Parameters, statistics: RoutingStatistics | None = None) -> State:
        """Before the first step: Θ as initialised; r̄_k = 0, unless an earlier policy knows more."""
        return cls(0, parameters, statistics or RoutingStatistics.fresh(len(parameters.codebook)))

    @classmethod
    def after(cls, step: Step) -> State:
        """The state that a stored step left behind."""
        return cls(
            step.index + 1,
            step.parameters,
            RoutingStatistics(step.ema, step.success, step.selected),
        )

    def advance(self, parameters: Parameters, traces: Sequence[Trace], alpha: float) -> State:
        """For k in z: r̄_k <- (1-α) r̄_k + α (r - ρ), example by example in batch order.

        A failed rollout joins neither EMA (method decision 15); its selection is not counted.
        """
        ema = list(self.statistics.ema)
        success = list(self.statistics.success)
        selected = list(self.statistics.selected)
        for trace in traces:
            if trace.unit is None or trace.rollout.route is None:
                continue
            for k in trace.rollout.route.indices:
                ema[k] += alpha * (trace.unit - trace.penalty - ema[k])
                success[k] += alpha * (trace.unit - success[k])
                selected[k] += 1
        statistics = RoutingStatistics(tuple(ema), tuple(success), tuple(selected))
        return replace(self, step=self.step + 1, parameters=parameters, statistics=statistics)


def entropy(counts: Sequence[int]) -> float:
    """Shannon entropy in bits of selection counts over K entries."""
    total = sum(counts)
    shares = [n / total for n in counts if n] if total else []
    return -sum(p * math.log2(p) for p in shares) + 0.0


def utilisation(counts: Sequence[int]) -> float:
    """Share of entries selected at least once."""
    return sum(n > 0 for n in counts) / len(counts) if counts else 0.0


def has_collapsed(counts: Sequence[int]) -> bool:
    """Definition 2: fewer than K/2 entries ever active."""
    return sum(n > 0 for n in counts) < len(counts) / 2


def average_success(counts: Sequence[int], success: Sequence[float]) -> float:
    """Success weighted by selection."""
    total = sum(counts)
    return sum(n * s for n, s in zip(counts, success, strict=True)) / total if total else 0.0


def utilisation_bound(
    size: int, select: int, explored: int, tau: float, *, wide: bool = False
) -> float:
    """Theorem 3: at least K(1 - exp(-S e^{-1/τ} n / K)) entries active after n explored examples.

    The theorem assumes r̄ in [0, 1]. As the algorithm runs, r - ρ lies in [-1, 1]; `wide` gives the
    bound for that range, with e^{-2/τ} in place of e^{-1/τ} (method decision 5).
    """
    spread = 2.0 if wide else 1.0
    return size * (1.0 - math.exp(-select * math.exp(-spread / tau) * explored / size))
