"""Charts of lines, bands and marks: a description in values, laid out once as SVG.

Colours come from the page's style sheet by class, so that one drawing serves both themes and print.
The script of a page moves what is drawn here, and draws nothing of its own but a cursor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.report.pages import Numbers, Picture, render
from promptcodebook.units import count_text

Point = tuple[float, float]

WIDTH, SMALL = 440, 320
"""The width of a chart in pixels; its height is half of it."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 34
MOST_POINTS = 800
"""Points drawn of one line; more are averaged, as a screen shows no more."""
_MOST_FILED = 2_000
"""Points of one line in the file of a chart's numbers."""
FEW_POINTS = 15
"""A line through so few is drawn with its points."""


@dataclass(frozen=True, slots=True)
class Line:
    """`look` is a class of the style sheet: main, soft, second, third, limit, or dots."""

    name: str
    points: Sequence[Point]
    look: str = "main"


@dataclass(frozen=True, slots=True)
class Area:
    """A band (x, low, high) behind the lines; `look` is area, or area second of a second line."""

    name: str
    points: Sequence[tuple[float, float, float]]
    look: str = "area"


@dataclass(frozen=True, slots=True)
class Spot:
    """One marked point with its words."""

    x: float
    y: float
    label: str
    look: str = "main"


@dataclass(frozen=True, slots=True)
class Chart:
    """`y` fixes the vertical range; None = what the data need. `scattered` = places, not a course:
    several may share an x."""

    title: str
    x_label: str
    lines: Sequence[Line]
    areas: Sequence[Area] = ()
    spots: Sequence[Spot] = ()
    y: tuple[float, float] | None = None
    scattered: bool = False
    small: bool = False


@dataclass(frozen=True, slots=True)
class _Field:
    """Where points lie: `x` and `y` are what its width and height span."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float

    def at(self, x: float, y: float) -> Point:
        (x0, x1), (y0, y1) = self.x, self.y
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0) if y1 > y0 else 0.5
        return round(across * self.width, 1), round((1 - up) * self.height, 1)

    def path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join("{:g} {:g}".format(*self.at(*point)) for point in points)


def draw(chart: Chart, mark: str = "") -> Picture | None:
    """The chart with its axes, its words and its numbers; None where there is nothing to draw.
    `mark` says in the drawing whose numbers it shows."""
    lines = [Line(each.name, _finite(each.points), each.look) for each in chart.lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    areas = [area for area in chart.areas if area.points]
    width = SMALL if chart.small else WIDTH
    field = _field(chart, lines, areas, (width - _LEFT - _RIGHT, width / 2 - _TOP - _BOTTOM))
    shapes = render(
        "report/templates/chart.svg.jinja",
        field=field,
        left=_LEFT,
        top=_TOP,
        mark=mark,
        x_label=chart.x_label,
        rows=[(field.at(0, y)[1], _short(y)) for y in ticks(*field.y)],
        columns=[(field.at(x, 0)[0], _short(x)) for x in ticks(*field.x, 6) if x == int(x)],
        areas=[_area(field, area) for area in areas],
        lines=[_line(field, line) for line in lines],
        spots=[_spot(field, spot) for spot in chart.spots],
    )
    legend = [(each.name, each.look) for each in (*lines, *areas)]
    return Picture(
        chart.title,
        " ".join(map(_in_words, lines)),
        (width, width // 2),
        shapes,
        _numbers(chart, lines, areas),
        legend=legend if len(legend) > 1 else (),
        x_label=chart.x_label,
        range=None if chart.scattered else (*field.x, *field.y),
    )


def _numbers(chart: Chart, lines: Sequence[Line], areas: Sequence[Area]) -> Numbers:
    """Points of the chart, none of them averaged: all, or where a series has more than a report
    can carry, evenly chosen ones."""
    longest = max(len(each.points) for each in (*lines, *areas))
    every = math.ceil(longest / _MOST_FILED)
    rows: list[tuple[str | float, ...]] = []
    for line in lines:
        rows += [(line.name, x, y, "", "") for x, y in line.points[::every]]
    for area in areas:
        rows += [(area.name, x, "", low, high) for x, low, high in area.points[::every]]
    return Numbers(("series", chart.x_label, "value", "low", "high"), rows, every)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values inside [low, high], at most `most` of them (or the two ends)."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / max(1, most - 1)
    base = 10.0 ** math.floor(math.log10(raw))
    width = next(m * base for m in (1, 2, 2.5, 5, 10) if m * base >= raw * 0.999)
    first = math.ceil(low / width - 1e-9)
    last = math.floor(high / width + 1e-9)
    return [k * width for k in range(first, last + 1)]


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _field(
    chart: Chart, lines: Sequence[Line], areas: Sequence[Area], size: tuple[float, float]
) -> _Field:
    xs = [x for line in lines for x, _ in line.points]
    span = (min(xs), max(xs))
    if chart.y is not None:
        return _Field(span, chart.y, *size)
    ys = [y for line in lines for _, y in line.points]
    ys += [y for area in areas for _, low, high in area.points for y in (low, high)]
    low, high = min(*ys, 0.0), max(ys)
    return _Field(span, (low, high if high > low else low + 1.0), *size)


def _line(field: _Field, line: Line) -> Mapping[str, Any]:
    """Its outline, and its points where they are few or all that is drawn."""
    points, dots = _thin(line.points), line.look == "dots"
    few = len(points) <= (1 if line.look == "limit" else FEW_POINTS)
    radius = 1.4 if len(points) > 150 else 2.2 if dots else 2.8
    return {
        "name": line.name,
        "look": line.look,
        "path": field.path(points) if len(points) > 1 and not dots else "",
        "points": [field.at(*p) for p in points] if dots or few else (),
        "radius": radius,
    }


def _area(field: _Field, area: Area) -> Mapping[str, Any]:
    """Its outline; the interval of a single point is a stroke."""
    alone = len(area.points) == 1
    upper = _thin([(x, high) for x, _, high in area.points])
    lower = _thin([(x, low) for x, low, _ in area.points])
    path = field.path([*upper, *reversed(lower)]) + ("" if alone else "Z")
    look = area.look
    if alone:
        look = "whisker second" if look.endswith("second") else "whisker main"
    return {"name": area.name, "legend": area.look, "look": look, "path": path, "alone": alone}


def _spot(field: _Field, spot: Spot) -> Mapping[str, Any]:
    x, y = field.at(spot.x, spot.y)
    share = x / field.width
    side = "end" if share > 0.7 else "start" if share < 0.3 else "middle"
    return {"spot": spot, "x": x, "y": y, "side": side, "below": y < 26}


def _short(value: float) -> str:
    return count_text(value) if value >= 1000 else f"{value:.3g}"


def _in_words(line: Line) -> str:
    first, last = line.points[0], line.points[-1]
    top = max(line.points, key=lambda p: p[1])
    return (
        f"{line.name}: from {_short(first[1])} at {first[0]:g} to {_short(last[1])} at "
        f"{last[0]:g}, highest {_short(top[1])} at {top[0]:g}."
    )
