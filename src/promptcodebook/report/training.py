"""Training over its steps: reward, validation, ε, entropy, utilisation and spend."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from promptcodebook.base.intervals import mean_interval
from promptcodebook.base.units import number
from promptcodebook.calls import Usage
from promptcodebook.method.state import entropy, selected_since, utilisation
from promptcodebook.report.context import Context, ReportSection
from promptcodebook.report.pages import Area, Chart, ChartLine, ChartPoint
from promptcodebook.store.events import Event, Started, Stepped, Validated
from promptcodebook.types import Step

WINDOW = 10  # Steps that moving figures look back over.


class CurvesSection(ReportSection):
    title, anchor = "Training", "training"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._points: defaultdict[str, list[ChartPoint]] = defaultdict(list)
        self._bands: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        size = len(context.codebook)
        self._counts: deque[tuple[int, ...]] = deque([(0,) * size], maxlen=WINDOW + 1)
        self._tokens = {"training": 0, "validation": 0}
        self._solved: set[str] = set()

    def add(self, event: Event) -> None:
        match event:
            case Started(_, _, statistics) if statistics is not None:
                self._counts[-1] = statistics.selected
            case Stepped(step):
                self._add_rewards(step)
                self._counts.append(step.selected)
                now = selected_since(self._counts[0], self._counts[-1])
                for name, of in (("entropy", entropy), ("utilisation", utilisation)):
                    self._points[name].append((step.index + 1, of(step.selected)))
                    self._points[f"{name} now"].append((step.index + 1, of(now)))
                usages = (t.rollout.usage for t in step.traces)
                self._add_spend(step.index + 1, "training", usages)
            case Validated(step, scope, evaluation):
                if evaluation.rewards:
                    of = mean_interval(evaluation.rewards, self.context.reward_range)
                    self._bands[scope].append((step + 1, of.low, of.high))
                self._add_spend(len(self._points["ε"]), "validation", [evaluation.usage])
            case _:
                pass

    def _add_rewards(self, step: Step) -> None:
        x, points = step.index + 1, self._points
        points["ε"].append((x, step.epsilon))
        self._solved |= {t.rollout.example_id for t in step.traces if t.unit == 1.0}
        size = self.context.header.sizes.get("train") or 1
        points["solved"].append((x, len(self._solved) / size))
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

    def _add_spend(self, x: int, name: str, usages: Iterable[Usage]) -> None:
        self._tokens[name] += sum(u.tokens for u in usages)
        self._points[name].append((x, self._tokens[name]))

    def values(self) -> Mapping[str, Any] | None:
        if not self._points:
            return None
        marks, draw = self.context.state.validations, self.context.draw
        sizes = {
            scope: max((m.n for m in marks if m.scope == scope), default=0)
            for scope in ("subset", "full")
        }
        means = ChartLine("batch mean", self._points["batch mean"], "dots")
        moving = ChartLine(f"mean of {WINDOW} steps", self._points["mean"])
        spread, y = [Area("± 1 sd", self._bands["spread"])], self.context.reward_range
        reward = Chart("Training reward", "step", [means, moving], spread, y=y)
        solved = [ChartLine("solved", self._points["solved"])]
        return {
            "window": WINDOW,
            "bits": math.log2(max(1, len(self.context.codebook))),
            "sizes": sizes if marks else None,
            "reward": draw(reward),
            "solved": draw(Chart("Training inputs solved", "step", solved, y=(0.0, 1.0))),
            "validation": draw(self._validation_chart()),
            "others": {chart.title: draw(chart) for chart in self._small_charts()},
        }

    def _validation_chart(self) -> Chart:
        marks = [m for m in self.context.state.validations if m.score is not None]
        subset, whole = (
            sorted((m.step + 1, m.score or 0.0) for m in marks if m.scope == scope)
            for scope in ("subset", "full")
        )
        best = self.context.state.best
        spots: list[tuple[ChartPoint, str, str]] = []
        if best is not None and best.score is not None:
            look = "second" if best.scope == "full" else "main"
            spots.append(((best.step + 1, best.score), f"best {number(best.score)}", look))
        lines = [ChartLine("subset", subset), ChartLine("whole split", whole, "second")]
        bands = [
            Area("95 %, subset", sorted(self._bands["subset"])),
            Area("95 %, whole split", sorted(self._bands["full"]), "area second"),
        ]
        y = self.context.reward_range
        return Chart("Validation reward", "step (0 = untrained)", lines, bands, spots, y)

    def _small_charts(self) -> Iterable[Chart]:
        points, now = self._points, f"last {WINDOW} steps"
        most = math.log2(max(2, len(self.context.codebook)))

        def chart(title: str, *lines: ChartLine, y: tuple[float, float] | None = None) -> Chart:
            return Chart(title, "step", lines, y=y, small=True)

        def line(name: str, look: str = "main", of: str = "") -> ChartLine:
            return ChartLine(name, points[of or name], look)

        def both(of: str) -> tuple[ChartLine, ChartLine]:
            return line("cumulative", of=of), line(now, "second", f"{of} now")

        tries = line("batch mean", "dots"), line(now, of="mean")
        half = ChartLine("collapse", [(x, 0.5) for x, _ in points["utilisation"]], "limit")
        penalty, spent = line("mean ρ", "second"), (line("training"), line("validation", "second"))
        yield chart("Reward of each step's rollouts", *tries, y=self.context.reward_range)
        yield chart("Exploration ε and penalty ρ", line("ε"), penalty, y=(0.0, 1.0))
        yield chart("Routing entropy (bits)", *both("entropy"), y=(0.0, most))
        yield chart("Utilisation", *both("utilisation"), half, y=(0.0, 1.0))
        yield chart("Tokens spent on forward passes", *spent)
