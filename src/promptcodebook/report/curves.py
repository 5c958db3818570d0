"""Training over its steps: reward, validation, ε, routing entropy and utilisation, spend."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.intervals import mean_interval
from promptcodebook.method.state import entropy, selected_since, utilisation
from promptcodebook.report.charts import Area, Chart, Line, Point, Spot
from promptcodebook.report.context import Context, Section
from promptcodebook.store.events import Event, Started, Stepped, Validated
from promptcodebook.types import Step
from promptcodebook.units import number

WINDOW = 10
"""Steps that moving figures look back over."""


class CurvesSection(Section):
    """Keeps a dozen numbers a step."""

    title = "Training"
    anchor = "training"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._points: defaultdict[str, list[Point]] = defaultdict(list)
        self._bands: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        size = len(context.codebook)
        self._counts: deque[tuple[int, ...]] = deque([(0,) * size], maxlen=WINDOW + 1)
        self._tokens = {"training": 0, "validation": 0}

    def add(self, event: Event) -> None:
        match event:
            case Started(_, _, statistics) if statistics is not None:
                self._counts[-1] = statistics.selected
            case Stepped(step):
                self._add_reward(step)
                self._add_routing(step)
                usages = (t.rollout.usage for t in step.traces)
                self._add_spend(step.index + 1, "training", usages)
            case Validated(step, scope, evaluation):
                if evaluation.rewards:
                    context = self.context
                    of = mean_interval(evaluation.rewards, context.seed, context.reward_range)
                    self._bands[scope].append((step + 1, of.low, of.high))
                self._add_spend(len(self._points["ε"]), "validation", [evaluation.usage])
            case _:
                pass

    def _add_reward(self, step: Step) -> None:
        x, points = step.index + 1, self._points
        points["ε"].append((x, step.epsilon))
        penalties = [t.penalty for t in step.traces if t.verdict is not None]
        if penalties:
            points["mean ρ"].append((x, sum(penalties) / len(penalties)))
        rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
        if not rewards:
            return
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        bottom, top = self.context.reward_range
        self._recent.append(mean)
        points["batch mean"].append((x, mean))
        points["mean"].append((x, sum(self._recent) / len(self._recent)))
        self._bands["spread"].append((x, max(bottom, mean - spread), min(top, mean + spread)))

    def _add_routing(self, step: Step) -> None:
        self._counts.append(step.selected)
        now = selected_since(self._counts[0], self._counts[-1])
        for name, of in (("entropy", entropy), ("utilisation", utilisation)):
            self._points[name].append((step.index + 1, of(step.selected)))
            self._points[f"{name} now"].append((step.index + 1, of(now)))

    def _add_spend(self, x: int, name: str, usages: Iterable[Usage]) -> None:
        self._tokens[name] += sum(u.tokens for u in usages)
        self._points[name].append((x, self._tokens[name]))

    def values(self) -> Mapping[str, Any]:
        marks = self.context.state.validations
        sizes = {
            scope: max((m.n for m in marks if m.scope == scope), default=0)
            for scope in ("subset", "full")
        }
        draw = self.context.draw
        return {
            "window": WINDOW,
            "bits": math.log2(max(1, len(self.context.codebook))),
            "sizes": sizes if marks else None,
            "reward": draw(self._reward_chart()),
            "validation": draw(self._validation_chart()),
            "others": {chart.title: draw(chart) for chart in self._small_charts()},
        }

    def _reward_chart(self) -> Chart:
        points = self._points
        lines = [
            Line("batch mean", points["batch mean"], "dots"),
            Line(f"mean of {WINDOW} steps", points["mean"]),
        ]
        areas = [Area("± 1 sd", self._bands["spread"])]
        return Chart("Training reward", "step", lines, areas, y=self.context.reward_range)

    def _validation_chart(self) -> Chart:
        marks = [m for m in self.context.state.validations if m.score is not None]
        subset, whole = (
            sorted((m.step + 1, m.score or 0.0) for m in marks if m.scope == scope)
            for scope in ("subset", "full")
        )
        best = self.context.state.best
        spots: list[Spot] = []
        if best is not None and best.score is not None:
            look = "second" if best.scope == "full" else "main"
            spots.append(Spot(best.step + 1, best.score, f"best {number(best.score)}", look))
        return Chart(
            "Validation reward",
            "step (0 = untrained)",
            [Line("subset", subset), Line("whole split", whole, "second")],
            [
                Area("95 %, subset", sorted(self._bands["subset"])),
                Area("95 %, whole split", sorted(self._bands["full"]), "area second"),
            ],
            spots=spots,
            y=self.context.reward_range,
        )

    def _small_charts(self) -> Iterable[Chart]:
        points, now = self._points, f"last {WINDOW} steps"
        most = math.log2(max(2, len(self.context.codebook)))

        def chart(title: str, *lines: Line, y: tuple[float, float] | None = None) -> Chart:
            return Chart(title, "step", lines, y=y, small=True)

        def both(name: str) -> tuple[Line, Line]:
            return Line("cumulative", points[name]), Line(now, points[f"{name} now"], "second")

        chance, penalty = Line("ε", points["ε"]), Line("mean ρ", points["mean ρ"], "second")
        half = Line("collapse", [(x, 0.5) for x, _ in points["utilisation"]], "limit")
        spent = [Line("training", points["training"])]
        spent.append(Line("validation", points["validation"], "second"))
        yield chart("Exploration ε and penalty ρ", chance, penalty, y=(0.0, 1.0))
        yield chart("Routing entropy (bits)", *both("entropy"), y=(0.0, most))
        yield chart("Utilisation", *both("utilisation"), half, y=(0.0, 1.0))
        yield chart("Tokens spent on forward passes", *spent)
