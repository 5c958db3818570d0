from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.text import (
    answer_words,
    fold_text,
    printable,
    quote,
    shorten,
    strip_fence,
    strip_wrapping,
    word_changes,
    words_of,
)


def test_texts_compare_without_case_space_accents_articles_and_punctuation() -> None:
    assert words_of("Don't stop_here, Zoë!") == ["don", "t", "stop", "here", "zoë"]
    assert answer_words("The U.S. of A!") == "us of"
    assert answer_words("a  café", nfd=False) == "café"
    assert answer_words("a  café") == "cafe\u0301"
    assert fold_text(" The  CAFE\u0301\n") == fold_text("the café") == "the café"
    assert fold_text("Straße") == fold_text("STRASSE")


def test_texts_are_cut_stripped_of_a_fence_and_of_what_would_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x9bc\r\nd\te") == "a [2Jb c \nd\te" and printable("\ud800") == "?"
    assert strip_fence(' ```json\n{"a": 1}\n```\n') == '{"a": 1}' and strip_fence("```\n```") == ""
    assert strip_fence("see:\n```\ncode\n```") == "see:\n```\ncode\n```"
    assert quote("  short ") == "'short'"
    assert quote("one two three", 8) == "'one two …'"
    assert shorten("short", 5) == "short"
    assert shorten("abcdefghij", 4) == "ab\n[... 6 characters left out ...]\nij"


BARE = 'Count the words, and say "done" at the end.'


@pytest.mark.parametrize("wrapped", [
    f"Here is the revised instinct:\n\n{BARE}",
    f"Sure! Here is your improved, concise directive for this task:\n{BARE}",
    f"**Revised instinct:** {BARE}", f"**System Prompt**\n\n{BARE}", f"**Prompt**: {BARE}",
    f"## Revised rubric\n{BARE}", f"Revised instinct: {BARE}", f"System prompt:\n{BARE}",
    f"```\n{BARE}\n```", f"“{BARE}”", f"**{BARE}**",
    f"Here is the composed prompt:\n\n```\n{BARE}\n```\n\nLet me know if it needs changes!",
    f"Here is the new instinct:\n\n**Instinct:** “{BARE}”\n\nI hope this helps.", f"  {BARE}\n",
])  # fmt: skip
def test_what_a_model_puts_around_the_text_it_was_asked_for_is_taken_off(wrapped: str) -> None:
    assert strip_wrapping(wrapped) == BARE


@pytest.mark.parametrize("text", [
    BARE, "Here is a question: answer it in one word.", "This is important: never guess.",
    '"Yes" and "no" are the only answers.', "'Yes' isn't an answer, nor is 'no'.",
    "**Count** the words, then **stop**", "Here is what matters. Count the words: all of them.",
    "Answer inside a fence:\n```\nx = 1\n```", "```\na\n```\nthen\n```\nb\n```",
    "Instructions: read twice, answer once.", "New information: use it. Old text: leave it.",
    "End with the words: let me know if you disagree.", "Revised instinct:",
])  # fmt: skip
def test_ordinary_prose_keeps_every_character(text: str) -> None:
    assert strip_wrapping(text) == text


CHATTY = st.lists(
    st.sampled_from(
        [
            *("Here is the revised instinct:", "**Prompt:**", "Sure! ", "```", "```text\n", "\n"),
            *('"', "'", "**", "`", "“", "”", "\n\nLet me know if", "## Prompt\n", "Prompt: ", " "),
            *("Count words.", "it's", ":", "x"),
        ]
    ),
    max_size=12,
).map("".join)


@given(CHATTY | st.text(max_size=60))
def test_unwrapping_twice_takes_no_more_off_and_never_everything(text: str) -> None:
    bare = strip_wrapping(text)
    assert strip_wrapping(bare) == bare
    assert bool(bare) == bool(text.strip())
    assert bare in text


@given(st.text(alphabet="abcdefgh ,.\n", min_size=1, max_size=80))
def test_plain_words_are_left_as_they_are(text: str) -> None:
    assert strip_wrapping(text) == text.strip()


@given(st.text(max_size=80), st.text(max_size=80))
def test_what_is_same_or_added_is_the_new_text(before: str, after: str) -> None:
    pieces = list(word_changes(before, after))
    assert all(text for _, text in pieces)
    assert "".join(text for kind, text in pieces if kind != "removed") == after
    changes = word_changes("Answer in one short word.", "Answer in two words.")
    told = [("removed", "one short word"), ("added", "two words")]
    assert list(changes) == [("same", "Answer in "), *told, ("same", ".")]
    before, after = "word " * 700, "word " * 699 + "end"
    assert list(word_changes(before, after)) == [("removed", before), ("added", after)]
