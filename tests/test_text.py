from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.text import (
    answer_words,
    fold_text,
    printable,
    quote,
    shorten,
    strip_fence,
    word_changes,
    words_of,
)


def test_words_are_lower_case_without_punctuation() -> None:
    assert words_of("Don't stop_here, Zoë!") == ["don", "t", "stop", "here", "zoë"]


def test_inputs_compare_equal_whatever_their_case_space_and_accents_are_made_of() -> None:
    assert fold_text(" The  CAFE\u0301\n") == fold_text("the café") == "the café"
    assert fold_text("Straße") == fold_text("STRASSE")


def test_answers_compare_without_articles_and_punctuation() -> None:
    assert answer_words("The U.S. of A!") == "us of"
    assert answer_words("a  café", nfd=False) == "café"
    assert answer_words("a  café") == "cafe\u0301"


def test_control_characters_never_reach_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x9bc\r\nd\te") == "a [2Jb c \nd\te"
    assert printable("\ud800") == "?"


def test_long_texts_are_cut_at_the_end_in_quotes_and_in_the_middle_elsewhere() -> None:
    assert quote("  short ") == "'short'"
    assert quote("one two three", 8) == "'one two …'"
    assert shorten("short", 5) == "short"
    assert shorten("abcdefghij", 4) == "ab\n[... 6 characters left out ...]\nij"


def test_one_fence_around_the_whole_is_taken_off() -> None:
    assert strip_fence(' ```json\n{"a": 1}\n```\n') == '{"a": 1}'
    assert strip_fence("```\n```") == ""
    assert strip_fence("see:\n```\ncode\n```") == "see:\n```\ncode\n```"


def test_the_changes_between_two_texts_are_told_word_by_word() -> None:
    changes = list(word_changes("Answer in one short word.", "Answer in two words."))
    assert changes == [
        ("same", "Answer in "),
        ("removed", "one short word"),
        ("added", "two words"),
        ("same", "."),
    ]


def test_texts_too_long_to_compare_are_given_whole() -> None:
    before, after = "word " * 700, "word " * 699 + "end"
    assert list(word_changes(before, after)) == [("removed", before), ("added", after)]


@given(st.text(max_size=80), st.text(max_size=80))
def test_what_is_same_or_added_is_the_new_text(before: str, after: str) -> None:
    pieces = list(word_changes(before, after))
    assert "".join(text for kind, text in pieces if kind != "removed") == after
