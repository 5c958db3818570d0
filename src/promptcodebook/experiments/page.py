"""What an experiment shows: sentences, tables and figures, written as Markdown and LaTeX.

A page is values first, so that one table stands in the Markdown, in a LaTeX file and in the JSON
beside it with the same figures; `drawing.py` draws the figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.intervals import Interval


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is its file's, `title` its caption; every row is as long as the head."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars side by side: of each series one at each label, None where there is none."""

    name: str
    title: str
    y: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    x: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A value at x; `low` and `high` are the ends of its error bar."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over x. Those in `right` are read at an axis of their own, `y_right`."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    right: Mapping[str, Sequence[Point]]
    y_right: str = ""
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Heat:
    """A value for each row and column, by shade."""

    name: str
    title: str
    x: str
    y: str
    values: Sequence[Sequence[float]]


Figure = Bars | Curves | Heat
Block = str | Table | Figure
"""A string is a paragraph, or a heading, in Markdown."""


@dataclass(frozen=True, slots=True)
class Page:
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def tables(self) -> list[Table]:
        return [block for block in self.blocks if isinstance(block, Table)]

    @property
    def figures(self) -> list[Figure]:
        return [block for block in self.blocks if isinstance(block, Bars | Curves | Heat)]


def shown(of: Interval, *, signed: bool = False, digits: int = 3) -> str:
    """An interval as a table shows it: mean (low to high)."""
    form = f"{'+' if signed else ''}.{digits}f"
    return f"{of.mean:{form}} ({of.low:{form}} to {of.high:{form}})"


def markdown(page: Page, beside: str = "", undrawn: str = "") -> str:
    """The page; its figures are SVG files in the folder `beside`. Where they could not be drawn,
    `undrawn` says why."""
    parts = [f"# {page.title}"]
    for block in page.blocks:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, Table):
            parts += [f"**{block.title}**"] * bool(block.title) + [_grid(block)]
        elif undrawn:
            parts.append(f"{block.title}: {undrawn}")
        else:
            parts.append(f"![{block.title}]({beside}/{block.name}.svg)")
            parts.append(f"*{block.title}*")
    return "\n\n".join(parts) + "\n"


def _grid(table: Table) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(_escaped(c) for c in line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_LETTERS = {
    **{"Δ": r"$\Delta$", "ε": r"$\varepsilon$", "θ": r"$\theta$", "α": r"$\alpha$"},
    **{"δ": r"$\delta$", "φ": r"$\phi$", "ψ": r"$\psi$", "ρ": r"$\rho$", "Σ": r"$\Sigma$"},
    **{"±": r"$\pm$", "≤": r"$\le$", "×": r"$\times$"},
}


def latex(table: Table) -> str:
    """A table for a paper that loads booktabs: the first column left, the others centred."""
    columns = "l" + "c" * (len(table.head) - 1)
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _tex_row(table.head),
        r"\midrule",
        *(_tex_row(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\caption{{{_tex(table.title)}}}"] if table.title else []),
        rf"\label{{tab:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"


def _tex(text: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*|`(.+?)`", lambda found: found[1] or found[2], text)
    return "".join(_SPECIAL.get(sign, _LETTERS.get(sign, sign)) for sign in text.replace("\n", " "))


def plain(page: Page) -> dict[str, Any]:
    """The page's tables as plain JSON values, by name."""
    return {
        table.name: {
            "title": table.title,
            "head": list(table.head),
            "rows": [list(row) for row in table.rows],
        }
        for table in page.tables
    }
