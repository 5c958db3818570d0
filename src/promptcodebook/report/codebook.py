"""The codebook as it is deployed, how it was used over time, and what theory says of that use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from promptcodebook.method.state import (
    State,
    average_success,
    entropy,
    has_collapsed,
    selected_since,
    utilisation,
    utilisation_bound,
)
from promptcodebook.report.context import Context, DeployedState, state_name
from promptcodebook.report.html import MISSING, Column, Content, Html, el, scrolling, together
from promptcodebook.report.router import learns_routes
from promptcodebook.report.svg import Chart, Line, Numbers, Picture, Spot, meter, word
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.types import Trace, Variable
from promptcodebook.units import number, percent

MOST_COLUMNS = 60
"""Columns of the heat map; a longer run has several steps in each."""
_LEFT, _TOP, _CELL_H, _BOTTOM = 34, 6, 18, 40
_INNER, _NARROW, _WIDE = 900, 15, 36
"""Width of all columns where that leaves each between narrow and wide, in pixels."""
_SHADES = 8
_COLUMNS = (
    Column("#"),
    Column("instinct", numeric=False),
    Column("success"),
    Column("r̄"),
    Column("selected"),
    Column("usage", numeric=False),
    Column("rewritten"),
)


class CodebookSection:
    """Counts rewrites as they pass; the rest is the deployed state."""

    title = "Codebook"
    anchor = "codebook"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rewrites: Counter[Variable] = Counter()

    def add(self, event: Event) -> None:
        deployed = self._context.deployed
        if isinstance(event, Stepped) and deployed and event.step.index <= deployed.step:
            self._rewrites.update(r.variable for r in event.step.rewrites if r.kept)

    def render(self) -> Html:
        deployed = self._context.deployed
        if deployed is None:
            return el("p.empty", "This run has no codebook.")
        state = deployed.state
        rows = [self._row(state, k) for k in range(len(state.parameters.codebook))]
        table = self._context.table(deployed_words(deployed), _COLUMNS, rows)
        return together(el("div.book", table), sums(state), usage_chart(self._context))

    def _row(self, state: State, k: int) -> tuple[Content, ...]:
        statistics, instinct = state.statistics, state.parameters.codebook[k]
        times, most = statistics.selected[k], max(statistics.selected)
        tag = el("span.tag", "frozen") if instinct.frozen else None
        return (
            k,
            together(el("span.text", instinct.text), tag),
            number(statistics.success[k], 2) if times else "untried",
            number(statistics.ema[k], 2, signed=True) if times else MISSING,
            f"{times:,}",
            meter(times / most if most else 0.0, f"instinct {k} was selected {times} times"),
            self._rewrites[k],
        )


def deployed_words(deployed: DeployedState) -> str:
    """Which state is shown, and what its figures are."""
    best = deployed.best
    why = "the last one" if best.score is None else f"the best validated one ({number(best.score)})"
    untried = " Nothing was selected yet." if deployed.step < 0 else ""
    return (
        f"The codebook as it is deployed: {state_name(deployed.step)}, {why}.{untried} success is "
        "the moving mean of the reward, r̄ of reward minus penalty (it may fall below 0); both move "
        "only when an instinct is selected."
    )


def usage_chart(context: Context) -> Html | None:
    """Table 2 of the paper as a drawing: whether what is selected is what succeeds."""
    if context.deployed is None:
        return None
    statistics = context.deployed.state.statistics
    tried = [k for k, times in enumerate(statistics.selected) if times]
    if not tried:
        return None
    points = [(float(statistics.selected[k]), statistics.success[k]) for k in tried]
    chart = Chart(
        "Usage against success",
        "times selected",
        [Line("instinct", points, "dots")],
        spots=[Spot(*at, str(k), "second") for k, at in zip(tried, points, strict=True)],
        y=(0.0, 1.0),
        scattered=True,
    )
    return context.chart(
        f"Each instinct that was selected, by its number ({len(tried)} of "
        f"{len(statistics.selected)}): how often, and the moving mean of its reward.",
        chart,
        ".half",
    )


def sums(state: State) -> Html:
    """Entropy, utilisation and average success of a state."""
    counts = state.statistics.selected
    active = sum(n > 0 for n in counts)
    facts = (
        ("entropy", f"{number(entropy(counts), 2)} bits"),
        ("utilisation", f"{percent(utilisation(counts))} ({active} of {len(counts)})"),
        ("average success", number(average_success(counts, state.statistics.success))),
    )
    return el("dl.facts", [el("div", el("dt", name), el("dd", value)) for name, value in facts])


class RoutingSection:
    """Which instincts were selected when: a row for each; keeps counts by column, not by step."""

    title = "Routing over time"
    anchor = "routing"

    def __init__(self, context: Context) -> None:
        self._context = context
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

    def render(self) -> Html:
        if not self._counts or not self._size:
            return el("p.empty", "No step was finished, so nothing was routed.")
        each = "one step" if self._steps == 1 else f"{self._steps} steps"
        caption = (
            f"How often each instinct was selected; a column is {each}, a stronger colour a larger "
            "share of that column's routes, a dot a rewrite of the instinct that was kept."
        )
        drawing = self._map()
        return self._context.figure(
            caption,
            scrolling(el("div.heat", drawing.html())),
            self._key(),
            self._context.files(drawing, self._numbers()),
        )

    def _numbers(self) -> Numbers:
        rows = [
            (k, column * self._steps + 1, times, round(self._share(column, k), 4))
            for column, counts in enumerate(self._counts)
            for k, times in enumerate(counts)
        ]
        return Numbers(("instinct", "from step", "selected", "share of routes"), rows)

    def _map(self) -> Picture:
        columns = len(self._counts)
        size = {"width": columns * self._cell, "height": self._size * _CELL_H}
        width, height = _LEFT + size["width"] + 6, _TOP + size["height"] + _BOTTOM
        top = self._highest()
        shapes: list[Content] = [
            el("rect.track", attrs={"x": _LEFT, "y": _TOP, **size}),
            [self._column(column, top) for column in range(columns)],
            [word("tick end", _LEFT - 7, _TOP + k * _CELL_H + 13, k) for k in range(self._size)],
            self._axis(height),
        ]
        most = max(range(self._size), key=lambda k: self._before[k])
        words = f"{self._size} instincts over {columns} columns; the most used is {most}."
        return Picture("Routing heatmap", words, (width, height), shapes, fixed=True)

    def _share(self, column: int, k: int) -> float:
        """Share of the column's routes that held instinct k, in [0, 1]."""
        select = max(1, int(self._context.setting("select")))
        routes = sum(self._counts[column]) / select
        return min(1.0, self._counts[column][k] / routes) if routes else 0.0

    def _highest(self) -> float:
        shares = [self._share(c, k) for c in range(len(self._counts)) for k in range(self._size)]
        return max(shares, default=0.0) or 1.0

    def _column(self, column: int, top: float) -> list[Html]:
        x = _LEFT + column * self._cell
        shapes: list[Html] = []
        for k, times in enumerate(self._counts[column]):
            y, share = _TOP + k * _CELL_H, self._share(column, k)
            if times:
                words = f"instinct {k}, {self._step_range(column)}: {times} times, {percent(share)}"
                place = {"x": x + 0.5, "y": y + 0.5}
                size = {"width": self._cell - 1, "height": _CELL_H - 1}
                attrs = {**place, **size, "fill-opacity": round(share / top, 2)}
                shapes.append(el("rect.cell", el("title", words), attrs=attrs))
            if self._rewrites[column][k]:
                dot = {"cx": x + self._cell / 2, "cy": y + _CELL_H / 2, "r": 2}
                shapes.append(el("circle.rewritten", attrs=dot))
        return shapes

    def _step_range(self, column: int) -> str:
        first = column * self._steps + 1
        last = min(first + self._steps - 1, max(first, self._context.state.step + 1))
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def _axis(self, height: int) -> list[Html]:
        """Steps below the columns, at most about ten of them."""
        columns, y = len(self._counts), height - _BOTTOM + 16
        numbers = [
            word("tick middle", _LEFT + (column + 0.5) * self._cell, y, column * self._steps + 1)
            for column in range(0, columns, max(1, -(-columns // 10)))
        ]
        return [*numbers, word("axis middle", _LEFT + columns * self._cell / 2, height - 4, "step")]

    def _key(self) -> Html:
        """The colour scale, in words at both ends."""
        size = {"y": 0, "width": 15, "height": 12}
        boxes = [
            el(
                "rect.cell",
                attrs={"x": i * 16, **size, "fill-opacity": round((i + 1) / _SHADES, 2)},
            )
            for i in range(_SHADES)
        ]
        top = percent(self._highest())
        scale = Picture("Colour scale", f"0 to {top}", (16 * _SHADES, 12), boxes).html()
        return el(
            "p.legend", together("0 %", el("span.scale", scale), top), " of the column's routes"
        )


class TheorySection:
    """Two theorems beside what was measured: utilisation (Theorem 3) and additivity (Theorem 5).

    Keeps the entries that exploration reached, and sums of the residual: of those that count ρ(g_ψ)
    and those that do not, apart.
    """

    title = "Theory beside measurement"
    anchor = "theory"

    def __init__(self, context: Context) -> None:
        self._context = context
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

    def render(self) -> Html:
        return together(self._utilisation(), self._additivity())

    def _utilisation(self) -> Html:
        context = self._context
        if context.setting("explore.policy") != "success" or learns_routes(context):
            return el(
                "p.note",
                "Theorem 3 speaks of success-weighted exploration; this run explored otherwise.",
            )
        size, select = len(context.codebook), int(context.setting("select"))
        tau = float(context.setting("explore.tau"))
        narrow = utilisation_bound(size, select, self._explored, tau) if size else 0.0
        wide = utilisation_bound(size, select, self._explored, tau, wide=True) if size else 0.0
        selected = context.state.selected
        rows: list[tuple[Content, ...]] = [
            ("bound, r̄ in [0, 1] as the theorem assumes", number(narrow, 2)),
            ("bound, r̄ in [−1, 1] as r − ρ can be", number(wide, 2)),
            ("measured, explored routes only", len(self._reached)),
            ("measured, all routes", sum(n > 0 for n in selected)),
        ]
        caption = (
            f"Theorem 3: entries expected active after {self._explored:,} explored examples "
            f"(K = {size}, S = {select}, τ = {tau:g}){_collapse(selected)}."
        )
        return context.table(caption, (Column("entries", numeric=False), Column("of K")), rows)

    def _additivity(self) -> Html:
        whole, without = self._residuals[True], self._residuals[False]
        if not whole.count + without.count:
            return el(
                "p.note",
                "No severities were given per channel, so the additivity residual of Theorem 5 "
                "is left out.",
            )
        named = (
            ("ρ of g θ, g φ, g C and g ψ", whole),
            ("ρ of g θ, g φ and g C; that of g ψ was not given", without),
        )
        rows: list[tuple[Content, ...]] = [
            (
                over,
                f"{r.count:,}",
                number(r.sum / r.count),
                number(r.size / r.count),
                number(r.most),
            )
            for over, r in named
            if r.count
        ]
        heads = ("verdicts", "mean δ", "mean |δ|", "largest |δ|")
        return self._context.table(
            "Theorem 5: additivity residual δ = ρ(verdict) − Σ ρ(gradient). By the theorem, the "
            "mean of δ is no larger than the largest |δ|.",
            (Column("Σ over", numeric=False), *map(Column, heads)),
            rows,
        )


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


def _collapse(selected: tuple[int, ...]) -> str:
    """What Definition 2 says of all routes."""
    if not selected:
        return ""
    if has_collapsed(selected):
        return "; by Definition 2, fewer than half were ever active: collapse"
    return "; by Definition 2, no collapse"
