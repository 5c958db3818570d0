"""Which instincts were selected when: one row for each, steps gathered into columns."""

from __future__ import annotations

from promptcodebook.report.context import Context
from promptcodebook.report.figures import percent
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.report.svg import picture
from promptcodebook.store import Event, Stepped

__all__ = ["MOST_COLUMNS", "RoutingSection"]

MOST_COLUMNS = 60
_LEFT, _TOP, _CELL_H, _BOTTOM = 34, 6, 18, 40
_INNER, _NARROW, _WIDE = 900, 15, 36
"""Width of all columns where that leaves each between narrow and wide, in pixels."""


class RoutingSection:
    """Keeps counts for each column, not for each step."""

    title = "Routing over time"
    anchor = "routing"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._size = len(context.codebook)
        steps = context.state.step + 1
        self._wide = max(1, -(-steps // MOST_COLUMNS))
        columns = -(-steps // self._wide) if steps else 0
        self._cell = max(_NARROW, min(_WIDE, _INNER // max(1, columns)))
        self._counts = [[0] * self._size for _ in range(columns)]
        self._rewrites = [[0] * self._size for _ in range(columns)]
        self._before = [0] * self._size

    def see(self, event: Event) -> None:
        if not isinstance(event, Stepped):
            return
        step = event.step
        place = step.index // self._wide
        while place >= len(self._counts):  # the run went on while it was being read
            self._counts.append([0] * self._size)
            self._rewrites.append([0] * self._size)
        for k, total in enumerate(step.selected):
            self._counts[place][k] += total - self._before[k]
        self._before = list(step.selected)
        for rewrite in step.rewrites:
            if rewrite.kept and rewrite.variable[1:].isdecimal():
                self._rewrites[place][int(rewrite.variable[1:])] += 1

    def html(self) -> Html:
        if not self._counts or not self._size:
            return el("p.empty", "No step was finished, so nothing was routed.")
        each = "one step" if self._wide == 1 else f"{self._wide} steps"
        caption = (
            f"How often each instinct was selected; a column is {each}, a stronger colour a larger "
            "share of that column's routes, a dot a rewrite of the instinct that was kept."
        )
        return self._context.figure(caption, el("div.wide", self._map()), self._key())

    def _map(self) -> Html:
        columns = len(self._counts)
        width = _LEFT + columns * self._cell + 6
        height = _TOP + self._size * _CELL_H + _BOTTOM
        shapes: list[Content] = []
        frame = {
            "x": _LEFT,
            "y": _TOP,
            "width": columns * self._cell,
            "height": self._size * _CELL_H,
            "class": "track",
        }
        shapes.append(el("rect", attrs=frame))
        top = self._highest()
        for column in range(columns):
            shapes.append(self._column(column, top))
        for k in range(self._size):
            y = _TOP + k * _CELL_H + 13
            shapes.append(el("text", k, attrs={"class": "tick end", "x": _LEFT - 7, "y": y}))
        shapes += self._step_names(height)
        words = f"{self._size} instincts over {columns} columns; the most used is " + (
            f"{max(range(self._size), key=lambda k: self._before[k])}."
        )
        drawing = picture("Routing heatmap", words, (width, height), *shapes, fixed=True)
        return el("div.heat", drawing)

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
                words = f"instinct {k}, {self._steps(column)}: {times} times, {percent(share)}"
                attrs = {
                    "x": x + 0.5,
                    "y": y + 0.5,
                    "width": self._cell - 1,
                    "height": _CELL_H - 1,
                    "class": "cell",
                    "fill-opacity": round(share / top, 2),
                }
                shapes.append(el("rect", el("title", words), attrs=attrs))
            if self._rewrites[column][k]:
                dot = {
                    "cx": x + self._cell / 2,
                    "cy": y + _CELL_H / 2,
                    "r": 2,
                    "class": "rewritten",
                }
                shapes.append(el("circle", attrs=dot))
        return shapes

    def _steps(self, column: int) -> str:
        first = column * self._wide + 1
        last = min(first + self._wide - 1, max(first, self._context.state.step + 1))
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def _step_names(self, height: int) -> list[Html]:
        columns = len(self._counts)
        every = max(1, -(-columns // 10))
        y = height - _BOTTOM + 16
        shown = [
            el(
                "text",
                column * self._wide + 1,
                attrs={"class": "tick middle", "x": _LEFT + (column + 0.5) * self._cell, "y": y},
            )
            for column in range(0, columns, every)
        ]
        middle = _LEFT + columns * self._cell / 2
        axis = {"class": "axis middle", "x": middle, "y": height - 4}
        return [*shown, el("text", "step", attrs=axis)]

    def _key(self) -> Html:
        """The colour scale, in words at both ends."""
        boxes = [
            el(
                "rect",
                attrs={
                    "x": i * 16,
                    "y": 0,
                    "width": 15,
                    "height": 12,
                    "class": "cell",
                    "fill-opacity": round((i + 1) / 8, 2),
                },
            )
            for i in range(8)
        ]
        scale = picture("Colour scale", f"0 to {percent(self._highest())}", (128, 12), boxes)
        return el(
            "p.legend",
            together("0 %", el("span.scale", scale), percent(self._highest())),
            " of the column's routes",
        )
