"""Pages from templates: one environment, in which every value is escaped.

Everything a page shows (inputs, replies, feedback, tracebacks) is untrusted. Markup comes from our
own template files alone, and addresses from `address` and from files that lie in the page itself.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from promptcodebook.text import printable, shorten, word_changes
from promptcodebook.types import variable_name
from promptcodebook.units import count_text, duration, money, number, percent, plural

MISSING = "—"
"""Shown where there is no number."""
_ROOT = re.compile(r"(--[\w-]+):\s*([^;]+);")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_NO_XML = re.compile("[\ufffe\uffff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would read as a formula, not as a text."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of what a figure shows; it has one of `every` points."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    every: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing with its words and its numbers; `size` is the extent of its view box, in pixels
    where `fixed`. `legend` has names and looks. Where a script can read values off the drawing,
    `range` is what its field spans: the ends of x, then of y."""

    title: str
    description: str
    size: tuple[float, float]
    shapes: Markup
    numbers: Numbers
    fixed: bool = False
    legend: Sequence[tuple[str, str]] = ()
    x_label: str = ""
    range: tuple[float, float, float, float] | None = None

    @property
    def name(self) -> str:
        """That of its files."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "figure"


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
    tables.globals.update(MISSING=MISSING, address=address)
    tables.filters.update(
        count=count_text,
        csv_file=_csv_file,
        duration=duration,
        money=money,
        number=_number,
        percent=percent,
        plural=plural,
        shorten=shorten,
        svg_file=_svg_file,
        thousands="{:,}".format,
        variable=variable_name,
        word_changes=_word_changes,
    )
    return made


def _csv_file(numbers: Numbers, source: str) -> str:
    return _data("text/csv", csv_text(numbers, source))


def _svg_file(picture: Picture, source: str) -> str:
    return _data("image/svg+xml", svg_text(picture, source))


def _word_changes(after: str, before: str) -> Iterator[tuple[str, str]]:
    return word_changes(before, after)


def _shown(value: Any) -> Any:
    """What of a value reaches the page: no control characters, and nothing of None."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return "" if value is None else value


def _number(
    value: float | None, digits: int = 3, signed: bool = False, missing: str = MISSING
) -> str:
    return number(value, digits, signed=signed, missing=missing)


def address(*parts: str | int, **query: str) -> str:
    """A path of this server: every part is one level, whatever is in it."""
    path = "/" + "/".join(quote(printable(str(part)), safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def csv_text(numbers: Numbers, source: str) -> str:
    """The numbers, each row with its source; no text in it is taken for a formula."""
    if numbers.every > 1:
        source += f", one point in {numbers.every}"
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([*numbers.columns, "source"])
    writer.writerows([*map(_cell, row), source] for row in numbers.rows)
    return target.getvalue()


def _cell(value: str | float) -> str | float:
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA) else value)


def svg_text(picture: Picture, source: str) -> str:
    """The drawing under its title, on white. Its colours are those of the light theme, by value:
    not every program that opens an SVG file knows variables."""
    light = read_asset("style.css").partition("}")[0]
    colours = {name: value.strip() for name, value in _ROOT.findall(light)}
    style = _VARIABLE.sub(lambda found: colours[found[1]], read_asset("figure.css"))
    values: Mapping[str, Any] = {"style": Markup(style), "source": source}
    return _NO_XML.sub(" ", render("report/templates/file.svg.jinja", picture=picture, **values))


def _data(kind: str, text: str) -> str:
    """The address of a text of our own making, which a browser saves and does not open."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def digest(text: str) -> str:
    """What a security policy allows this style sheet or script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def read_style() -> str:
    """The style sheet of pages, of the drawings in them and of interactive charts."""
    return "\n".join(map(read_asset, ("style.css", "figure.css", "chart.css")))


def read_asset(name: str) -> str:
    """A file of this package, by its path in it."""
    return files("promptcodebook.report").joinpath(name).read_text("utf-8")
