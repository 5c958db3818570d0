"""How the routes were learned from outcomes: what was tried, how sure it grew, what it is worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptcodebook.report.context import Context, Section
from promptcodebook.report.pages import MISSING
from promptcodebook.store.events import Compared, Event, Stepped
from promptcodebook.types import Rollout
from promptcodebook.units import number, percent

_PARTS = 4
"""Stretches that the training is shown in."""


def learns_routes(context: Context) -> bool:
    """Whether the run's routes are learned from outcomes."""
    return context.setting("router.kind") == "outcomes"


@dataclass
class _Stretch:
    """Sums over the rollouts of some steps."""

    rollouts: int = 0
    reward: float = 0.0
    other: int = 0
    chance: float = 0.0
    instincts: int = 0

    def add(self, rollout: Rollout) -> None:
        route = rollout.route
        if route is None or rollout.reward is None:
            return
        self.rollouts += 1
        self.reward += rollout.reward
        self.other += route.explored
        self.chance += route.propensity or 0.0
        self.instincts += len(route.indices)

    def cells(self, steps: str) -> tuple[str, ...]:
        n = self.rollouts
        if not n:
            return (steps, "0", *(MISSING,) * 4)
        return (
            steps,
            f"{n:,}",
            number(self.reward / n),
            percent(self.other / n),
            number(self.chance / n),
            number(self.instincts / n, 2),
        )


class RouterSection(Section):
    """Keeps sums by stretch of the training and by instinct, not by step."""

    title = "How the router learned"
    anchor = "router"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._steps = max(1, context.state.step + 1)
        self._stretches = [_Stretch() for _ in range(min(_PARTS, self._steps))]
        self._with: Counter[int] = Counter()
        self._earned: defaultdict[int, float] = defaultdict(float)
        self._test: Counter[int] = Counter()
        self._tested = 0

    def add(self, event: Event) -> None:
        if isinstance(event, Compared) and event.evaluation.name == "learned":
            routes = [r.route for r in event.evaluation.rollouts if r.route is not None]
            self._tested = len(routes)
            self._test = Counter(k for route in routes for k in route.indices)
        if isinstance(event, Stepped):
            place = event.step.index * len(self._stretches) // self._steps
            stretch = self._stretches[min(place, len(self._stretches) - 1)]
            for trace in event.step.traces:
                stretch.add(trace.rollout)
                self._count(trace.rollout)

    def _count(self, rollout: Rollout) -> None:
        if rollout.route is None or rollout.reward is None:
            return
        for k in rollout.route.indices:
            self._with[k] += 1
            self._earned[k] += rollout.reward

    def values(self) -> Mapping[str, Any]:
        deployed, conclusion = self.context.deployed, self.context.state.conclusion
        ends = [self._steps * (i + 1) // len(self._stretches) for i in range(len(self._stretches))]
        firsts = [1, *(end + 1 for end in ends)]
        low, high = self.context.reward_range
        estimate = conclusion.off_policy if conclusion is not None else None
        rows = estimate and (
            ("reward of the learned routes", estimate.value.scaled(low, high - low), False),
            ("over one instinct for all", estimate.over_single.scaled(0.0, high - low), True),
            ("over no instinct", estimate.over_none.scaled(0.0, high - low), True),
        )
        return {
            "ranking": None if deployed is None else deployed.state.statistics.ranking,
            "estimate": estimate,
            "estimates": rows,
            "stretches": [
                stretch.cells(f"{first} to {end}" if first < end else str(end))
                for stretch, first, end in zip(self._stretches, firsts, ends, strict=False)
            ],
            "rollouts": self._with,
            "earned": self._earned,
            "test": self._test,
            "tested": self._tested,
        }
