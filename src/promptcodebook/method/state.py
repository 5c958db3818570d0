"""What Algorithm 1 carries from one update to the next, and which examples make up which update.
Deviation: beside r̄, the paper's, an average of r alone is kept (method decision 5), corrected for
its start at 0. What was known of an instinct counts half once it is rewritten (25)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from promptcodebook.base.randomness import Randomness
from promptcodebook.config.schema import Update
from promptcodebook.types import (
    Example,
    Outcome,
    Parameters,
    Ranking,
    Step,
    ThetaTrial,
    Trace,
    variable_name,
)


@dataclass(frozen=True, slots=True)
class RoutingStatistics:
    """How the K entries have done: r̄, the EMA of r divided by its `evidence`, and counts. That is
    the weight of all trials, 1 - (1-α)^n after n; () = not known, as in runs of version 0.1."""

    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]
    evidence: tuple[float, ...] = ()
    ranking: Ranking | None = None

    @classmethod
    def fresh(cls, size: int) -> RoutingStatistics:
        """Algorithm 1, line 2: r̄_k = 0 for all k."""
        return cls((0.0,) * size, (0.0,) * size, (0,) * size, (0.0,) * size)

    @property
    def known(self) -> tuple[float, ...]:
        """The evidence for each entry's success."""
        return self.evidence or tuple(1.0 if n else 0.0 for n in self.selected)

    @property
    def standing(self) -> tuple[float, ...]:
        """r̄ for choosing the best: an untried entry counts as the mean of the tried ones."""
        rates = list(zip(self.ema, self.selected, strict=True))
        tried = [rate for rate, n in rates if n]
        mean = sum(tried) / len(tried) if tried else 0.0
        return tuple(rate if n else mean for rate, n in rates)

    def discount(self, rewritten: Collection[int]) -> RoutingStatistics:
        """With half the evidence for instincts that were rewritten."""
        halved = (e / 2 if k in rewritten else e for k, e in enumerate(self.known))
        return replace(self, evidence=tuple(halved))

    def pick(self, origins: Sequence[int | None]) -> RoutingStatistics:
        """Those of the entries `origins`, in that order; a new entry (None) promises nothing."""
        ranking = self.ranking
        if ranking is not None:
            blank = (0,) * len(ranking.weights[0])
            rows = (blank if k is None else ranking.weights[k + 1] for k in origins)
            bias = (0.0 if k is None else ranking.bias[k + 1] for k in origins)
            weights = (ranking.weights[0], *rows)
            ranking = replace(ranking, weights=weights, bias=(ranking.bias[0], *bias))
        return RoutingStatistics(
            tuple(0.0 if k is None else self.ema[k] for k in origins),
            tuple(0.0 if k is None else self.success[k] for k in origins),
            tuple(0 if k is None else self.selected[k] for k in origins),
            tuple(0.0 if k is None else self.evidence[k] for k in origins) if self.evidence else (),
            ranking,
        )


@dataclass(frozen=True, slots=True)
class State:
    """Θ and the routing statistics; `step` is the index of the next update. A router that learns
    keeps `outcomes`, and how often each instinct was rewritten; `harmful` texts are not kept."""

    step: int
    parameters: Parameters
    statistics: RoutingStatistics
    outcomes: tuple[Outcome, ...] = ()
    versions: tuple[int, ...] = ()
    harmful: tuple[str, ...] = ()
    trial: ThetaTrial | None = None

    @classmethod
    def first(cls, parameters: Parameters, statistics: RoutingStatistics | None = None) -> State:
        """Before the first step; r̄_k = 0, unless an earlier policy knows more."""
        return cls(0, parameters, statistics or RoutingStatistics.fresh(len(parameters.codebook)))

    @classmethod
    def after(cls, step: Step) -> State:
        """The state that a stored step left behind."""
        return cls(
            step.index + 1,
            step.parameters,
            RoutingStatistics(step.ema, step.success, step.selected, step.evidence, step.ranking),
            harmful=step.harmful,
            trial=step.trial,
        )

    def advance(self, parameters: Parameters, traces: Sequence[Trace], alpha: float) -> State:
        """r̄_k <- (1-α) r̄_k + α (r - ρ) for k in z, in batch order, without failed rollouts."""
        known = self.statistics
        ema, success = list(known.ema), list(known.success)
        selected, evidence = list(known.selected), list(known.known)
        for trace in traces:
            if trace.unit is None or trace.rollout.route is None:
                continue
            for k in trace.rollout.route.indices:
                ema[k] += alpha * (trace.unit - trace.penalty - ema[k])
                evidence[k] += alpha * (1.0 - evidence[k])
                if evidence[k] > 0.0:
                    success[k] += alpha / evidence[k] * (trace.unit - success[k])
                selected[k] += 1
        old = self.parameters.codebook.texts
        texts = zip(old, parameters.codebook.texts, strict=True)
        rewritten = {k for k, (before, after) in enumerate(texts) if before != after}
        statistics = RoutingStatistics(
            tuple(ema), tuple(success), tuple(selected), tuple(evidence), known.ranking
        ).discount(rewritten)
        named = {variable_name(k): text for k, text in enumerate(old)}
        named["generator"] = self.parameters.generator
        verdicts = (trace.verdict for trace in traces if trace.verdict is not None)
        called = (named[name] for verdict in verdicts for name in verdict.harmful)
        harmful = tuple(dict.fromkeys((*self.harmful, *called)))
        step = self.step + 1
        return replace(
            self, step=step, parameters=parameters, statistics=statistics, harmful=harmful
        )


def entropy(counts: Sequence[int]) -> float:
    """Shannon entropy in bits of selection counts over K entries."""
    total = sum(counts)
    shares = [n / total for n in counts if n] if total else []
    return -sum(p * math.log2(p) for p in shares) + 0.0


def selected_since(before: Sequence[int], now: Sequence[int]) -> tuple[int, ...]:
    """Selections between two states; an entry that an earlier version replaced counts from 0."""
    return tuple(n - m if n >= m else n for m, n in zip(before, now, strict=True))


def utilisation(counts: Sequence[int]) -> float:
    """Share of entries selected at least once."""
    return sum(n > 0 for n in counts) / len(counts) if counts else 0.0


def average_success(counts: Sequence[int], success: Sequence[float]) -> float:
    """Success weighted by selection."""
    total = sum(counts)
    return sum(n * s for n, s in zip(counts, success, strict=True)) / total if total else 0.0


@dataclass(frozen=True)
class Schedule:
    """The plan of a whole run, by the seed alone: passes over the training split, in batches."""

    examples: Sequence[Example]
    update: Update
    randomness: Randomness

    @property
    def _batches_per_epoch(self) -> int:
        """`all` is a full pass, a number what the budget of Table 5 allows (decision 1)."""
        given = self.update.steps_per_epoch
        return math.ceil(len(self.examples) / self.update.batch_size) if given == "all" else given

    @property
    def batches(self) -> int:
        return self.update.epochs * self._batches_per_epoch if self.examples else 0

    def updates(self, start: int = 0) -> list[tuple[int, int, list[Example]]]:
        """(step, epoch, examples) of every update from `start` on; in `online` mode of one."""
        plan: list[tuple[int, list[Example]]] = []
        for number, batch in enumerate(islice(self._passes(), self.batches)):
            parts = [[e] for e in batch] if self.update.mode == "online" else [batch]
            plan.extend((number // self._batches_per_epoch, part) for part in parts)
        return [(step, *plan[step]) for step in range(start, len(plan))]

    def _passes(self) -> Iterator[list[Example]]:
        """Batches without end, each pass in a seeded order; the last of a pass may be short."""
        size = self.update.batch_size
        for turn in count():
            draw = self.randomness.generator(turn, "order")
            order = sorted(self.examples, key=lambda _: draw.random())
            for at in range(0, len(order), size):
                yield order[at : at + size]
