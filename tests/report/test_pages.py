"""Pages escape every value, charts are drawn from their description, and figures can be kept."""

from __future__ import annotations

import base64
import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from promptcodebook.base.text import printable
from promptcodebook.report.page import render_report
from promptcodebook.report.pages import (
    Area,
    Chart,
    ChartLine,
    Picture,
    address,
    csv_text,
    draw,
    read_script,
    read_style,
    render,
    svg_text,
)
from promptcodebook.store.run import RunStore
from tests.build.scripted_run import HOSTILE, ScriptedRun
from tests.build.strict import read_page

PACKAGE = Path(str(files("promptcodebook")))
TEMPLATES = {str(p.relative_to(PACKAGE)): p.read_text("utf-8") for p in PACKAGE.rglob("*.jinja")}


@given(st.text(max_size=200))
def test_any_text_comes_back_as_it_can_be_shown(text: str) -> None:
    source = render("deploy/viewer/templates/missing.html.jinja", what=text, hint="x")
    page = read_page(source)
    assert page.faults == [] and page.tags == ["p", "p", "code"]
    assert page.texts[0] == printable(text) if text else True


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("deploy/viewer/templates/missing.html.jinja", what="x")


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_lets_a_value_run_or_lead_out_of_the_page(name: str) -> None:
    """Values are escaped; so they must stand in quotes, and not where a browser runs them."""
    text = re.sub(r"\{#.*?#\}", "", TEMPLATES[name], flags=re.S)
    assert "|safe" not in text and "Markup" not in text and "autoescape" not in text
    assert not re.search(r"\s(on\w+|style|srcdoc|formaction)=", text)
    assert not re.search(r"=\{\{", text), "an attribute without quotes"
    for value in re.findall(r'\s(?:href|src|action)="(.*?)"(?=[\s>])', text):
        inside = value.startswith(("{{ address(", "#", "/", "data:image/")) and "://" not in value
        made = r"\{\{ (to|data_file\('[a-z/+]+', (picture|csv_text).*\)) \}\}"
        assert inside or re.fullmatch(made, value), value
    for raw in re.findall(r"<(?:script|style)[^>]*>\{\{ (.*?) \}\}", text):
        assert raw in ("style", "script")  # our own files, which Python marks as markup


@pytest.mark.parametrize(("parts", "query", "path"), [
    (("run", "a b/..", 3), {}, "/run/a%20b%2F../3"),
    (("javascript:x", "//evil\\"), {}, "/javascript%3Ax/%2F%2Fevil%5C"),
    ((), {"page": "2"}, "/?page=2"),
    (("a\x00\ud800",), {"q": "&x"}, "/a%20%3F?q=%26x"),
])  # fmt: skip
def test_an_address_stays_on_this_server(parts: Any, query: dict[str, str], path: str) -> None:
    assert address(*parts, **query) == path


def test_style_and_script_can_stand_in_a_page_and_load_nothing() -> None:
    script = read_script()
    assert "</script" not in script.lower() and "<!--" not in script
    assert "</style" not in read_style().lower()
    for forbidden in ("innerHTML", "eval(", "new Function", "fetch(", "XMLHttpRequest", "import("):
        assert forbidden not in script
    assert "url(" not in read_style() and "@import" not in read_style()


# --- Charts ---

CHART = Chart(
    "Reward",
    "step",
    [
        ChartLine("mean", [(1, 0.25), (2, 0.5)]),
        ChartLine("none", []),
        ChartLine("=1+1", [(1, 0.1)], "limit"),
    ],
    [Area("± 1 sd", [(1, 0.1, 0.4), (2, 0.3, 0.7)]), Area("empty", [])],
    [((2, 0.5), "best", "main")],
    (0.0, 1.0),
)


def drawn(chart: Chart, mark: str = "") -> Picture:
    picture = draw(chart, mark)
    assert picture is not None
    assert read_page(f"<svg>{picture.shapes}</svg>").faults == []
    return picture


def test_a_chart_is_drawn_from_its_description() -> None:
    picture = drawn(CHART, "simulated")
    assert picture.legend == [("mean", "main"), ("=1+1", "limit"), ("± 1 sd", "area")]
    assert picture.range == (1, 2, 0.0, 1.0)
    series = re.findall(r'data-name="(.*?)" data-look="(.*?)"', picture.shapes)
    assert series == [("± 1 sd", "area"), ("mean", "main"), ("=1+1", "limit")]
    scale = re.findall(r'<text class="tick end"[^>]*>([\d.]+)</text>', picture.shapes)
    assert scale == ["0", "0.25", "0.5", "0.75", "1"], "round"
    # 380 wide and 172 high: 0.25 is at three quarters of the height, 0.5 at the middle
    assert '<path class="main" d="M0 129L380 86"/>' in picture.shapes
    assert '<path class="area" d="M0 103.2L380 51.6L380 120.4L0 154.8Z"/>' in picture.shapes
    assert '<circle class="limit" cx="0.0" cy="154.8" r="2.8"/>' in picture.shapes
    assert '<text class="label end" x="380.0" y="76.0">best</text>' in picture.shapes
    assert ">simulated</text>" in picture.shapes and "simulated" not in drawn(CHART).shapes
    assert "mean: from 0.25 at 1 to 0.5 at 2, highest 0.5 at 2." in picture.description
    assert drawn(Chart("t", "x", [ChartLine("alone", [(1, 1.0)])])).legend == ()


@pytest.mark.parametrize("points", [[], [(1.0, float("nan"))]])
def test_a_chart_without_points_is_not_drawn(points: list[tuple[float, float]]) -> None:
    assert draw(Chart("t", "x", [ChartLine("a", points)])) is None
    context = SimpleNamespace(simulated=False, deployed=None, setting={}.get)
    shown = render(
        "report/templates/training.html.jinja",
        context=context, window=10, bits=1, sizes=None, reward=None, validation=None, others={},
    )  # fmt: skip
    assert shown.count("Nothing to draw.") == 2 and "Validation: none in this run." in shown


def test_single_points_places_and_long_lines_are_drawn_as_such() -> None:
    lone = drawn(
        Chart("t", "x", [ChartLine("a", [(1.0, 0.5)])], [Area("i", [(1, 0, 1)], "area second")])
    )
    assert "<circle" in lone.shapes and 'class="whisker second"' in lone.shapes
    places = drawn(Chart("t", "x", [ChartLine("a", [(1, 1.0), (1, 2.0)], "dots")], scattered=True))
    assert places.range is None and places.shapes.count('class="dot"') == 2
    long = drawn(Chart("t", "x", [ChartLine("a", [(float(x), 0.0) for x in range(2000)])]))
    assert long.shapes.count("L") == 666 and "<circle" not in long.shapes  # three in one


# --- Figures as files: whole, well-formed, and never without the word that they are simulated ---

Write = Callable[[ScriptedRun], RunStore]


@pytest.mark.parametrize("simulated", [True, False])
def test_every_figure_of_a_report_can_be_kept_and_says_whose_numbers_it_shows(
    write: Write, simulated: bool
) -> None:
    store = write(ScriptedRun(simulated=simulated))
    found = re.findall(
        r'href="data:([\w/+]+);base64,([^"]+)" download="([^"]+)"', render_report(store)
    )
    assert len(found) == 2 * 8 + 1  # and the test inputs
    for kind, data, name in found:
        text = base64.b64decode(data).decode()
        assert f"run {store.header.id}" in text, name
        assert ("simulated" in text) is simulated, name
        if kind == "image/svg+xml":
            root = ElementTree.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "var(" not in text and "url(" not in text
        else:
            rows = list(csv.reader(text.splitlines()))
            assert kind == "text/csv" and len(rows) > 1
            assert {len(row) for row in rows} == {len(rows[0])}


def rows_of(picture: Picture) -> list[list[str]]:
    text = csv_text(picture.columns, picture.rows, "run x")
    return list(csv.reader(text.splitlines()))


def test_the_numbers_are_those_of_the_chart_and_no_cell_is_a_formula() -> None:
    head, *rows = rows_of(drawn(CHART))
    assert head == ["series", "step", "value", "low", "high", "source"]
    assert ["mean", "2", "0.5", "", "", "run x"] in rows
    assert ["± 1 sd", "2", "", "0.3", "0.7", "run x"] in rows
    assert {row[0] for row in rows} == {"mean", "'=1+1", "± 1 sd"}
    assert rows_of(drawn(Chart("t", "x", [ChartLine("a", [(1, -1.5)])])))[1][2] == "-1.5"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "  ="])
def test_no_text_of_a_file_is_taken_for_a_formula(start: str) -> None:
    filed = csv_text(["a"], [[f"{start}1+1"], ["fine"]], "run x")
    _, formula, fine = csv.reader(filed.splitlines(keepends=True))
    assert formula[0].startswith("'") and fine == ["fine", "run x"]


def test_a_long_series_is_filed_by_evenly_chosen_points_and_says_so() -> None:
    """Else a run of thousands of steps is too large a file to be mailed."""
    points = [(float(x), x / 7500) for x in range(7500)]
    picture = drawn(Chart("t", "s", [ChartLine("all", points), ChartLine("few", points[:30])]))
    _, *rows = rows_of(picture)
    context = SimpleNamespace(simulated=False, deployed=None, setting={}.get, source="run x")
    shown = render(
        "report/templates/training.html.jinja",
        context=context, window=10, bits=1, sizes=None, reward=picture, validation=None, others={},
    )  # fmt: skip
    [filed] = re.findall('csv;base64,([^"]*)"', shown)
    assert base64.b64decode(filed).decode().strip().endswith(',"run x, one point in 4"')
    assert [float(r[1]) for r in rows if r[0] == "all"] == [float(x) for x in range(0, 7500, 4)]


def test_a_drawing_holds_no_markup_of_the_run() -> None:
    lines = [ChartLine(f"{HOSTILE}\uffff", [(1, 1.0), (2, 2.0)]), ChartLine(HOSTILE, [(1, 1.0)])]
    text = svg_text(drawn(Chart(HOSTILE, "x", lines)), HOSTILE)
    tags = {element.tag.partition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags <= {"svg", "style", "rect", "text", "line", "path", "circle", "title", "g"}
