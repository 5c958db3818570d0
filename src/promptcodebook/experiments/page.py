"""What an experiment shows: sentences, tables and figures, as Markdown, LaTeX, SVG and PNG.

A page is values first, so that Markdown, LaTeX and JSON show the same figures. Figures follow the
paper's form (extra [figures], matplotlib). The same figure makes the same SVG bytes: it contains no
date, and its names do not change.

What the paper printed is beside our figures, never in their column. `published.json` has every
number of its tables and plots of results (plots by the coordinates in their source), and those that
it states of a figure elsewhere; Tables 8, 12 and 14 and Figure 7 have no numbers. Rows, columns and
digits are the paper's. A number is paired by its metric: a cell asked for under another one is
None. The metrics of Table 1 are the ones that its figures fit on Qwen3-8B (decision 18 of
docs/method.md), not the ones that the paper names in Table 7.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from promptcodebook.errors import ConfigError, did_you_mean, import_extra
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
    """Bars side by side: of each series one at each label (None = no bar)."""

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
    """A title and the blocks below it."""

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
    escaped = ([c.replace("|", "\\|").replace("\n", " ") for c in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


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
    rows = [" & ".join(map(_tex, row)) + r" \\" for row in (table.head, *table.rows)]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * (len(table.head) - 1)}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\caption{{{_tex(table.title)}}}"] if table.title else []),
        rf"\label{{tab:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*|`(.+?)`", lambda found: found[1] or found[2], text)
    return "".join(_SPECIAL.get(sign, _LETTERS.get(sign, sign)) for sign in text.replace("\n", " "))


def plain(page: Page) -> dict[str, Any]:
    """The page's tables as plain JSON values, by name."""
    return {
        t.name: {"title": t.title, "head": list(t.head), "rows": [list(row) for row in t.rows]}
        for t in page.tables
    }


Axes = Any
"""matplotlib's, which is not installed where no figure is drawn."""

_COLOURS = ("#4575b4", "#d73027", "#1b7837", "#8c8c8c", "#dd8452", "#994f00")
_RIGHT = ("#e1781e", "#b35806", "#7f3b08")
_STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "promptcodebook",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.axisbelow": True,
}


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Writes NAME.svg and NAME.png into the folder; MissingExtra without matplotlib."""
    canvases = import_extra("matplotlib.figure", "drawing a figure", "figures")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.svg", folder / f"{figure.name}.png"]
    with import_module("matplotlib").rc_context(dict(_STYLE)):
        canvas = canvases.Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = canvas.add_subplot()
        if isinstance(figure, Heat):
            rows = [list(row) for row in figure.values]
            shades = axes.imshow(rows, aspect="auto", cmap="Blues", interpolation="nearest")
            canvas.colorbar(shades, ax=axes)
        else:
            axes.grid(axis="y", linestyle="--", alpha=0.4)
            drawn = _bars(axes, figure) if isinstance(figure, Bars) else _curves(axes, figure)
            handles = [h for each in drawn for h in each.get_legend_handles_labels()[0]]
            if len(handles) > 1:
                axes.legend(handles=handles, loc="best", frameon=False, fontsize=8)
        axes.set_xlabel(figure.x)
        axes.set_ylabel(figure.y)
        canvas.savefig(paths[0], metadata={"Date": None, "Title": figure.title})
        canvas.savefig(paths[1], dpi=160, metadata={"Title": figure.title})
    return paths


def _bars(axes: Axes, figure: Bars) -> list[Axes]:
    places = range(len(figure.labels))
    width = 0.8 / max(1, len(figure.series))
    for number, (name, values) in enumerate(figure.series.items()):
        left = [p - 0.4 + width * (number + 0.5) for p in places]
        heights = [0.0 if v is None else v for v in values]
        axes.bar(left, heights, width, label=name, color=_COLOURS[number % len(_COLOURS)])
    axes.set_xticks(list(places), list(figure.labels), rotation=0 if len(places) > 8 else 30)
    return [axes]


def _curves(axes: Axes, figure: Curves) -> list[Axes]:
    drawn = [axes]
    _lines(axes, figure.lines, _COLOURS, "o")
    if figure.right:
        other = axes.twinx()
        _lines(other, figure.right, _RIGHT, "s")
        other.set_ylabel(figure.y_right)
        drawn.append(other)
    if figure.log_x:
        axes.set_xscale("log", base=2)
    points = {p.x for line in (*figure.lines.values(), *figure.right.values()) for p in line}
    if len(points) <= 8:
        axes.set_xticks(sorted(points), [f"{x:g}" for x in sorted(points)])
        axes.minorticks_off()
    return drawn


def _lines(
    axes: Axes, lines: Mapping[str, Sequence[Point]], colours: Sequence[str], mark: str
) -> None:
    for number, (name, points) in enumerate(lines.items()):
        known = sorted(points, key=lambda p: p.x)
        below = [0.0 if p.low is None else p.y - p.low for p in known]
        above = [0.0 if p.high is None else p.high - p.y for p in known]
        axes.errorbar(
            [p.x for p in known],
            [p.y for p in known],
            yerr=[below, above] if any(below) or any(above) else None,
            label=name,
            marker=mark if len(known) <= 60 else "",
            markersize=4,
            capsize=2,
            color=colours[number % len(colours)],
        )


def explained(what: str) -> Mapping[str, str]:
    """What each of the paper's `tables` (and figures) shows, in its order, or each of `metrics`."""
    return tomllib.loads(_file("published.toml"))[what]


def _file(name: str) -> str:
    return resources.files("promptcodebook.experiments").joinpath(name).read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Published:
    """One number. `value` is in `unit`s, `printed` has the paper's digits; `executor` is the frozen
    model and `benchmark` the data, None where the paper does not say or means several; `error` is
    the half-width of an error bar, None without one (the paper does not say of what)."""

    table: str
    row: str
    column: str
    metric: str
    value: float
    printed: str
    unit: str
    executor: str | None = None
    benchmark: str | None = None
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table or figure, or its part for one executor; values in the order of the paper."""

    name: str
    values: tuple[Published, ...]

    def cell(self, row: str, column: str, metric: str) -> Published | None:
        """The number at (row, column) if it is of this metric; None where it is of another or
        where nothing is printed. ConfigError where the table has it for several executors."""
        found = [v for v in self.values if (v.row, v.column, v.metric) == (row, column, metric)]
        if len(found) > 1:
            models = [str(value.executor) for value in found]
            raise ConfigError(
                f"{self.name} has {row!r}, {column!r} for {' and for '.join(models)}",
                hint=f"published({self.name!r}, executor={models[0]!r})",
            )
        return found[0] if found else None


def published(table: str, executor: str | None = None) -> PublishedTable:
    """A table or figure by its name in published.toml, of all executors or one. ConfigError for an
    unknown table, and for an executor that it has nothing of."""
    tables = explained("tables")
    if table not in tables:
        raise ConfigError(
            f"the paper has no numbers under the name {table!r}{did_you_mean(table, tables)}",
            hint=", ".join(tables),
        )
    entries = json.loads(_file("published.json"))
    values = tuple(Published(**entry) for entry in entries if entry["table"] == table)
    if executor is None:
        return PublishedTable(table, values)
    executors = list(dict.fromkeys(v.executor for v in values if v.executor is not None))
    if executor not in executors:
        raise ConfigError(
            f"{table} has nothing of the executor {executor!r}{did_you_mean(executor, executors)}",
            hint=f"executors named there: {', '.join(executors) or 'none'}",
        )
    return PublishedTable(table, tuple(value for value in values if value.executor == executor))
