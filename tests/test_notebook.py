"""What a notebook shows of a run, a codebook and an explanation: all of it escaped, and little."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.intervals import Interval
from promptcodebook.base.text import shown_table, shown_text
from promptcodebook.calls import Usage
from promptcodebook.estimation.estimate import Estimate, Range, Share
from promptcodebook.policy.policy import Explanation, Response
from promptcodebook.run.evaluation import Assessment, Comparison, Side
from promptcodebook.run.verdict import Conclusion, VerdictRow
from promptcodebook.types import Codebook, Evaluation, Instinct, Route
from tests.build.optimize import train

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"' & \x1b[2J \u202eevil"
ELEMENTS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "b", "pre"}
ELEMENTS |= {"details", "summary"}


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements = set[str]()
        self.attributes = set[str]()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(html: str) -> _Seen:
    """What a browser makes of it: harmless elements, and no attribute but our own style."""
    parser = _Seen()
    parser.feed(html)
    parser.close()
    assert parser.elements <= ELEMENTS
    assert parser.attributes <= {"style"}
    return parser


@given(st.text(), st.text())
def test_no_text_becomes_markup(one: str, two: str) -> None:
    table = seen(shown_table(one, (two,), [(one, two), (None, 3)]))
    text = seen(shown_text(one, two))
    assert table.elements <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert text.elements == {"p", "b", "pre"}


def test_long_texts_and_tables_are_cut() -> None:
    html = shown_table("many", ("text",), [("x" * 10**6,)] * 1000)
    assert len(html) < 10**6
    assert seen(html).text.endswith("and 900 more")


def test_a_codebook_is_a_table_of_its_instincts() -> None:
    html = Codebook((Instinct("Count <b>words</b>."), Instinct(HOSTILE, frozen=True)))._repr_html_()
    text = seen(html).text
    assert "2 instincts" in text and "Count <b>words</b>." in text and "frozen" in text


def test_an_explanation_shows_input_route_reasons_and_prompt() -> None:
    route = Route((0, 3), fallback=True, analysis=HOSTILE)
    html = Explanation(HOSTILE, route, ((0, "one"), (3, HOSTILE)), "be brief")._repr_html_()
    text = seen(html).text
    assert "route: 0, 3 (by fallback)" in text and "be brief" in text


def test_a_verdict_is_its_headline_and_folded_below_its_rows_with_the_one_to_deploy() -> None:
    gain = Interval(0.25, 0.125, 0.5, 30)
    row = VerdictRow("concat", gain, gain, 0.25, 0, 0, Usage(), 1.0)
    html = Conclusion((row,), HOSTILE, True, "concat")._repr_html_()
    shown, (first, _) = seen(html), html.split("<details>")
    assert "Deploy: concat" in first and "<table" not in first
    cells = re.findall("<(?:pre|t[dh])[ >][^>]*", html)
    assert cells and all("word-break: normal; overflow-wrap: normal" in cell for cell in cells)
    assert "test split, n = 30" in shown.text and "+0.125 to +0.500" in shown.text
    assert "deploy" in shown.text and "<script>alert(1)" in shown.text
    assert seen(Conclusion((), HOSTILE, None)._repr_html_()).elements == {"div", "p", "b", "pre"}


def test_what_evaluations_and_estimates_show_is_escaped() -> None:
    row = VerdictRow(HOSTILE, Interval(0.5, 0.25, 0.75, 2), None, 0.5, 0, 0, Usage(), 1.0)
    side = Side(HOSTILE, {"a": 0.5, "b": 0.5}, HOSTILE, True, (0.0, 1.0))
    share = Share("total", HOSTILE, Range(1, 2, 3), Range(), Range(), None)
    for value in (
        Assessment(HOSTILE, Evaluation(HOSTILE, HOSTILE, ()), row, {}, True),
        Comparison.of(side, side),
        Estimate((), share, 1, True, (HOSTILE,)),
        Response(HOSTILE, HOSTILE, Route((0,))),
    ):
        assert "<script>alert(1)</script>" in seen(value._repr_html_()).text, value


@pytest.mark.parametrize("budget", [None, "40calls"])
def test_a_run_shows_its_verdict_and_its_rows(tmp_path: Path, budget: str | None) -> None:
    run = train(tmp_path, budget=budget, name_it="tickets")
    text = seen(run._repr_html_()).text
    assert f"run {run.id} (tickets)simulated model, {run.ended}, best" in text
    assert run.verdict and run.verdict in text
    assert ("concat" in text) is bool(run.rows)


def test_a_hostile_text_is_shown_as_the_text_it_is_and_steers_nothing() -> None:
    marks = "\x1b\u061c\u200e\u200f\u2028\u2029\u202e\u2066"
    shown = seen(shown_text("title", f"{HOSTILE}{marks}"))
    assert "<script>alert(1)</script>" in shown.text and not set(marks) & set(shown.text)
    shown_text("a lone surrogate", "\ud800").encode("utf-8")
