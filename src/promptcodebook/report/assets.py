"""Style and script of pages: our own files, read where they are put into a page or served."""

from __future__ import annotations

from importlib.resources import files


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
