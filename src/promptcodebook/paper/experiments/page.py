"""What an experiment shows: sentences, tables and figures, as Markdown, SVG and PNG. The
same figure makes the same SVG bytes. What the paper printed (`published.json`) is beside our
figures, paired by its metric. The metrics of Table 1 are those that its figures fit on Qwen3-8B
(decision 18 of docs/method.md), not those that the paper names in Table 7."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from promptcodebook.base.intervals import Interval
from promptcodebook.base.text import shipped_table
from promptcodebook.errors import import_extra


def read_table(file: str) -> Mapping[str, Any]:
    """What `FILE.toml` beside this one holds."""
    return shipped_table(__file__, f"{file}.toml")


@dataclass(frozen=True, slots=True)
class PageTable:
    """`name` is its file's, `title` its caption; every row is as long as the head."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """`name` is its files', `title` its caption; `x` and `y` label the axes."""

    name: str
    title: str
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class Bars(Plot):
    """Bars side by side: of each series one at each label (None = no bar)."""

    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A value at x; `low` and `high` are the ends of its error bar."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


Points = Mapping[str, Sequence[PlotPoint]]  # of each line


@dataclass(frozen=True, slots=True)
class Curves(Plot):
    """Lines over x. Those in `right` are read at an axis of their own, `y_right`."""

    lines: Points
    right: Points
    y_right: str = ""
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Heat(Plot):
    """A value for each row and column, by shade."""

    values: Sequence[Sequence[float]]


Block = str | PageTable | Plot  # a string is a paragraph, or a heading, in Markdown


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    blocks: Sequence[Block]

    @property
    def tables(self) -> list[PageTable]:
        return [block for block in self.blocks if isinstance(block, PageTable)]

    @property
    def figures(self) -> list[Plot]:
        return [block for block in self.blocks if isinstance(block, Plot)]


def shown(of: Interval, *, signed: bool = False) -> str:
    """An interval as a table shows it: mean (low to high)."""
    form = "+.3f" if signed else ".3f"
    return f"{of.mean:{form}} ({of.low:{form}} to {of.high:{form}})"


def markdown(page: Page, beside: str = "", undrawn: str = "") -> str:
    """The page; its figures lie in the folder `beside`, or `undrawn` says why they do not."""
    parts = [f"# {page.title}"]
    for block in page.blocks:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, PageTable):
            table = (block.head, *block.rows)
            lines = ([c.replace("|", "\\|").replace("\n", " ") for c in row] for row in table)
            head, *rows = ["| " + " | ".join(line) + " |" for line in lines]
            parts += [f"**{block.title}**"] * bool(block.title)
            parts.append("\n".join([head, "|---" * len(block.head) + "|", *rows]))
        elif undrawn:
            parts.append(f"{block.title}: {undrawn}")
        else:
            picture = f"![{block.title}]({beside}/{block.name}.svg)"
            parts += [picture, f"*{block.title}*"]
    return "\n\n".join(parts) + "\n"


def plain(page: Page) -> dict[str, Any]:
    return {
        t.name: {"title": t.title, "head": list(t.head), "rows": [list(row) for row in t.rows]}
        for t in page.tables
    }


Axes = Any  # matplotlib's, which is not installed where no figure is drawn

_COLOURS = ("#4575b4", "#d73027", "#1b7837", "#8c8c8c", "#dd8452", "#994f00")
_RIGHT = ("#e1781e", "#b35806", "#7f3b08")


def draw(figure: Plot, folder: Path) -> list[Path]:
    """Writes NAME.svg and NAME.png into the folder. Raises MissingExtra without matplotlib."""
    canvases = import_extra("matplotlib.figure", "drawing a figure", "figures")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.svg", folder / f"{figure.name}.png"]
    style = Path(__file__).with_name("figures.mplstyle")
    with import_module("matplotlib").rc_context(fname=style):
        canvas = canvases.Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = canvas.add_subplot()
        if isinstance(figure, Heat):
            rows = [list(row) for row in figure.values]
            shades = axes.imshow(rows, aspect="auto", cmap="Blues", interpolation="nearest")
            canvas.colorbar(shades, ax=axes)
        elif isinstance(figure, Bars | Curves):
            axes.grid(axis="y", linestyle="--", alpha=0.4)
            drawn = _curves(axes, figure) if isinstance(figure, Curves) else _bars(axes, figure)
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


def _lines(axes: Axes, lines: Points, colours: Sequence[str], mark: str) -> None:
    for number, (name, points) in enumerate(lines.items()):
        known = sorted(points, key=lambda p: p.x)
        below = [0.0 if p.low is None else p.y - p.low for p in known]
        above = [0.0 if p.high is None else p.high - p.y for p in known]
        error = [below, above] if any(below) or any(above) else None
        looks = {"label": name, "color": colours[number % len(colours)]}
        looks |= {"marker": mark if len(known) <= 60 else "", "markersize": 4, "capsize": 2}
        axes.errorbar([p.x for p in known], [p.y for p in known], yerr=error, **looks)


@dataclass(frozen=True, slots=True)
class Published:
    """One number, in `unit`s and in the paper's digits; `executor` (the model), `benchmark` and
    `error` (half-width of a bar) are None where the paper does not say."""

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


def published(table: str, executor: str | None = None) -> list[Published]:
    """The numbers of a table or figure in the order of the paper, of one executor or of all."""
    text = Path(__file__).with_name("published.json").read_text("utf-8")
    entries = (entry for entry in json.loads(text) if entry["table"] == table)
    return [Published(**e) for e in entries if executor in (None, e["executor"])]


def paired(values: Sequence[Published], row: str, column: str, metric: str) -> Published | None:
    """The number at (row, column) if it is of this metric, else None."""
    found = [v for v in values if (v.row, v.column, v.metric) == (row, column, metric)]
    assert len(found) < 2, f"{row}, {column} exists for several executors"
    return found[0] if found else None


def as_printed(values: Sequence[Published]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns of these numbers, and their rows, which begin with their names."""
    columns = list(dict.fromkeys(value.column for value in values))
    printed = {(value.row, value.column): value.printed for value in values}
    rows = dict.fromkeys(value.row for value in values)
    return columns, [(r, *(printed.get((r, c), "") for c in columns)) for r in rows]
