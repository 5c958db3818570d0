from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.report.html import Html, el, together
from promptcodebook.text import printable
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
