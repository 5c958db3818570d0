"""HTML built from values: what is not `Html` already is escaped, always.

Everything a report shows (inputs, replies, feedback, tracebacks) is untrusted. So there is one way
to make markup, `el`, and no way for a text to become an address, a style or a script.

Style and script of pages: our own files, read where they are put into a page or served.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

from promptcodebook.text import printable

MISSING = "—"
"""Stands where there is no number."""

_VOID = frozenset(
    {"br", "circle", "hr", "img", "input", "line", "link", "meta", "path", "polygon", "rect"}
)
_UNCLOSED = frozenset({"br", "hr", "img", "input", "link", "meta"})
_INSIDE = re.compile(
    r"#.*"
    r"|/(?:[\w.~%@:=-]+(?:/[\w.~%@:=-]+)*)?(?:\?[\w.~%@:=&+-]*)?(?:#[\w-]*)?"
    r"|data:(?:image/svg\+xml|text/csv);base64,[A-Za-z0-9+/=]*",
    re.ASCII,
)
"""Addresses that stay where they are: a place in the page, a path of the server that it came from,
and a file that lies in the link itself."""


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that needs no further escaping."""

    markup: str


Content: TypeAlias = "Html | str | int | Sequence[Content] | None"
"""What an element may hold: markup, text, a number, nothing, or several of these."""
Attributes: TypeAlias = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numeric ones are set to the right."""

    name: str
    numeric: bool = True


def _escape(text: str) -> str:
    """The text, escaped for an element or a quoted attribute."""
    return html.escape(printable(text), quote=True)


def together(*parts: Content) -> Html:
    """The parts, one after the other."""
    return Html("".join(_markup(part) for part in parts))


def el(spec: str, *children: Content, attrs: Attributes | None = None) -> Html:
    """An element: `el("td.num", 3)` is `<td class="num">3</td>`.

    Raises ValueError for an address outside the page, an event or a style: texts of a run must
    never reach those.
    """
    name, *classes = spec.split(".")
    given = dict(attrs or {})
    if classes:
        given["class"] = " ".join(classes)
    opened = name + "".join(_attribute(key, value) for key, value in given.items())
    if name in _VOID and not children:
        return Html(f"<{opened}>" if name in _UNCLOSED else f"<{opened}/>")
    return Html(f"<{opened}>{together(*children).markup}</{name}>")


def table(columns: Sequence[Column], rows: Iterable[Iterable[Content]]) -> Html:
    """A table that scrolls sideways where it must."""
    scope = {"scope": "col"}
    titles = [el("th.num" if c.numeric else "th", c.name, attrs=scope) for c in columns]
    body = [
        el(
            "tr",
            [
                el("td.num" if c.numeric else "td", cell)
                for c, cell in zip(columns, row, strict=True)
            ],
        )
        for row in rows
    ]
    return scrolling(el("table", el("thead", el("tr", titles)), el("tbody", body)))


def scrolling(*body: Content) -> Html:
    """What scrolls sideways where it must, by keyboard too; the style sheet shades the edge that
    hides something."""
    return el("div.wide", *body, attrs={"tabindex": 0})


def _markup(part: Content) -> str:
    match part:
        case None:
            return ""
        case Html(markup):
            return markup
        case str():
            return _escape(part)
        case int():
            return str(part)
        case _:
            return "".join(_markup(inner) for inner in part)


def _attribute(name: str, value: str | float) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    lowered = name.lower()
    address = lowered in ("href", "src", "action")
    outside = address and _INSIDE.fullmatch(shown) is None
    if outside or lowered.startswith("on") or lowered == "style":
        raise ValueError(f"the attribute {name} may not be set to {shown!r} in a report")
    return f' {name}="{_escape(shown)}"'


def read_style() -> str:
    """The style sheet of pages, of the drawings in them and of curves that answer."""
    names = ("uplot/uPlot.min.css", "style.css", "figure.css", "chart.css")
    return "\n".join(map(read_asset, names))


def read_script() -> str:
    """What makes the curves of a page answer: uPlot, and how we use it."""
    return "\n".join(map(read_asset, ("uplot/uPlot.iife.min.js", "chart.js")))


def read_asset(name: str) -> str:
    """A file of this package, by its path in it."""
    return files("promptcodebook.report").joinpath(name).read_text("utf-8")
