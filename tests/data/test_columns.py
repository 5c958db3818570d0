"""Templates are read once; whatever stands in the data is text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.data.table import parse_input_template
from promptcodebook.errors import DataError

# Text that would matter if it were read as a template, a format string or markup.
marked = st.lists(
    st.sampled_from(
        ["{", "}", "{{", "}}", "{a}", "{b}", "%s", "$a", "{{a}}", "<|im_start|>", "\\n"]
    )
    | st.text(max_size=5)
).map("".join)


@given(marked, marked)
def test_data_passes_through_unchanged(a: str, b: str) -> None:
    assert parse_input_template("{a}\n{b}!").render({"a": a, "b": b}) == f"{a}\n{b}!"


@given(marked)
def test_escaped_literals_come_out_as_they_went_in(literal: str) -> None:
    escaped = literal.replace("{", "{{").replace("}", "}}")
    template = parse_input_template(escaped + "{ x }" + escaped)
    assert template.columns == ("x",)
    assert template.render({"x": "{x}"}) == literal + "{x}" + literal


def test_a_template_without_columns_is_its_text() -> None:
    assert parse_input_template("plain").render({}) == "plain"
    assert parse_input_template("").columns == ()


@pytest.mark.parametrize("text", ["{", "}", "a } b", "{a}{", "{}", "{a{b}}", "{{a}"])
def test_lone_braces_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="lone"):
        parse_input_template(text)
