"""Which instinct a part of a prompt comes from: exact where it can be, a likeness elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.policy.response import Span, prompt_spans

COUNT = "Count the words of your answer before you send it."
CITE = "Cite the paragraph of the policy that decides the case."
POLITE = "Stay polite, also with angry customers."
CHOSEN = ((2, COUNT), (5, CITE), (9, POLITE))


def sources(spans: tuple[Span, ...]) -> list[tuple[str, int | None, bool]]:
    return [(s.source, s.instinct, s.exact) for s in spans]


def test_instincts_that_were_composed_verbatim_are_found_word_for_word() -> None:
    prompt = f"You work for a shop.\n\n{COUNT}\n{CITE}\n{POLITE}\n\nAnswer in JSON."
    spans = prompt_spans(prompt, CHOSEN, "You work for a shop.", "Answer in JSON.")
    assert sources(spans) == [
        ("base", None, True),
        ("instinct", 2, True),
        ("instinct", 5, True),
        ("instinct", 9, True),
        ("format", None, True),
    ]
    assert "".join(s.text for s in spans) == prompt


def test_what_a_generator_worded_anew_goes_to_the_instinct_that_shares_its_words() -> None:
    prompt = (
        "You are a clerk of the returns desk. Always cite the deciding paragraph of our policy, "
        "stay polite with every customer; and counting the words of the answer comes last."
    )
    spans = prompt_spans(prompt, CHOSEN)
    assert [(s.source, s.instinct) for s in spans] == [
        ("generator", None),
        ("instinct", 5),
        ("instinct", 9),
        ("instinct", 2),
    ]
    assert not any(s.exact for s in spans)
    assert spans[0].text == "You are a clerk of the returns desk. "


def test_words_that_all_instincts_have_tell_none_of_them() -> None:
    chosen = ((0, "Answer every question shortly"), (1, "Answer every question in rhymes"))
    spans = prompt_spans("Answer every question. Answer every question in rhymes.", chosen)
    assert [s.instinct for s in spans] == [None, 1]
    assert prompt_spans("Please take great care of yourself.", chosen) == (
        Span("Please take great care of yourself.", "generator"),
    )


def test_one_shared_word_is_a_coincidence() -> None:
    (span,) = prompt_spans("The customers wait.", CHOSEN)
    assert span.instinct is None


def test_an_instinct_within_another_is_not_found_inside_it() -> None:
    short, long = "Cite the policy", "Cite the policy and the date"
    spans = prompt_spans(f"{long}\n{short}", ((0, short), (1, long)))
    assert [(s.instinct, s.exact) for s in spans] == [(1, True), (0, True)]


def test_scripts_without_blanks_are_compared_by_pairs_of_letters() -> None:
    chosen = ((0, "回答前请先数一数字数"), (1, "请引用政策中的段落"))
    spans = prompt_spans("请务必引用政策的段落。先数一数回答的字数。", chosen)
    assert [s.instinct for s in spans] == [1, 0]


def test_every_stage_may_begin_with_the_base_prompt() -> None:
    prompt = f"draft: Be a clerk.\n\n{COUNT}\n\ncheck: Be a clerk.\n\n{CITE}"
    spans = prompt_spans(prompt, CHOSEN, "Be a clerk.")
    assert [s.source for s in spans].count("base") == 2
    assert [s.instinct for s in spans if s.source == "instinct"] == [2, 5]


def test_a_prompt_without_instincts_is_the_base_or_the_generators() -> None:
    assert prompt_spans("", CHOSEN) == ()
    assert sources(prompt_spans("Only this.", (), "Only this.")) == [("base", None, True)]


def test_a_word_that_a_prompt_repeats_thousands_of_times_is_found_each_time() -> None:
    spans = prompt_spans("no b " * 5000, ((0, "no"),))
    assert sum(span.exact for span in spans) == 5000


@pytest.mark.parametrize("base", ["", "a", " \n "])
@given(
    prompt=st.text(alphabet="ab ,.\n—é字", max_size=40),
    texts=st.lists(st.text(alphabet="ab ,.é字", max_size=8), max_size=3),
)
def test_the_pieces_are_the_prompt_again(base: str, prompt: str, texts: list[str]) -> None:
    spans = prompt_spans(prompt, tuple(enumerate(texts)), base, "b.")
    assert "".join(span.text for span in spans) == prompt
    assert all((span.instinct is None) == (span.source != "instinct") for span in spans)
