"""Training over its steps: reward, validation, ε, routing entropy and utilisation, spend."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from promptcodebook.calls import Usage
from promptcodebook.intervals import mean_interval
from promptcodebook.method.state import entropy, selected_since, utilisation
from promptcodebook.report.context import Context
from promptcodebook.report.html import Html, el, together
from promptcodebook.report.svg import Area, Chart, Line, Point, Spot
from promptcodebook.store.events import Event, Scope, Started, Stepped, Validated
from promptcodebook.types import Step
from promptcodebook.units import number

WINDOW = 10
"""Steps that moving figures look back over."""
_X = "step"


def _points() -> list[Point]:
    return []


def _bands() -> dict[str, list[tuple[float, float, float]]]:
    return {"subset": [], "full": []}


@dataclass
class _Series:
    """One number a step for each curve; all that is kept of a step."""

    reward: list[Point] = field(default_factory=_points)
    low: list[float] = field(default_factory=lambda: list[float]())
    high: list[float] = field(default_factory=lambda: list[float]())
    smooth: list[Point] = field(default_factory=_points)
    epsilon: list[Point] = field(default_factory=_points)
    penalty: list[Point] = field(default_factory=_points)
    entropy: list[Point] = field(default_factory=_points)
    entropy_now: list[Point] = field(default_factory=_points)
    utilised: list[Point] = field(default_factory=_points)
    utilised_now: list[Point] = field(default_factory=_points)
    training: list[Point] = field(default_factory=_points)
    validating: list[Point] = field(default_factory=_points)
    intervals: dict[str, list[tuple[float, float, float]]] = field(default_factory=_bands)


class CurvesSection:
    """Keeps a dozen numbers a step."""

    title = "Training"
    anchor = "training"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._series = _Series()
        self._recent: deque[float] = deque(maxlen=WINDOW)
        size = len(context.codebook)
        self._counts: deque[tuple[int, ...]] = deque([(0,) * size], maxlen=WINDOW + 1)
        self._tokens = [0, 0]

    def add(self, event: Event) -> None:
        match event:
            case Started(_, _, statistics) if statistics is not None:
                self._counts[-1] = statistics.selected
            case Stepped(step):
                self._add_reward(step)
                self._add_routing(step)
                self._add_spend(step.index + 1, 0, [t.rollout.usage for t in step.traces])
            case Validated(step, scope, evaluation):
                self._add_interval(step + 1, scope, evaluation.rewards)
                self._add_spend(len(self._series.epsilon), 1, [evaluation.usage])
            case _:
                pass

    def _add_reward(self, step: Step) -> None:
        x, series = step.index + 1, self._series
        series.epsilon.append((x, step.epsilon))
        penalties = [t.penalty for t in step.traces if t.verdict is not None]
        if penalties:
            series.penalty.append((x, sum(penalties) / len(penalties)))
        rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
        if not rewards:
            return
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        bottom, top = self._context.reward_range
        self._recent.append(mean)
        series.reward.append((x, mean))
        series.low.append(max(bottom, mean - spread))
        series.high.append(min(top, mean + spread))
        series.smooth.append((x, sum(self._recent) / len(self._recent)))

    def _add_routing(self, step: Step) -> None:
        x, series = step.index + 1, self._series
        self._counts.append(step.selected)
        now = selected_since(self._counts[0], self._counts[-1])
        series.entropy.append((x, entropy(step.selected)))
        series.utilised.append((x, utilisation(step.selected)))
        series.entropy_now.append((x, entropy(now)))
        series.utilised_now.append((x, utilisation(now)))

    def _add_interval(self, x: int, scope: Scope, rewards: tuple[float, ...]) -> None:
        if rewards:
            of = mean_interval(rewards, self._context.seed, self._context.reward_range)
            self._series.intervals[scope].append((x, of.low, of.high))

    def _add_spend(self, x: int, which: int, usages: list[Usage]) -> None:
        self._tokens[which] += sum(u.tokens for u in usages)
        target = (self._series.training, self._series.validating)[which]
        target.append((x, self._tokens[which]))

    def render(self) -> Html:
        chart, size = self._context.chart, max(1, len(self._context.codebook))
        main = el(
            "div.grid",
            chart(
                f"Mean reward of each training batch, its mean over {WINDOW} steps, and one "
                "standard deviation around each batch. Exploration is part of it.",
                self._reward_chart(),
            ),
            chart(self._validation_caption(), self._validation_chart()),
        )
        others = el(
            "div.grid.small",
            chart(
                "ε, the chance that a route is explored, not chosen by the encoder; and the mean "
                "penalty ρ that the critic's verdicts took off the reward.",
                self._penalty_chart(),
            ),
            chart(
                f"Shannon entropy of selections over the codebook, at most "
                f"{number(math.log2(size), 2)} bits.",
                self._entropy_chart(),
            ),
            chart(
                "Share of instincts selected at least once. Below the line at one half the "
                "codebook has collapsed (Definition 2).",
                self._utilisation_chart(),
            ),
            chart(
                "Tokens of forward passes (route, compose, execute), cumulative. What critic, "
                "attribution and updates cost is in the table by role.",
                self._spend_chart(),
            ),
        )
        return together(main, others)

    def _penalty_chart(self) -> Chart:
        series = self._series
        lines = [Line("ε", series.epsilon), Line("mean ρ", series.penalty, "second")]
        return Chart("Exploration ε and penalty ρ", _X, lines, y=(0.0, 1.0))

    def _reward_chart(self) -> Chart:
        series = self._series
        xs = [x for x, _ in series.reward]
        return Chart(
            "Training reward",
            _X,
            [
                Line("batch mean", series.reward, "dots"),
                Line(f"mean of {WINDOW} steps", series.smooth),
            ],
            [Area("± 1 sd", list(zip(xs, series.low, series.high, strict=True)))],
            y=self._context.reward_range,
        )

    def _validation_chart(self) -> Chart:
        marks = [m for m in self._context.state.validations if m.score is not None]
        subset = sorted((m.step + 1, m.score or 0.0) for m in marks if m.scope == "subset")
        whole = sorted((m.step + 1, m.score or 0.0) for m in marks if m.scope == "full")
        best = self._context.state.best
        spots: list[Spot] = []
        if best is not None and best.score is not None:
            look = "second" if best.scope == "full" else "main"
            spots.append(Spot(best.step + 1, best.score, f"best {number(best.score)}", look))
        bands = self._series.intervals
        return Chart(
            "Validation reward",
            "step (0 = untrained)",
            [Line("subset", subset), Line("whole split", whole, "second")],
            [
                Area("95 %, subset", sorted(bands["subset"])),
                Area("95 %, whole split", sorted(bands["full"]), "area.second"),
            ],
            spots=spots,
            y=self._context.reward_range,
        )

    def _validation_caption(self) -> str:
        marks = self._context.state.validations
        sizes = {
            scope: max((m.n for m in marks if m.scope == scope), default=0)
            for scope in ("subset", "full")
        }
        if not marks:
            return "Validation: none in this run."
        words = [f"n = {sizes['subset']:,} on the subset"] if sizes["subset"] else []
        words += [f"n = {sizes['full']:,} on the whole split"] if sizes["full"] else []
        return (
            f"Validation, greedy and without exploration: {', '.join(words)}; bands are 95 % "
            "intervals of the means."
        )

    def _entropy_chart(self) -> Chart:
        series = self._series
        top = math.log2(max(2, len(self._context.codebook)))
        lines = [
            Line("cumulative", series.entropy),
            Line(f"last {WINDOW} steps", series.entropy_now, "second"),
        ]
        return Chart("Routing entropy (bits)", _X, lines, y=(0.0, top))

    def _utilisation_chart(self) -> Chart:
        series = self._series
        lines = [
            Line("cumulative", series.utilised),
            Line(f"last {WINDOW} steps", series.utilised_now, "second"),
            Line("collapse", [(x, 0.5) for x, _ in series.utilised], "limit"),
        ]
        return Chart("Utilisation", _X, lines, y=(0.0, 1.0))

    def _spend_chart(self) -> Chart:
        series = self._series
        lines = [
            Line("training", series.training),
            Line("validation", series.validating, "second"),
        ]
        return Chart("Tokens spent on forward passes", _X, lines)
