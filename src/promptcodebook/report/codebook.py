"""The codebook as it is deployed, how it was used over time, and what theory says of that use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptcodebook.method.state import (
    State,
    average_success,
    entropy,
    has_collapsed,
    selected_since,
    utilisation,
    utilisation_bound,
)
from promptcodebook.report.charts import Chart, Line, Spot
from promptcodebook.report.context import Context, DeployedState, Section, state_name
from promptcodebook.report.pages import Numbers, Picture, render
from promptcodebook.report.router import learns_routes
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.types import Trace, Variable
from promptcodebook.units import number, percent

MOST_COLUMNS = 60
"""Columns of the heat map; a longer run has several steps in each."""
_LEFT, _TOP, _CELL_H, _BOTTOM = 34, 6, 18, 40
_INNER, _NARROW, _WIDE = 900, 15, 36
"""Width of all columns where that leaves each between narrow and wide, in pixels."""


class CodebookSection(Section):
    """Counts rewrites as they pass; the rest is the deployed state."""

    title = "Codebook"
    anchor = "codebook"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rewrites: Counter[Variable] = Counter()

    def add(self, event: Event) -> None:
        deployed = self.context.deployed
        if isinstance(event, Stepped) and deployed and event.step.index <= deployed.step:
            self._rewrites.update(r.variable for r in event.step.rewrites if r.kept)

    def values(self) -> Mapping[str, Any]:
        return {**codebook_values(self.context), "rewrites": self._rewrites}


def codebook_values(context: Context) -> dict[str, Any]:
    """What pages show of the deployed codebook: the state in words, and how it was used."""
    deployed = context.deployed
    if deployed is None:
        return {"deployed": None}
    return {
        "deployed": deployed,
        "caption": _caption(deployed),
        "sums": _sums(deployed.state),
        "usage": context.draw(_usage_chart(deployed.state)),
    }


def _caption(deployed: DeployedState) -> str:
    """Which state is shown, and what its figures are."""
    best = deployed.best
    why = "the last one" if best.score is None else f"the best validated one ({number(best.score)})"
    untried = " Nothing was selected yet." if deployed.step < 0 else ""
    return (
        f"The codebook as it is deployed: {state_name(deployed.step)}, {why}.{untried} success is "
        "the moving mean of the reward, r̄ of reward minus penalty (it may fall below 0); both move "
        "only when an instinct is selected."
    )


def _usage_chart(state: State) -> Chart:
    """Table 2 of the paper as a drawing: whether what is selected is what succeeds."""
    statistics = state.statistics
    tried = [k for k, times in enumerate(statistics.selected) if times]
    points = [(float(statistics.selected[k]), statistics.success[k]) for k in tried]
    return Chart(
        "Usage against success",
        "times selected",
        [Line("instinct", points, "dots")],
        spots=[Spot(*at, str(k), "second") for k, at in zip(tried, points, strict=True)],
        y=(0.0, 1.0),
        scattered=True,
    )


def _sums(state: State) -> list[tuple[str, str]]:
    """Entropy, utilisation and average success of a state."""
    counts = state.statistics.selected
    active = sum(n > 0 for n in counts)
    return [
        ("entropy", f"{number(entropy(counts), 2)} bits"),
        ("utilisation", f"{percent(utilisation(counts))} ({active} of {len(counts)})"),
        ("average success", number(average_success(counts, state.statistics.success))),
    ]


class RoutingSection(Section):
    """Which instincts were selected when: a row for each; keeps counts by column, not by step."""

    title = "Routing over time"
    anchor = "routing"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._size = len(context.codebook)
        steps = context.state.step + 1
        self._steps = max(1, -(-steps // MOST_COLUMNS))
        columns = -(-steps // self._steps)
        self._cell = max(_NARROW, min(_WIDE, _INNER // max(1, columns)))
        self._counts = [[0] * self._size for _ in range(columns)]
        self._rewrites = [[0] * self._size for _ in range(columns)]
        self._before = [0] * self._size

    def add(self, event: Event) -> None:
        if isinstance(event, Started) and event.statistics is not None:
            self._before = list(event.statistics.selected)
        if not isinstance(event, Stepped):
            return
        step = event.step
        place = step.index // self._steps
        while place >= len(self._counts):  # the run went on while it was being read
            self._counts.append([0] * self._size)
            self._rewrites.append([0] * self._size)
        for k, times in enumerate(selected_since(self._before, step.selected)):
            self._counts[place][k] += times
        self._before = list(step.selected)
        for rewrite in step.rewrites:
            if rewrite.kept and isinstance(rewrite.variable, int):
                self._rewrites[place][rewrite.variable] += 1

    def values(self) -> Mapping[str, Any]:
        shown = bool(self._counts and self._size)
        return {
            "each": "one step" if self._steps == 1 else f"{self._steps} steps",
            "picture": self._picture() if shown else None,
            "highest": self._highest() if shown else 0.0,
        }

    def _picture(self) -> Picture:
        columns = len(self._counts)
        width, height = columns * self._cell, self._size * _CELL_H
        shapes = render(
            "report/templates/heatmap.svg.jinja",
            counts=self._counts,
            rewrites=self._rewrites,
            share=self._share,
            top_share=self._highest(),
            step_range=self._step_range,
            steps=self._steps,
            cell=(self._cell, _CELL_H),
            size=(width, height),
            left=_LEFT,
            top=_TOP,
            every=max(1, -(-columns // 10)),
        )
        rows = [
            (k, column * self._steps + 1, times, round(self._share(column, k), 4))
            for column, counts in enumerate(self._counts)
            for k, times in enumerate(counts)
        ]
        most = max(range(self._size), key=lambda k: self._before[k])
        return Picture(
            "Routing heatmap",
            f"{self._size} instincts over {columns} columns; the most used is {most}.",
            (_LEFT + width + 6, _TOP + height + _BOTTOM),
            shapes,
            Numbers(("instinct", "from step", "selected", "share of routes"), rows),
            fixed=True,
        )

    def _share(self, column: int, k: int) -> float:
        """Share of the column's routes that held instinct k, in [0, 1]."""
        select = max(1, int(self.context.setting("select")))
        routes = sum(self._counts[column]) / select
        return min(1.0, self._counts[column][k] / routes) if routes else 0.0

    def _highest(self) -> float:
        shares = [self._share(c, k) for c in range(len(self._counts)) for k in range(self._size)]
        return max(shares, default=0.0) or 1.0

    def _step_range(self, column: int) -> str:
        first = column * self._steps + 1
        last = min(first + self._steps - 1, max(first, self.context.state.step + 1))
        return f"step {first}" if first == last else f"steps {first} to {last}"


class TheorySection(Section):
    """Two theorems beside what was measured: utilisation (Theorem 3) and additivity (Theorem 5).

    Keeps the entries that exploration reached, and sums of the residual: of those that count ρ(g_ψ)
    and those that do not, apart.
    """

    title = "Theory beside measurement"
    anchor = "theory"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._explored = 0
        self._reached: set[int] = set()
        self._residuals = {True: _Residuals(), False: _Residuals()}

    def add(self, event: Event) -> None:
        if isinstance(event, Stepped):
            for trace in event.step.traces:
                self._add_trace(trace)

    def _add_trace(self, trace: Trace) -> None:
        route = trace.rollout.route
        # As in the method's own counts, a failed rollout selects nothing.
        if route is not None and route.explored and trace.unit is not None:
            self._explored += 1
            self._reached.update(route.indices)
        if trace.residual is not None:
            self._residuals["critic" in trace.gradients.severity].add(trace.residual)

    def values(self) -> Mapping[str, Any]:
        context = self.context
        measured = context.setting("explore.policy") == "success" and not learns_routes(context)
        return {
            "bounds": self._bounds() if measured else None,
            "explored": self._explored,
            "collapsed": has_collapsed(context.state.selected) if context.state.selected else None,
            "residuals": [
                ("ρ of g θ, g φ, g C and g ψ", self._residuals[True]),
                ("ρ of g θ, g φ and g C; that of g ψ was not given", self._residuals[False]),
            ],
        }

    def _bounds(self) -> list[tuple[str, str | int]]:
        context = self.context
        size, select = len(context.codebook), int(context.setting("select"))
        tau = float(context.setting("explore.tau"))
        narrow, wide = (
            utilisation_bound(size, select, self._explored, tau, wide=wide) if size else 0.0
            for wide in (False, True)
        )
        return [
            ("bound, r̄ in [0, 1] as the theorem assumes", number(narrow, 2)),
            ("bound, r̄ in [−1, 1] as r − ρ can be", number(wide, 2)),
            ("measured, explored routes only", len(self._reached)),
            ("measured, all routes", sum(n > 0 for n in context.state.selected)),
        ]


@dataclass
class _Residuals:
    """δ of some traces: their number, the sums of δ and |δ|, and the largest |δ|."""

    count: int = 0
    sum: float = 0.0
    size: float = 0.0
    most: float = 0.0

    def add(self, delta: float) -> None:
        self.count += 1
        self.sum += delta
        self.size += abs(delta)
        self.most = max(self.most, abs(delta))
