"""Figures in the form of the paper's, as SVG and PNG (extra [figures], matplotlib).

The same figure makes the same SVG bytes: no date in it, and names that do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.experiments.page import Bars, Curves, Figure, Heat, Point

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
    style = import_module("matplotlib").rc_context
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.svg", folder / f"{figure.name}.png"]
    with style(dict(_STYLE)):
        canvas = canvases.Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = canvas.add_subplot()
        if isinstance(figure, Bars):
            _bars(axes, figure)
        elif isinstance(figure, Curves):
            _curves(axes, figure)
        else:
            _heat(axes, figure)
        canvas.savefig(paths[0], metadata={"Date": None, "Title": figure.title})
        canvas.savefig(paths[1], dpi=160, metadata={"Title": figure.title})
    return paths


def _bars(axes: Axes, figure: Bars) -> None:
    places = range(len(figure.labels))
    width = 0.8 / max(1, len(figure.series))
    for number, (name, values) in enumerate(figure.series.items()):
        left = [p - 0.4 + width * (number + 0.5) for p in places]
        heights = [0.0 if v is None else v for v in values]
        axes.bar(left, heights, width, label=name, color=_COLOURS[number % len(_COLOURS)])
    axes.set_xticks(list(places), list(figure.labels), rotation=0 if len(places) > 8 else 30)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(axis="y", linestyle="--", alpha=0.4)
    if len(figure.series) > 1:
        axes.legend(loc="best", frameon=False, fontsize=8)


def _curves(axes: Axes, figure: Curves) -> None:
    _lines(axes, figure.lines, _COLOURS, "o")
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(axis="y", linestyle="--", alpha=0.4)
    drawn = [axes]
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
    handles = [h for each in drawn for h in each.get_legend_handles_labels()[0]]
    if len(handles) > 1:
        axes.legend(handles=handles, loc="best", frameon=False, fontsize=8)


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


def _heat(axes: Axes, figure: Heat) -> None:
    shades = axes.imshow(
        [list(row) for row in figure.values], aspect="auto", cmap="Blues", interpolation="nearest"
    )
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.get_figure().colorbar(shades, ax=axes)
