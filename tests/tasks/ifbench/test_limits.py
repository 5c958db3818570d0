"""No response makes a check raise, and none makes it take long."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.score import IFBENCH, IFEVAL, check, grade
from tests.tasks.ifbench.fitting import fitting


def test_a_pattern_that_would_never_end_is_not_met_and_counted() -> None:
    ids = ["keywords:forbidden_words", "keywords:existence", "punctuation:no_comma"]
    kwargs: list[dict[str, object]] = [
        {"forbidden_words": ["(a|a)*c"]},
        {"keywords": ["sa+lt"]},
        {},
    ]
    begun = time.monotonic()
    found = grade("", ids, kwargs, "salt " + "a" * 60)
    assert time.monotonic() - begun < 10
    assert found.strict == found.loose == [False, True, True]
    assert found.timed_out == ("keywords:forbidden_words",)


AWKWARD = st.text(
    alphabet=st.one_of(
        st.sampled_from("aAb.!?'\"*-[](){}<>/,;: \n\r\t1_`😀水é\u200b\x00\x1c"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(response=AWKWARD)
def test_no_response_makes_a_check_raise(response: str, language: Language) -> None:
    for instruction_id in (*IFBENCH, *IFEVAL):
        kwargs = fitting(instruction_id)
        verdict = check(instruction_id, kwargs, "", response, language=language)
        assert isinstance(verdict, bool)


@settings(max_examples=40, deadline=None)
@given(response=AWKWARD)
def test_what_is_strictly_met_is_loosely_met(response: str, language: Language) -> None:
    ids = [*IFBENCH, *IFEVAL]
    found = grade("", ids, [fitting(name) for name in ids], response, language=language)
    assert all(loose for strict, loose in zip(found.strict, found.loose, strict=True) if strict)
    singly = [check(name, fitting(name), "", response, language=language) for name in ids]
    assert found.strict == singly


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(piece=st.text(alphabet="aA.!?'\"*-[]( <>,\n1😀水", min_size=1, max_size=6))
def test_no_check_takes_long_on_100_kb(piece: str, language: Language) -> None:
    response = (piece * (100_000 // len(piece) + 1))[:100_000]
    for instruction_id in (*IFBENCH, *IFEVAL):
        begun = time.monotonic()
        check(instruction_id, fitting(instruction_id), "", response, language=language)
        assert time.monotonic() - begun < 10, instruction_id


@pytest.mark.parametrize(
    ("instruction_id", "response"),
    [
        ("detectable_content:number_placeholders", "[" * 100_000),
        ("detectable_format:title", "<<" * 50_000),
        ("detectable_format:number_bullet_lists", "x" + "\n" * 100_000 + "x"),
        ("detectable_format:json_format", "[" * 100_000),
        ("format:line_indent", "a\n" + "\n" * 100_000),
        ("custom:mcq_count_length", "Question 1" + "\n" * 100_000 + "x"),
        ("custom:csv_special_character", 'ProductID,Category,Brand,Price,Stock\n"' + "a" * 200_000),
    ],
)
def test_texts_that_defeat_naive_expressions(instruction_id: str, response: str) -> None:
    begun = time.monotonic()
    check(instruction_id, fitting(instruction_id), "", response)
    assert time.monotonic() - begun < 5
