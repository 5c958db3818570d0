"""What a notebook shows of a value: small tables and texts, in which everything is escaped.

Texts come from models and from other people's files: none becomes an element, a style or a script,
none steers the direction of what is read, and none floods the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_MOST_ROWS = 100
_MOST_CHARACTERS = 4000


def shown_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as HTML, its first rows at the most; None is an empty cell."""
    cells = [[_escape("" if cell is None else str(cell)) for cell in row] for row in rows]
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in cells[:_MOST_ROWS])
    more = len(cells) - _MOST_ROWS
    foot = f"<p>and {more} more</p>" if more > 0 else ""
    head_row = _cells("th", [_escape(name) for name in head])
    return (
        f"<table><caption>{_escape(caption)}</caption><thead><tr>{head_row}</tr></thead>"
        f"<tbody>{body}</tbody></table>{foot}"
    )


def shown_text(title: str, text: str) -> str:
    """A titled text as HTML, its line breaks kept."""
    style = "white-space: pre-wrap; text-align: left"
    return f'<p><b>{_escape(title)}</b></p><pre style="{style}">{_escape(text)}</pre>'


def _cells(kind: str, cells: Iterable[str]) -> str:
    return "".join(f'<{kind} style="text-align: left">{cell}</{kind}>' for cell in cells)


def _escape(text: str) -> str:
    cut = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " …"
    printable = _UNSEEN.sub(" ", cut).encode("utf-8", "replace").decode()
    return html.escape(printable, quote=True)
