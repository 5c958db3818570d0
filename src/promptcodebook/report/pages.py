"""Pages from templates, and the figures on them. One environment fills in every template, and
escapes every value: inputs, replies, feedback and tracebacks are untrusted. Markup comes from our
own template files alone. A chart is laid out once as SVG, with classes of the style sheet; the
script of a page only moves what is drawn here."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from promptcodebook.base.text import printable, shorten, word_changes
from promptcodebook.base.units import count_text, duration, money, number, percent, plural
from promptcodebook.types import variable_name

MISSING = "—"  # Shown where there is no number.


def render(template: str, /, **values: Any) -> Markup:
    """The template of that path in the package, filled in."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("promptcodebook", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    tables = cast("Any", made)  # jinja2 gives its tables no types
    tables.globals.update(MISSING=MISSING, address=address, csv_text=csv_text, data_file=_data_file)
    tables.filters.update(
        count=count_text,
        duration=duration,
        money=money,
        number=partial(number, missing=MISSING),
        percent=percent,
        plural=plural,
        shorten=shorten,
        svg_text=svg_text,
        thousands="{:,}".format,
        variable=variable_name,
        word_changes=word_changes,
    )
    return made


def _shown(value: Any) -> Any:
    """What of a value reaches the page: no control characters, and nothing of None."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return "" if value is None else value


def _data_file(kind: str, text: str) -> str:
    """The address of a text of our own making, which a browser saves and does not open."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def address(*parts: str | int, **query: str) -> str:
    """A path of this server: every part is one level, whatever is in it."""
    path = "/" + "/".join(quote(printable(str(part)), safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def digest(text: str) -> str:
    """What a security policy allows this style sheet or script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def read_style() -> str:
    return "\n".join(map(read_asset, ("style.css", "figure.css", "chart.css")))


def read_script() -> str:
    return "\n".join(map(read_asset, ("chart.js", "table.js")))


def read_asset(name: str) -> str:
    return files("promptcodebook.report").joinpath(name).read_text("utf-8")


# --- figures, and their files


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing with its words and its numbers (`rows`, one of `every` points); `size` is its view
    box. `legend` has names and looks. `range`, the ends of x and then of y, is there where a script
    can read values off the drawing."""

    title: str
    description: str
    size: tuple[float, float]
    shapes: Markup
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    every: int = 1
    legend: Sequence[tuple[str, str]] = ()
    x_label: str = ""
    range: tuple[float, float, float, float] | None = None

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "figure"


def sheet_cell(value: str | float) -> str | float:
    """The value as a sheet for people has it: no program takes its text for a formula."""
    if not isinstance(value, str):
        return value
    formula = value.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", *"＝＋－＠"))
    return printable(f"'{value}" if formula else value)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[str | float]], source: str) -> str:
    """A sheet for people: the rows, each with its source. Files of data are written elsewhere, as
    they are."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(map(sheet_cell, [*columns, "source"]))
    writer.writerows(map(sheet_cell, [*row, source]) for row in rows)
    return target.getvalue()


def svg_text(picture: Picture, source: str) -> str:
    """The drawing under its title, in the light theme's colours: SVG may know no variables."""
    light = read_asset("style.css").partition("}")[0]
    colours = {name: of.strip() for name, of in re.findall(r"(--[\w-]+):\s*([^;]+);", light)}
    variable = r"var\((--[\w-]+)\)"
    style = Markup(re.sub(variable, lambda found: colours[found[1]], read_asset("figure.css")))
    made = render("report/templates/file.svg.jinja", picture=picture, style=style, source=source)
    return re.sub("[\ufffe\uffff]", " ", made)  # XML has no such characters


# --- charts of lines, bands and marks

ChartPoint = tuple[float, float]
_WIDE, _SMALL = 440, 320  # the width of a chart in pixels; its height is half of it
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 34
_MOST_DRAWN, _MOST_FILED = 800, 2_000  # Points of a line: more are averaged, or left out of files.
_FEW_POINTS = 15  # A line through so few is drawn with its points


@dataclass(frozen=True, slots=True)
class ChartLine:
    """`look` is a class of the style sheet: main, soft, second, third, limit, or dots."""

    name: str
    points: Sequence[ChartPoint]
    look: str = "main"


@dataclass(frozen=True, slots=True)
class Area:
    """A band (x, low, high) behind the lines; `look` is area, or area second of a second line."""

    name: str
    points: Sequence[tuple[float, float, float]]
    look: str = "area"


@dataclass(frozen=True, slots=True)
class Chart:
    """`spots` are marked points with a label and a look. `y` fixes the vertical range; None = what
    the data need. `scattered` = places, not a course: several may share an x."""

    title: str
    x_label: str
    lines: Sequence[ChartLine]
    areas: Sequence[Area] = ()
    spots: Sequence[tuple[ChartPoint, str, str]] = ()
    y: tuple[float, float] | None = None
    scattered: bool = False
    small: bool = False


@dataclass(frozen=True, slots=True)
class _Field:
    """`x` and `y` are what its width and height span."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float

    def at(self, x: float, y: float) -> ChartPoint:
        (x0, x1), (y0, y1) = self.x, self.y
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0) if y1 > y0 else 0.5
        return round(across * self.width, 1), round((1 - up) * self.height, 1)

    def path(self, points: Sequence[ChartPoint]) -> str:
        return "M" + "L".join("{:g} {:g}".format(*self.at(*point)) for point in points)


def draw(chart: Chart, mark: str = "") -> Picture | None:
    """None where there is nothing to draw. `mark` says in the drawing whose numbers it shows."""
    finite = [[p for p in line.points if all(map(math.isfinite, p))] for line in chart.lines]
    kept = zip(chart.lines, finite, strict=True)
    lines = [ChartLine(line.name, points, line.look) for line, points in kept if points]
    if not lines:
        return None
    areas = [area for area in chart.areas if area.points]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    ys += [y for area in areas for _, *ends in area.points for y in ends]
    low, high = min(*ys, 0.0), max(ys)
    spanned = chart.y or (low, high if high > low else low + 1.0)
    width = _SMALL if chart.small else _WIDE
    field = _Field(
        x=(min(xs), max(xs)),
        y=spanned,
        width=width - _LEFT - _RIGHT,
        height=width / 2 - _TOP - _BOTTOM,
    )
    shapes = render(
        "report/templates/chart.svg.jinja",
        field=field,
        left=_LEFT,
        top=_TOP,
        mark=mark,
        x_label=chart.x_label,
        rows=[(field.at(0, y)[1], _short(y)) for y in ticks(*field.y)],
        columns=[(field.at(x, 0)[0], _short(x)) for x in ticks(*field.x, 6) if x == int(x)],
        areas=map(partial(_area, field), areas),
        lines=map(partial(_line, field), lines),
        spots=[(label, look, *field.at(*point)) for point, label, look in chart.spots],
    )
    legend = [(each.name, each.look) for each in (*lines, *areas)]
    # Filed are points as they are; of a series that is too long, evenly chosen ones.
    every = math.ceil(max(len(each.points) for each in (*lines, *areas)) / _MOST_FILED)
    rows: list[tuple[str | float, ...]] = []
    for line in lines:
        rows += [(line.name, x, y, "", "") for x, y in line.points[::every]]
    for area in areas:
        rows += [(area.name, x, "", low, high) for x, low, high in area.points[::every]]
    return Picture(
        chart.title,
        " ".join(map(_in_words, lines)),
        (width, width // 2),
        shapes,
        ("series", chart.x_label, "value", "low", "high"),
        rows,
        every,
        legend=legend if len(legend) > 1 else (),
        x_label=chart.x_label,
        range=None if chart.scattered else (*field.x, *field.y),
    )


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


def _thin(points: Sequence[ChartPoint]) -> Sequence[ChartPoint]:
    size = math.ceil(len(points) / _MOST_DRAWN)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _line(field: _Field, line: ChartLine) -> dict[str, Any]:
    points, dots = _thin(line.points), line.look == "dots"
    few = len(points) <= (1 if line.look == "limit" else _FEW_POINTS)
    return {
        "name": line.name,
        "look": line.look,
        "path": field.path(points) if len(points) > 1 and not dots else "",
        "points": [field.at(*p) for p in points] if dots or few else (),
        "radius": 1.4 if len(points) > 150 else 2.2 if dots else 2.8,
    }


def _area(field: _Field, area: Area) -> dict[str, Any]:
    alone, look = len(area.points) == 1, area.look
    upper = _thin([(x, high) for x, _, high in area.points])
    lower = _thin([(x, low) for x, low, _ in area.points])
    path = field.path([*upper, *reversed(lower)]) + ("" if alone else "Z")
    if alone:
        look = "whisker second" if look.endswith("second") else "whisker main"
    return {"name": area.name, "legend": area.look, "look": look, "path": path, "alone": alone}


def _short(value: float) -> str:
    return count_text(value) if value >= 1000 else f"{value:.3g}"


def _in_words(line: ChartLine) -> str:
    places = line.points[0], line.points[-1], max(line.points, key=lambda p: p[1])
    first, last, top = (f"{_short(y)} at {x:g}" for x, y in places)
    return f"{line.name}: from {first} to {last}, highest {top}."
