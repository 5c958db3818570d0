"""Figures as files to keep: the drawing as SVG, which needs no page around it, and its numbers as
CSV. They lie in the page itself, as `data:` links that are only ever saved."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Sequence

from promptcodebook.report.assets import read_asset
from promptcodebook.report.html import Html, el
from promptcodebook.report.svg import Numbers, Picture
from promptcodebook.text import printable

_HEAD, _LEGEND, _FOOT = 30, 22, 24
"""Height of a file's title, of its legend, and of the line that says whose numbers they are."""
_ROOT = re.compile(r"(--[\w-]+):\s*([^;]+);")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_NO_XML = re.compile("[\ufffe\uffff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would read as an order, not as a text."""


def downloads(
    picture: Picture, numbers: Numbers, legend: Sequence[tuple[str, str]], source: str
) -> Html:
    """Links that save the figure and its numbers; `source` says in both whose they are."""
    name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-") or "figure"
    drawing = svg_text(picture, legend, source)
    return el(
        "p.files",
        _download(f"{name}.svg", "image/svg+xml", drawing, f"{picture.title} as SVG"),
        _download(f"{name}.csv", "text/csv", csv_text(numbers, source), f"{picture.title} as CSV"),
    )


def _download(name: str, kind: str, text: str, label: str) -> Html:
    """A link that saves a text of our own making; a browser does not open such a link as a page."""
    address = f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
    attrs = {"href": address, "download": name, "aria-label": label}
    return el("a", name.rpartition(".")[2].upper(), attrs=attrs)


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


def svg_text(picture: Picture, legend: Sequence[tuple[str, str]], source: str) -> str:
    """The drawing under its title, on white, with its colours in it."""
    width, inner = picture.size
    top = _HEAD + (_LEGEND if legend else 0)
    height = top + inner + _FOOT
    at = {"x": 0, "y": top, "width": width, "height": inner, "viewBox": f"0 0 {width:g} {inner:g}"}
    drawing = el(
        "svg",
        Html(f"<style>{_plain_style()}</style>"),  # our own file, and no text of the run
        el("rect.page", attrs={"width": width, "height": height}),
        el("text", picture.title, attrs={"class": "label heading", "x": 4, "y": 20}),
        _legend(legend),
        el("svg", picture.shapes, attrs=at),
        el("text", source, attrs={"class": "tick", "x": 4, "y": height - 8}),
        attrs={
            "xmlns": "http://www.w3.org/2000/svg",
            "width": width,
            "height": height,
            "viewBox": f"0 0 {width:g} {height:g}",
        },
    )
    return _NO_XML.sub(" ", drawing.markup)


def _legend(legend: Sequence[tuple[str, str]]) -> list[Html]:
    shapes: list[Html] = []
    x = 4.0
    for name, look in legend:
        shapes.append(el(f"rect.swatch.{look}", attrs={"x": x, "y": 36, "width": 14, "height": 5}))
        shapes.append(el("text", name, attrs={"class": "tick", "x": x + 20, "y": 43}))
        x += 34 + 7 * len(name)
    return shapes


def _plain_style() -> str:
    """The drawings' style with the colours of the light theme in the place of their names: not
    every program that opens an SVG file knows variables."""
    light = read_asset("style.css").partition("}")[0]
    colours = {name: value.strip() for name, value in _ROOT.findall(light)}
    return _VARIABLE.sub(lambda found: colours[found[1]], read_asset("figure.css"))
