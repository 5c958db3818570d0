"""How the routes were learned from outcomes: what was tried, how sure it grew, what it is worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.intervals import Interval
from promptcodebook.method.policy import OffPolicy
from promptcodebook.report.context import Context
from promptcodebook.report.html import MISSING, Column, Content, Html, el, together
from promptcodebook.store.events import Compared, Event, Stepped
from promptcodebook.types import Ranking, Rollout
from promptcodebook.units import number, percent

_PARTS = 4
"""Stretches that the training is shown in."""
_STRETCHES = (
    Column("steps", numeric=False),
    Column("rollouts"),
    Column("mean reward"),
    Column("not the best known route"),
    Column("mean chance of the route"),
    Column("instincts a route"),
)
_INSTINCTS = (
    Column("#"),
    Column("instinct", numeric=False),
    Column("rollouts with it"),
    Column("mean reward"),
    Column("adds at any input"),
    Column("test inputs routed to it"),
)
_ESTIMATES = (Column("estimate", numeric=False), Column("value"), Column("95 % interval"))


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

    def cells(self, steps: str) -> tuple[Content, ...]:
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


class RouterSection:
    """Keeps sums by stretch of the training and by instinct, not by step."""

    title = "How the router learned"
    anchor = "router"

    def __init__(self, context: Context) -> None:
        self._context = context
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

    def render(self) -> Html:
        deployed = self._context.deployed
        ranking = deployed.state.statistics.ranking if deployed is not None else None
        if ranking is None:
            return el("p.empty", "No step was finished, so no route was learned.")
        conclusion = self._context.state.conclusion
        estimate = conclusion.off_policy if conclusion is not None else None
        return together(
            el(
                "p",
                f"Routes are learned by a linear model of {ranking.outcomes:,} outcomes, over the "
                "words of the input: what each instinct adds to the reward. No model is asked for "
                "a route, in training or after it.",
            ),
            self._worth(estimate),
            self._progress(),
            self._instincts(ranking),
        )

    def _worth(self, estimate: OffPolicy | None) -> Html:
        if estimate is None:
            return el(
                "p.note",
                "There is no off-policy estimate: it is made for the verdict, of 20 examples or "
                "more.",
            )
        low, high = self._context.reward_range
        width = high - low
        rows = (
            _row("reward of the learned routes", estimate.value, low, width),
            _row("over one instinct for all", estimate.over_single, 0.0, width, signed=True),
            _row("over no instinct", estimate.over_none, 0.0, width, signed=True),
        )
        return self._context.table(
            f"Off-policy, by training alone: {estimate.rollouts:,} logged rollouts on "
            f"{estimate.value.n} examples, weighed by the chance that each route had (doubly "
            "robust, cross-fitted by example). The verdict above is of the test split.",
            _ESTIMATES,
            rows,
        )

    def _progress(self) -> Html:
        ends = [self._steps * (i + 1) // len(self._stretches) for i in range(len(self._stretches))]
        firsts = [1, *(end + 1 for end in ends)]
        rows = [
            stretch.cells(f"{first} to {end}" if first < end else str(end))
            for stretch, first, end in zip(self._stretches, firsts, ends, strict=False)
        ]
        return self._context.table(
            "Training in stretches. Routes are drawn, each with a known chance: as it grows surer, "
            "fewer are other than the best known, and their chance rises.",
            _STRETCHES,
            rows,
        )

    def _instincts(self, ranking: Ranking) -> Html:
        rows = [self._instinct(k, ranking) for k in range(len(self._context.codebook))]
        return self._context.table(
            "By instinct. The reward is the mean of all rollouts with it; what it adds at any "
            "input, in shares of the reward's range, is the part that no word of the input "
            f"changes. Without any: {number(ranking.bias[0])}.",
            _INSTINCTS,
            rows,
        )

    def _instinct(self, k: int, ranking: Ranking) -> Sequence[Content]:
        times = self._with[k]
        return (
            k,
            el("span.text", self._context.codebook[k].text),
            f"{times:,}",
            number(self._earned[k] / times) if times else MISSING,
            number(ranking.bias[k + 1], signed=True),
            percent(self._test[k] / self._tested) if self._tested else MISSING,
        )


def _row(
    name: str, of: Interval, start: float, width: float, *, signed: bool = False
) -> tuple[Content, ...]:
    scaled = of.scaled(start, width)
    return name, number(scaled.mean, signed=signed), scaled.ends(signed=signed)
