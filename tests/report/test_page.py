"""The page of runs written by hand, each of its pieces, and what private data leaves out."""

import base64
import csv
import dataclasses
import hashlib
import re
import tracemalloc
import types
import typing
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from promptcodebook.base.text import printable
from promptcodebook.errors import StoreError
from promptcodebook.report.page import render_report, write_report
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
from promptcodebook.report.private import withhold, withhold_ending
from promptcodebook.store import events
from promptcodebook.store.events import Concluded, Ended, Started
from promptcodebook.store.run import RunStore
from promptcodebook.types import (
    Codebook,
    Example,
    Instinct,
    Parameters,
    RefusedReply,
    Rewrite,
    Step,
)
from tests.build.scripted_run import HOSTILE, ScriptedRun, events_of
from tests.build.strict import read_page

Write = Callable[..., RunStore]


def test_a_page_full_of_hostile_texts_is_well_formed_and_inert(write: Write) -> None:
    names = [f"train-{i}-{j}" for i in range(30) for j in range(6)]
    source = render_report(write(ScriptedRun()), {n: Example(n, f"do {HOSTILE}") for n in names})
    page = read_page(source)
    assert page.faults == []
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", source) is None
    inside = [link for link in page.links if link.startswith("#")]
    assert {link[1:] for link in inside} <= set(page.ids)
    assert all(link.startswith("data:") for link in page.links if link not in inside)
    assert len(page.ids) == len(set(page.ids))
    shown = HOSTILE.replace("\x00\x07 \ud800", "  ?")
    for prefix in ("Some answer", "Be brief.", "missed a constraint", "The answer ignores", "do"):
        assert any(f"{prefix} {shown}" in text or shown in text for text in page.texts), prefix


def test_the_policy_allows_the_one_style_sheet_the_one_script_and_no_connection(
    write: Write,
) -> None:
    source = render_report(write(ScriptedRun(steps=2)))
    policy = next(m["content"] for m in read_page(source).metas if "http-equiv" in m)
    style = re.search(r"<style>(.*?)</style>", source, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    (script,) = read_page(source).scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'; " in policy and "unsafe" not in policy
    assert "url(" not in style[1] and "@import" not in style[1]


SERVED = "http://localhost:9000/v1#"
_HUSH = {"Authorization": "Bearer hush"}
ROLES_WITH_HEADERS = {
    "critic": {"model": f"{SERVED}m", "headers": _HUSH},
    "updater": {"headers": None},  # no command would accept it
}


@pytest.mark.parametrize(("config", "simulated", "model"), [
    ({"lm": "simulated"}, True, "simulated"),
    ({"lm": f"{SERVED}simulated?load=0.2"}, True, "simulated"),
    ({"lm": f"{SERVED}m", "roles": {"judge": {"model": "simulated"}}}, True, f"{SERVED}m"),
    ({"lm": f"{SERVED}not-simulated"}, False, f"{SERVED}not-simulated"),
    ({"lm": "http://user:hush@a/v1#m", "roles": ROLES_WITH_HEADERS}, False, "http://a/v1#m"),
    ({"lm": "own", "roles": {}}, False, "your own model"),
])  # fmt: skip
def test_figures_are_marked_where_any_model_is_simulated_and_no_secret_is_shown(
    write: Write, config: dict[str, Any], simulated: bool, model: str
) -> None:
    source = render_report(write(ScriptedRun(steps=2, simulated=False, config=config)))
    page = read_page(source)
    assert page.faults == [] and "hush" not in source and model in page.text
    assert len(page.captions) > 12
    assert {caption.startswith("simulated") for caption in page.captions} == {simulated}
    assert ("comes from a simulated model" in page.text) is simulated


def test_the_rows_of_a_verdict_may_have_any_names(write: Write) -> None:
    rows = (
        ("nothing", "no prompt at all", 0.3),
        (f"rival {HOSTILE}", "the rival", 0.5),
        ("an-optimizer-of-somebody-else", f"its result {HOSTILE}", 0.7),
    )
    source = render_report(write(ScriptedRun(steps=2, rows=rows, hostile="")))
    page = read_page(source)
    assert page.faults == []
    strong = [unescape(name) for name in re.findall(r"<strong>(.*?)</strong>", source)]
    assert strong == [printable(name) for name, _, _ in rows]
    assert {printable(title) for _, title, _ in rows} <= set(page.texts)
    dots = re.findall(r'<circle class="(\w+)" cx="([\d.]+)" cy="[\d.]+" r="5.5"/>', source)
    assert dots == [("soft", "268.2"), ("soft", "311.0"), ("main", "353.8")]  # right of the names
    places = re.findall(r'<text class="value" x="(\d+)" y="([\d.]+)">([\d.]+)</text>', source)
    of_480_pixels = [("438", "30.0", "0.300"), ("438", "60.0", "0.500"), ("438", "90.0", "0.700")]
    assert places == of_480_pixels


def test_a_verdict_of_version_0_1_has_rows_without_titles(write: Write) -> None:
    (rows,) = (e.rows for e in events_of(ScriptedRun(steps=1)) if isinstance(e, Concluded))
    old = [{key: value for key, value in row.items() if key != "title"} for row in rows]
    assert old != list(rows)
    store = write()
    store.append(Concluded("Worth deploying.", True, tuple(old)))
    page = read_page(render_report(store))
    assert page.faults == [] and "learned" in page.texts


def test_a_run_that_is_not_at_its_end_has_a_page(write: Write) -> None:
    page = read_page(render_report(write(ScriptedRun(steps=4, verdict=False))))
    assert page.faults == [] and "This run has no verdict yet" in page.text
    never_began = write()
    page = read_page(render_report(never_began))
    assert page.faults == [] and "What was learned" not in page.text
    parameters = Parameters("e", "g", Codebook((Instinct("Only one."),)), "c")
    never_began.append(Started(parameters, "expert"))
    never_began.append(Ended("failed", "EndpointDown: nothing <answers>"))
    page = read_page(render_report(never_began))
    assert page.faults == [] and "Only one." in page.text and "nothing <answers>" in page.text


def test_write_report_replaces_the_file_as_a_whole(write: Write, tmp_path: Path) -> None:
    store, target = write(ScriptedRun(steps=2)), tmp_path / "report.html"
    target.write_text("old")
    write_report(store, target)
    assert target.read_text("utf-8").startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    with pytest.raises(StoreError, match="nowhere"):
        write_report(store, tmp_path / "nowhere" / "report.html")


@pytest.mark.slow
def test_a_long_run_stays_small_on_disk_and_in_memory(write: Write) -> None:
    store = write(ScriptedRun(steps=1000, size=32, batch=15))
    tracemalloc.start()
    try:
        source = render_report(store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.encode()) < 3_200_000  # 67 kB of it are the script of its curves
    assert peak < 60_000_000
    assert read_page(source).faults == []


# Pages escape every value, charts are drawn from their description, and figures can be kept.

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
    assert "<figure" not in shown


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


@pytest.mark.parametrize("simulated", [True, False])
def test_every_figure_of_a_report_can_be_kept_and_says_whose_numbers_it_shows(
    write: Write, simulated: bool
) -> None:
    store = write(ScriptedRun(simulated=simulated))
    found = re.findall(
        r'href="data:([\w/+]+);base64,([^"]+)" download="([^"]+)"', render_report(store)
    )
    assert len(found) == 2 * 7 + 1  # and the test inputs
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


# The report of a run on private data: no text of a person, only its length.

NAME = "Ottokar Quillfeather"
RUN = ScriptedRun(steps=20, hostile=NAME, private=True)


def stepped() -> Step:
    return next(event.step for event in events_of(RUN) if isinstance(event, events.Stepped))


def test_figures_and_the_texts_of_kept_rewrites_stay() -> None:
    before, after = stepped(), withhold(stepped())
    assert NAME in repr(before.traces) and NAME not in repr(after.traces)
    for one, other in zip(before.traces, after.traces, strict=True):
        assert (other.rollout.reward, other.unit) == (one.rollout.reward, one.unit)
    for one, other in zip(before.rewrites, after.rewrites, strict=True):
        assert other.after == (one.after if one.kept else "(private: 22 characters)")
    rewrite = Rewrite(0, "a", "b", "g", kept=True, earlier=RefusedReply(NAME, f"a leak: {NAME}"))
    shown = withhold(rewrite)
    assert shown.after == "b"
    assert shown.earlier == RefusedReply("(private: 20 characters)", "a leak")


def test_prompts_of_another_optimizer_are_withheld() -> None:
    """It was shown the examples, and may quote them."""
    concluded = events.Concluded(
        "so", None, candidates=(events.PromptCandidate(f"As {NAME} said.", 0.5, 8, 8, True),)
    )
    [shown] = withhold_ending(events.RunState(conclusion=concluded), "r").conclusion.candidates  # type: ignore[union-attr]
    assert NAME not in repr(withhold(concluded)) + repr(shown)
    assert (shown.score, shown.kept) == (0.5, True)


def test_the_page_shows_lengths_in_the_place_of_texts(write: Write) -> None:
    store = write(replace(RUN, hostile="private person"))
    known = {n: Example(n, NAME, NAME) for n in ("test-5", *(f"train-{i}-0" for i in range(20)))}
    page = read_page(render_report(store, known))
    assert page.faults == []
    assert NAME not in page.text
    for text in ("Some answer", "missed a constraint", "The answer ignores", "too vague private"):
        assert text not in page.text
    assert "(private: 26 characters)" in page.texts and "The answers are left out" in page.text


def test_a_failed_run_says_how_it_goes_on_and_not_what_the_error_said() -> None:
    failed = events.RunState(ended="failed", detail="ServerFault: Ottokar", hint="ask Ottokar")
    shown = withhold_ending(failed, "20260131-154502-x")
    assert shown.hint == "pco train --resume 20260131-154502-x"
    assert "Ottokar" not in repr(shown)


# --- Every text of an event is withheld, or named here as one that may be shown ---


WITHHELD_NAME = 'said: "Ottokar Quillfeather"'
# Fields of events that a report shows word for word.
SHOWN = {
    *("name", "split", "example_id", "stage", "kind", "hint"),  # the name of a row, of a stage
    "groups",  # ids of examples, or digests of what the data's column holds
    # Texts that are shared anyway: each rewrite of them was checked.
    *("text", "encoder", "generator", "critic", "before"),
    *("harmful by", "notes by"),  # the names of variables, and of fields of the critic's reply
}


def filled(kind: Any) -> Any:
    """A value of this type whose every text is the name."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is str or kind is object or kind is Any:
        return WITHHELD_NAME
    if origin is Literal:
        return inside[0]
    if origin in (typing.Union, types.UnionType):
        return filled(next(each for each in inside if each is not type(None)))
    if origin is tuple:
        return (filled(inside[0]),)
    if origin is not None and issubclass(origin, Mapping):
        return {filled(inside[0]): filled(inside[1])}
    if kind is bool:
        return False
    if kind in (int, float):
        return kind(3)
    assert dataclasses.is_dataclass(kind), kind
    hints = typing.get_type_hints(kind)
    return kind(**{f.name: filled(hints[f.name]) for f in dataclasses.fields(kind) if f.init})  # type: ignore[operator]


def quoting(value: Any, field: str = "") -> Iterator[str]:
    """The fields in whose texts the name stands."""
    if isinstance(value, str):
        if "Quillfeather" in value:
            yield field
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from quoting(getattr(value, each.name), each.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*quoting(key, f"{field} by"), *quoting(inner, field))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from quoting(inner, field)


@pytest.mark.parametrize("kind", [events.Stepped, events.Broke, events.Validated, events.Compared])
def test_no_text_of_an_event_is_shown_that_is_not_known_to_be_harmless(kind: Any) -> None:
    event = filled(kind)
    assert set(quoting(event)) > {"output", "message", "traceback", "feedback"}
    assert set(quoting(withhold(event))) <= SHOWN


def test_what_may_be_shown_are_the_texts_of_the_policy_alone() -> None:
    """The names above are those of gradients too: these are withheld all the same."""
    for trace in withhold(filled(Step)).traces:
        allowed = {"name", "example_id", "stage", "kind", "hint", "harmful by", "notes by"}
        assert set(quoting(trace)) <= allowed


# --- What a run has on record of one example, and what it withholds of private data ---
