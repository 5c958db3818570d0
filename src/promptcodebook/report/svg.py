"""Small drawings as SVG: charts of lines, bands and marks over training steps, and meters.

Colours come from the page's style sheet by class, so that both themes and print are served by one
drawing; each carries a title and a description in words for those who cannot see it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.report.html import Content, Html, el
from promptcodebook.units import count_text

Point = tuple[float, float]

WIDTH, HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 34
MOST_POINTS = 400
"""Points drawn of one line; more are averaged, as a screen shows no more."""

_MOST_FILED = 2_000
"""Points of one line in the file of a chart's numbers."""
FEW_POINTS = 15
"""A line through so few is drawn with its points."""


@dataclass(frozen=True, slots=True)
class Line:
    """`look` is a class of the style sheet: main, soft, second, third, or dots."""

    name: str
    points: Sequence[Point]
    look: str = "main"


@dataclass(frozen=True, slots=True)
class Area:
    """A band (x, low, high) behind the lines; `look` is area, or area.second of a second line."""

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


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of what a figure shows; it has one of `every` points."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    every: int = 1


@dataclass(frozen=True, slots=True)
class _Scale:
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> Point:
        (x0, x1), (y0, y1) = self.x, self.y
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0) if y1 > y0 else 0.5
        inner_w, inner_h = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return _LEFT + across * inner_w, _TOP + (1 - up) * inner_h


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing with its words; `size` is the extent of its view box, in pixels where `fixed`."""

    title: str
    description: str
    size: tuple[float, float]
    shapes: Content
    fixed: bool = False

    def html(self) -> Html:
        """The drawing as a part of a page, whose style sheet colours it."""
        width, height = self.size
        attrs: dict[str, str | int | float] = {
            "viewBox": f"0 0 {width:g} {height:g}",
            "role": "img",
            "aria-label": f"{self.title}. {self.description}",
        }
        if self.fixed:
            attrs |= {"width": width, "height": height}
        return el("svg", self.shapes, attrs=attrs)


def meter(share: float, description: str) -> Html:
    """A bar filled to `share` in [0, 1], as wide as its place."""
    shape = {"x": 0, "y": 0, "height": 8, "rx": 2}
    attrs: dict[str, str | int | float] = {
        "viewBox": "0 0 100 8",
        "role": "img",
        "aria-label": description,
        "class": "bar",
        "preserveAspectRatio": "none",
    }
    return el(
        "svg",
        el("title", description),
        el("rect.track", attrs={**shape, "width": 100}),
        el("rect.fill", attrs={**shape, "width": round(100 * share, 1)}),
        attrs=attrs,
    )


def word(classes: str, x: float, y: float, text: str | int) -> Html:
    """Text in a drawing, at a place."""
    return el("text", text, attrs={"class": classes, "x": round(x, 1), "y": round(y, 1)})


def lay_out(chart: Chart) -> Picture | None:
    """The chart with its axes and a description; None where there is nothing to draw."""
    lines = _drawn(chart)
    if not lines:
        return None
    scale = _scale(chart, lines)
    shapes = [
        _axes(scale, chart.x_label),
        [_area(scale, area) for area in chart.areas],
        [_line(scale, line) for line in lines],
        [_spot(scale, spot) for spot in chart.spots],
    ]
    words = " ".join(_in_words(line) for line in lines)
    return Picture(chart.title, words, (WIDTH, HEIGHT), shapes)


def legend_of(chart: Chart) -> list[tuple[str, str]]:
    """Names and looks of what is drawn, where there is more than one thing."""
    names = [(line.name, line.look) for line in _drawn(chart)]
    names += [(area.name, area.look) for area in chart.areas if area.points]
    return names if len(names) > 1 else []


def key(legend: Sequence[tuple[str, str]]) -> Html | None:
    """The legend above a chart."""
    if not legend:
        return None
    return el("p.legend", [el("span", el(f"i.{look}"), name) for name, look in legend])


def numbers_of(chart: Chart) -> Numbers:
    """Points of the chart, none of them averaged: all, or where a series has more than a report
    can carry, evenly chosen ones."""
    longest = max((len(each.points) for each in (*chart.lines, *chart.areas)), default=0)
    every = max(1, math.ceil(longest / _MOST_FILED))
    rows: list[tuple[str | float, ...]] = []
    for line in chart.lines:
        rows += [(line.name, x, y, "", "") for x, y in _finite(line.points)[::every]]
    for area in chart.areas:
        rows += [(area.name, x, "", low, high) for x, low, high in area.points[::every]]
    return Numbers(("series", chart.x_label, "value", "low", "high"), rows, every)


def curves_of(chart: Chart) -> str:
    """What a script needs, beside the numbers of the chart's file, to draw it as it is drawn here:
    names and looks, the range and the marked points, as JSON; '' for a chart of places."""
    if chart.scattered:
        return ""
    parts = {
        "x": chart.x_label,
        "y": chart.y,
        "lines": [(line.name, line.look) for line in _drawn(chart)],
        "areas": [(area.name, area.look) for area in chart.areas if area.points],
        "spots": [(spot.x, spot.y, spot.label, spot.look) for spot in chart.spots],
    }
    return json.dumps(parts, ensure_ascii=False)


def _drawn(chart: Chart) -> list[Line]:
    return [
        Line(line.name, _thin(_finite(line.points)), line.look)
        for line in chart.lines
        if _finite(line.points)
    ]


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


def _thin(points: Sequence[Point]) -> list[Point]:
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _scale(chart: Chart, lines: Sequence[Line]) -> _Scale:
    xs = [x for line in lines for x, _ in line.points]
    if chart.y is not None:
        return _Scale((min(xs), max(xs)), chart.y)
    ys = [y for line in lines for _, y in line.points]
    ys += [y for area in chart.areas for _, low, high in area.points for y in (low, high)]
    low, high = min(*ys, 0.0), max(ys)
    return _Scale((min(xs), max(xs)), (low, high if high > low else low + 1.0))


def _axes(scale: _Scale, x_label: str) -> list[Html]:
    shapes: list[Html] = []
    for y in ticks(*scale.y):
        _, top = scale.at(scale.x[0], y)
        shapes.append(_rule(_LEFT, top, WIDTH - _RIGHT, top))
        shapes.append(word("tick end", _LEFT - 7, top + 4, _short(y)))
    for x in ticks(*scale.x, most=6):
        if x == int(x):
            left, _ = scale.at(x, scale.y[0])
            shapes.append(word("tick middle", left, HEIGHT - _BOTTOM + 17, _short(x)))
    shapes.append(word("axis middle", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 2, x_label))
    return shapes


def _rule(x1: float, y1: float, x2: float, y2: float) -> Html:
    return el("line.rule", attrs={"x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _line(scale: _Scale, line: Line) -> list[Html]:
    places = [scale.at(x, y) for x, y in line.points]
    shapes: list[Html] = []
    if line.look != "dots" and len(places) > 1:
        outline = "M" + "L".join(_place(p) for p in places)
        shapes.append(el(f"path.{line.look}", attrs={"d": outline}))
    if line.look == "dots" or len(places) <= FEW_POINTS:
        look = "circle.dot" if line.look == "dots" else f"circle.{line.look}"
        radius = 1.4 if len(places) > 150 else 2.2 if line.look == "dots" else 2.8
        shapes += [
            el(look, attrs={"cx": round(x, 1), "cy": round(y, 1), "r": radius}) for x, y in places
        ]
    return shapes


def _area(scale: _Scale, area: Area) -> Html | None:
    if not area.points:
        return None
    if len(area.points) == 1:
        x, low, high = area.points[0]
        ends = f"M{_place(scale.at(x, low))}L{_place(scale.at(x, high))}"
        look = "second" if area.look.endswith("second") else "main"
        return el(f"path.whisker.{look}", attrs={"d": ends, "opacity": 0.3})
    upper = _thin([(x, high) for x, _, high in area.points])
    lower = _thin([(x, low) for x, low, _ in area.points])
    outline = [scale.at(x, y) for x, y in (*upper, *reversed(lower))]
    return el(f"path.{area.look}", attrs={"d": "M" + "L".join(_place(p) for p in outline) + "Z"})


def _spot(scale: _Scale, spot: Spot) -> list[Html]:
    x, y = scale.at(spot.x, spot.y)
    above = y > _TOP + 26
    side = "end" if x > WIDTH * 0.7 else "start" if x < WIDTH * 0.3 else "middle"
    return [
        el(f"circle.spot.{spot.look}", attrs={"cx": round(x, 1), "cy": round(y, 1), "r": 4.5}),
        word(f"label {side}", x, y - 10 if above else y + 20, spot.label),
    ]


def _place(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _short(value: float) -> str:
    return count_text(value) if value >= 1000 else f"{value:.3g}"


def _in_words(line: Line) -> str:
    first, last = line.points[0], line.points[-1]
    top = max(line.points, key=lambda p: p[1])
    return (
        f"{line.name}: from {_short(first[1])} at {first[0]:g} to {_short(last[1])} at "
        f"{last[0]:g}, highest {_short(top[1])} at {top[0]:g}."
    )
