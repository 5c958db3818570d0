"""Figures as files: whole, well-formed, and never without the word that they are simulated."""

from __future__ import annotations

import base64
import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from promptcodebook.report import render_report
from promptcodebook.report.context import csv_text, svg_text
from promptcodebook.report.svg import Area, Chart, Line, Numbers, lay_out, legend_of, numbers_of
from promptcodebook.store.run import RunStore
from tests.report.scripted_run import HOSTILE, ScriptedRun

Write = Callable[[ScriptedRun], RunStore]
CHART = Chart(
    "Reward",
    "step",
    [Line("mean", [(1, 0.25), (2, 0.5)]), Line("=1+1", [(1, 0.1)], "second")],
    [Area("± 1 sd", [(1, 0.1, 0.4), (2, 0.3, 0.7)])],
)


def files_of(source: str) -> dict[str, str]:
    found = re.findall(r'href="data:[\w/+]+;base64,([^"]+)" download="([^"]+)"', source)
    return {name: base64.b64decode(data).decode() for data, name in found}


@pytest.mark.parametrize("simulated", [True, False])
def test_every_figure_of_a_report_can_be_kept_and_says_whose_numbers_it_shows(
    write: Write, simulated: bool
) -> None:
    store = write(ScriptedRun(simulated=simulated))
    files = files_of(render_report(store))
    assert len([name for name in files if name.endswith(".svg")]) == 9
    for name, text in files.items():
        assert f"run {store.header.id}" in text, name
        assert ("simulated" in text) is simulated, name
        if name.endswith(".svg"):
            root = ElementTree.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "var(" not in text and "url(" not in text
        else:
            rows = list(csv.reader(text.splitlines()))
            assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}


def test_the_numbers_are_those_of_the_chart() -> None:
    rows = list(csv.reader(csv_text(numbers_of(CHART), "run x").splitlines()))
    assert rows[0] == ["series", "step", "value", "low", "high", "source"]
    assert ["mean", "2", "0.5", "", "", "run x"] in rows
    assert ["± 1 sd", "2", "", "0.3", "0.7", "run x"] in rows


def test_a_long_series_is_filed_by_evenly_chosen_points_and_says_so() -> None:
    """Else a run of thousands of steps is too large a file to be mailed."""
    points = [(float(x), x / 7500) for x in range(7500)]
    chart = Chart("t", "step", [Line("all", points), Line("few", points[:30])])
    rows = list(csv.reader(csv_text(numbers_of(chart), "run x").splitlines()))[1:]
    assert {row[-1] for row in rows} == {"run x, one point in 4"}
    assert [float(row[1]) for row in rows if row[0] == "all"] == [
        float(x) for x in range(0, 7500, 4)
    ]


def test_no_cell_is_a_formula() -> None:
    rows = csv.reader(csv_text(numbers_of(CHART), "run x").splitlines())
    assert "'=1+1" in [row[0] for row in rows]
    assert csv_text(Numbers(("a",), [(-1.5,)]), "s").splitlines()[1] == "-1.5,s"


def test_a_drawing_holds_no_markup_of_the_run() -> None:
    picture = lay_out(Chart(HOSTILE, "x", [Line(f"{HOSTILE}\uffff", [(1, 1.0), (2, 2.0)])]))
    assert picture is not None
    text = svg_text(picture, [(HOSTILE, "main")], HOSTILE)
    tags = {element.tag.partition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags <= {"svg", "style", "rect", "text", "line", "path", "circle", "title"}


def test_the_legend_names_what_is_drawn() -> None:
    assert [name for name, _ in legend_of(CHART)] == ["mean", "=1+1", "± 1 sd"]
    assert legend_of(Chart("t", "x", [Line("alone", [(1, 1.0)])])) == []
