"""What a model wrote is read as what it can only mean; what means nothing costs no other field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from promptcodebook.lm.structured import (
    Indices,
    LenientNumber,
    LenientText,
    LenientTexts,
    ReplyShape,
    bounded,
    read_by_name,
)
from promptcodebook.lm.wire import schema_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


class Whole(ReplyShape):
    """Not for the model's eyes."""

    picks: Indices = Field(default_factory=list)
    text: LenientText = bounded(20)
    texts: LenientTexts = Field(default_factory=list)


class Scored(ReplyShape):
    score: LenientNumber


def read(**fields: object) -> Whole:
    return Whole.model_validate_json(json.dumps(fields))


@given(JSON)
def test_no_value_of_one_field_makes_the_reply_unreadable(value: object):
    reply = read(picks=value, text=value, texts=value)
    assert all(isinstance(k, int) for k in reply.picks)
    assert reply.text == reply.text.strip() and all(reply.texts)
    assert all(text for text in read_by_name(value).values())


@given(st.lists(st.integers(-99, 99), max_size=20))
def test_plain_indices_are_read_as_they_are(indices: list[int]):
    assert read(picks=indices).picks == indices


@pytest.mark.parametrize(
    ("written", "picks"),
    [
        (["3", "[5]", "c7", "Instinct 2", 1.0], [3, 5, 7, 2, 1]),
        (["3: Count words", {"index": 4}, {"id": "5", "why": "x"}], [3, 4, 5]),
        ("3, 5 and 7", [3, 5, 7]),
        ({"3": "why", "5": "why"}, [3, 5]),
        (4, [4]),
        ([None, True, 1.5, "none", "1.5", [], 10**400], []),
        ("-1", [-1]),
        (None, []),
    ],
)
def test_indices_are_read_however_they_are_written(written: object, picks: list[int]):
    assert read(picks=written).picks == picks


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (None, ""), ("  ", ""), ("None.", ""), ("n/a", ""), ("no errors", ""), (False, ""),
        ([], ""),
        ("No issues found.", ""), ("None of the words fit.", "None of the words fit."),
        ("no", ""), ("Say no.", "Say no."), (0.5, "0.5"), (["a", None, "b"], "a b"),
        ({"format": "wrong", "tone": ""}, "format: wrong"), (10**400, ""), ("x" * 5000, "x" * 4000),
    ],
)  # fmt: skip
def test_texts_are_read_however_they_are_written(written: object, text: str):
    assert read(text=written).text == text


def test_a_list_of_texts_may_be_one():
    assert read(texts="be brief").texts == ["be brief"]
    assert read(texts=["a", None, "", 3]).texts == ["a", "3"]


def test_a_deep_or_wide_value_is_cut():
    deep: object = "x"
    for _ in range(150):
        deep = [deep]
    assert read(text=deep).text == ""
    assert len(read(texts=["a"] * 5000).texts) == 1024


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (0.7, 0.7), ("0.7", 0.7), (" .7 ", 0.7), ("0,7", 0.7), ("7/10", 0.7), ("7 / 10", 0.7),
        ("7 out of 10", 0.7), ("70%", 0.7), ("70 %", 0.7), (7, 7.0), ("-1", -1.0), (True, None),
        ("high", None), ("", None), (None, None), ("1/0", None), ("1 2", None), (10**400, None),
        ("0.7 or 0.8", None), ("1,234,5", None), ([0.7], None),
    ],
)  # fmt: skip
def test_a_number_is_read_where_it_is_unambiguous(written: object, number: float | None):
    text = json.dumps({"score": written})
    if number is None:
        with pytest.raises(ValidationError):
            Scored.model_validate_json(text)
    else:
        assert Scored.model_validate_json(text).score == pytest.approx(number)


def test_the_schema_is_as_narrow_as_the_reading_is_wide():
    properties = schema_of(Whole).body["properties"]
    assert properties == {
        "picks": {"items": {"type": "integer"}, "type": "array"},
        "text": {"default": "", "maxLength": 20, "type": "string"},
        "texts": {"items": {"type": "string"}, "type": "array"},
    }
