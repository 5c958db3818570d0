"""What curves that answer are made of: a library as it was published, and a drawing's own data."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files

from promptcodebook.report.html import read_asset, read_script, read_style
from promptcodebook.report.svg import Area, Chart, Line, Spot, curves_of, lay_out, numbers_of

_CHART = Chart(
    "Reward",
    "step",
    [Line("mean", [(1, 0.25), (2, 0.5)]), Line("none", []), Line("=limit", [(1, 0.1)], "limit")],
    [Area("± 1 sd", [(1, 0.1, 0.4)]), Area("empty", [])],
    [Spot(2, 0.5, "best")],
    (0.0, 1.0),
)


def test_the_library_is_as_it_was_published() -> None:
    folder = files("promptcodebook.report") / "uplot"
    said = re.findall(r"\| `([\w.]+)` \| `(\w{64})` \|", read_asset("uplot/README.md"))
    assert {name for name, _ in said} == {"uPlot.iife.min.js", "uPlot.min.css"}
    for name, digest in said:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in read_asset("uplot/LICENSE")


def test_style_and_script_can_stand_in_a_page_and_load_nothing() -> None:
    assert "</script" not in read_script().lower() and "<!--" not in read_script()
    assert "</style" not in read_style().lower()
    for forbidden in ("innerHTML", "eval(", "new Function", "fetch(", "XMLHttpRequest", "import("):
        assert forbidden not in read_script()
    assert "url(" not in read_style() and "@import" not in read_style()


def test_a_curve_names_what_the_file_of_the_chart_has() -> None:
    curves = json.loads(curves_of(_CHART))
    filed = {str(row[0]) for row in numbers_of(_CHART).rows}
    assert curves["lines"] == [["mean", "main"], ["=limit", "limit"]]
    assert curves["areas"] == [["± 1 sd", "area"]]
    assert {name for name, _ in (*curves["lines"], *curves["areas"])} == filed
    assert curves["spots"] == [[2, 0.5, "best", "main"]] and curves["y"] == [0.0, 1.0]


def test_places_that_are_no_course_stay_a_drawing() -> None:
    chart = Chart("t", "x", [Line("a", [(1, 1.0), (1, 2.0)], "dots")], scattered=True)
    assert curves_of(chart) == ""


def test_an_interval_of_one_point_is_drawn() -> None:
    lines = [Line("mean", [(1, 0.25), (2, 0.5)])]
    picture = lay_out(Chart("t", "x", lines, [Area("95 %", [(2, 0.1, 0.9)], "area.second")]))
    assert picture is not None
    assert 'class="whisker second"' in picture.html().markup
