"""What a rewrite must pass (decision 11)."""

from __future__ import annotations

import pytest

from promptcodebook.config import Update
from promptcodebook.method.update import AllChecks, LengthCheck, NearCopyCheck, NoLeakCheck
from promptcodebook.text import words_of
from promptcodebook.types import Example

TRAIN = [
    Example("a", "The quick brown fox jumps over the lazy dog, twice.", "Paris"),
    Example("b", "Short input.", "The Treaty of Westphalia"),
    Example("c", "Another.", "hypothalamus"),
    Example("d", "No reference at all here.", None),
    Example("e", "One more.", "by the sea"),
    Example("f", "And one.", "low tides"),
]


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_rewrite_is_refused(text: str):
    assert LengthCheck(Update())(0, text, "x", []) == "the rewrite is empty"


@pytest.mark.parametrize(
    ("variable", "cap"), [(0, 25), (15, 25), ("encoder", 300), ("critic", 300)]
)
def test_the_cap_is_in_words(variable: str, cap: int):
    """Decision 11: an instinct has 25 words (decision 24); θ, φ and ψ have a cap of their own."""
    check = LengthCheck(Update())
    assert check(variable, "word " * cap, "x", []) is None
    assert (
        check(variable, "word " * (cap + 1), "x", []) == f"{cap + 1} words, over the cap of {cap}"
    )


def test_what_is_no_text_is_refused_by_its_characters():
    check = LengthCheck(Update(instinct_words=10))
    assert check(0, "a." * 100, "x", []) is None
    assert check(0, "a." * 101, "x", []) == "202 characters, over the cap of 200"


def test_a_near_copy_of_another_entry_is_refused():
    others = ["Always count the words of your answer before sending it off", "Be kind"]
    check = NearCopyCheck()
    assert check(0, others[0].upper() + "!", "x", others) == "a near-copy of another instinct"
    one_off = others[0].replace("sending", "posting")
    assert check(0, one_off, "x", others) == "a near-copy of another instinct"
    assert check(0, "Count the letters of every line instead", "x", others) is None
    assert check(0, others[0], "x", []) is None


def test_nine_words_of_ten_in_common_are_a_near_copy_and_eight_are_not():
    ten = "one two three four five six seven eight nine ten"
    check = NearCopyCheck()
    assert check(0, ten.replace("four", "4th"), "x", [ten]) == "a near-copy of another instinct"
    assert check(0, ten.replace("four", "4th").replace("six", "6th"), "x", [ten]) is None


def test_a_long_text_of_few_words_is_compared_whole():
    """Words that are frequent in a long text are no noise there."""
    long = " ".join(f"word{i % 10}" for i in range(250))
    found = NearCopyCheck()(0, f"Mind {long}", "x", [f"Heed {long}"])
    assert found == "a near-copy of another instinct"


def test_eight_words_in_a_row_of_a_training_input_are_a_leak():
    check = NoLeakCheck(TRAIN)
    leak = "When you see: 'QUICK brown fox; jumps over the lazy - dog' be careful"
    assert check(0, leak, "x", []) == "it copies eight words in a row from a training input"
    assert check(0, "quick brown fox jumps over the lazy", "x", []) is None  # seven
    assert check(0, "A fox jumps over the lazy dog, twice.", "x", []) is None  # the last seven
    assert check("critic", leak, "x", []) is not None


def test_a_whole_training_answer_is_a_leak():
    """From three words or twelve characters on; 'Paris' turns up by chance."""
    check = NoLeakCheck(TRAIN)
    said = "it gives away the answer of a training example:"
    assert check(0, "Say the treaty of Westphalia!", "x", []) == f"{said} b"
    assert check(0, "It is the Hypothalamus.", "x", []) == f"{said} c"
    assert check(0, "It lies by the sea.", "x", []) == f"{said} e"
    assert check(0, "Mind low tides.", "x", []) is None
    assert check(0, "It is Paris, or hypothalamuses, or a treaty.", "x", []) is None


def test_what_the_text_held_before_is_not_held_against_it():
    check = NoLeakCheck(TRAIN)
    before = "the quick brown fox jumps over the lazy dog; the treaty of westphalia"
    assert check(0, before + " and more", before, []) is None
    assert check(0, before + " hypothalamus", before, []) is not None


def test_words_are_compared_without_case_and_punctuation():
    assert words_of("Don't PANIC—it's_fine, 42.") == [
        "don", "t", "panic", "it", "s", "fine", "42",
    ]  # fmt: skip


def test_the_first_refusal_counts():
    def no(reason: str | None):
        return lambda variable, text, before, others: reason

    assert AllChecks([no(None), no("b"), no("c")])(0, "t", "x", []) == "b"
    assert AllChecks([no(None)])(0, "t", "x", []) is None
    assert AllChecks([])(0, "t", "x", []) is None
