""""""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.report import render_report
from promptcodebook.report.context import csv_text, svg_text
from promptcodebook.report.html import Html, el, read_asset, read_script, read_style, together
from promptcodebook.report.svg import (
    Area,
    Chart,
    Line,
    Numbers,
    Spot,
    curves_of,
    lay_out,
    legend_of,
    numbers_of,
)
from promptcodebook.store.run import RunStore
from promptcodebook.text import printable
from tests.report.scripted_run import HOSTILE, ScriptedRun
from tests.report.strict import read_page


def test_an_element_carries_classes_attributes_and_children() -> None:
    made = el("td.num.wide", 3, " of ", ["a", None], attrs={"colspan": 2, "x": 1.5})
    assert made.markup == '<td colspan="2" x="1.5" class="num wide">3 of a</td>'


def test_text_is_escaped_and_markup_is_not_escaped_twice() -> None:
    inner = el("b", "<&>\"'")
    assert el("p", inner, attrs={"title": '"<'}).markup == (
        '<p title="&quot;&lt;"><b>&lt;&amp;&gt;&quot;&#x27;</b></p>'
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("href", "javascript:alert(1)"),
        ("href", "https://example.org"),
        ("href", "//example.org/x"),
        ("href", "/\\example.org"),
        ("href", "/run/a b"),
        ("href", "data:text/html;base64,PGI+"),
        ("href", "data:text/csv,a"),
        ("src", "data:,x"),
        ("onclick", "x"),
        ("STYLE", "color: red"),
    ],
)
def test_no_attribute_leads_out_of_the_page_or_runs(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="may not be set"):
        el("a", "text", attrs={name: value})


def test_links_inside_the_page_are_allowed() -> None:
    assert el("a", "x", attrs={"href": "#top"}).markup == '<a href="#top">x</a>'


@pytest.mark.parametrize("path", ["/", "/run/a%20b/codebook/3", "/compare?a=x&b=y", "/run/a#test"])
def test_paths_of_the_server_a_page_came_from_are_allowed(path: str) -> None:
    assert "href" in el("a", "x", attrs={"href": path}).markup


def test_void_elements_stand_alone() -> None:
    drawn = together(el("br"), el("circle", attrs={"r": 2}), el("circle", el("title", "t")))
    assert drawn == Html('<br><circle r="2"/><circle><title>t</title></circle>')


def test_what_cannot_be_shown_is_replaced() -> None:
    text = "a\x00b\x1b[31m\ud800\ttab\nline"
    made = el("p", text, attrs={"title": text})
    assert made.markup == ('<p title="a b [31m?\ttab\nline">a b [31m?\ttab\nline</p>')
    made.markup.encode("utf-8")


@given(st.text(max_size=200))
def test_any_text_comes_back_as_it_can_be_shown(text: str) -> None:
    page = read_page(el("div", el("p", text), el("i", attrs={"title": text})).markup)
    assert page.faults == []
    assert page.tags == ["div", "p", "i"]
    assert "".join(page.texts) == printable(text)


# --- The library and the data of curves that answer ---


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


# --- Figures as files: whole, well-formed, and never without the word that they are simulated ---


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
