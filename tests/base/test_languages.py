"""What counts as a word and a sentence in every script, and all that goes by it: copies, answers,
the parts of a prompt."""

import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from promptcodebook import rewards
from promptcodebook.base.text import count_words, cut_at_sentence, parts_of, sentences_of, words_of
from promptcodebook.config.schema import Update
from promptcodebook.data import load
from promptcodebook.data.dataset import examine
from promptcodebook.method.critic import nearest_instinct, split_shared
from promptcodebook.method.rewrite_checks import LengthCheck, NoLeakCheck, near_copy
from promptcodebook.types import Codebook, Example, Instinct

CASES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8"))
INPUTS: dict[str, str] = CASES["inputs"]
OTHER: dict[str, str] = CASES["others"]


@pytest.mark.parametrize("language", INPUTS)
def test_a_rewrite_that_copies_an_input_is_refused_in_every_script(language: str) -> None:
    asked = INPUTS[language]
    check = NoLeakCheck([Example("e1", asked)])
    marks = "？?。؟"
    copied = f"Example: {asked.strip(marks)}!"
    assert "copies eight words" in (check(0, copied, "Be brief.", ()) or "")
    assert check(0, copied, copied, ()) is None  # it held it before
    assert check(0, OTHER.get(language, "Be brief."), "Be brief.", ()) is None
    [(start, end, _)] = check.find(copied)
    assert copied[start:end] == asked.strip(marks)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("language", [*INPUTS, "wide"])
def test_a_copy_is_one_in_every_form_of_its_letters(language: str, form: Any) -> None:
    asked = {**INPUTS, "wide": "ＯＲＤＥＲ １２ ﾊﾞｯｸﾞ ３４ ＣＤ ５６ ＥＦ ７８"}[language]
    check = NoLeakCheck([Example("e1", asked)])
    assert check(0, unicodedata.normalize(form, asked), "", ()) is not None


@pytest.mark.parametrize(("answer", "text", "leaks"), CASES["answers"])
def test_an_answer_of_many_letters_is_given_away_and_a_label_is_not(
    answer: str, text: str, leaks: bool
) -> None:
    found = NoLeakCheck([Example("e1", "?", answer)])(0, text, "", ())
    assert ("gives away the answer" in (found or "")) is leaks


@pytest.mark.parametrize("language", INPUTS)
def test_a_near_copy_in_another_split_is_found_in_every_script(language: str) -> None:
    text = INPUTS[language] * 2
    rows = {"train": text, "val": f"{text} 谢谢", "test": "Quite another input."}
    found = examine(load({s: [{"input": each, "target": "x"}] for s, each in rows.items()}))
    assert [leak.splits for leak in found.near] == [("train", "val")]


@pytest.mark.parametrize("language", OTHER)
def test_an_instinct_that_differs_in_a_letter_or_a_word_is_a_near_copy(language: str) -> None:
    long = f"{OTHER[language]} {INPUTS[language]}"
    assert near_copy(1, f"{long} {OTHER[language][:2]}", "", [long]) is not None
    assert near_copy(1, INPUTS[language], "", [OTHER[language]]) is None


def score(kind: str, target: str, output: str) -> float:
    made: Any = getattr(rewards, kind)()
    return made(Example("e1", "?", target), output).value


@pytest.mark.parametrize(("kind", "target", "output", "least", "most"), CASES["scores"])
def test_a_reward_reads_answers_in_every_script(
    kind: str, target: str, output: str, least: float, most: float
) -> None:
    assert least <= score(kind, target, output) <= most


@pytest.mark.parametrize(("text", "sentences"), CASES["sentences"])
def test_a_prompt_of_any_script_is_cut_at_its_sentences(text: str, sentences: list[str]) -> None:
    assert sentences_of(text) == sentences == parts_of(text)


def test_lengths_count_the_same_in_every_script() -> None:
    """Five letters of Chinese are four words, and what has blanks is counted as before."""
    assert count_words("don't stop - now") == 4 and count_words("") == 0
    assert count_words("请用简短的语言回答") == 7 and count_words("नमस्ते दुनिया") == 2
    assert words_of("नमस्ते") == ["नमस्ते"] and words_of("が") == ["が"]
    assert str(count_words("မြန်မာ")) == "1"  # and not "True"
    long = "请先道歉再说明。" * 30
    assert "over the cap of 60" in (LengthCheck(Update(instinct_words=60))(0, long, "", ()) or "")
    assert cut_at_sentence(long, 60) == "请先道歉再说明。" * 10


def test_a_complaint_reaches_the_instinct_that_it_is_about_in_every_script() -> None:
    book = Codebook((Instinct("回答前请先数一数字数。"), Instinct("请引用政策中的段落。")))
    assert nearest_instinct("没有引用政策的段落", book, (0, 1)) == 1
    shared, own = split_shared(["引用政策的段落太少。语气不好。", "缺少引用政策的段落。"], 2)
    assert shared == ("引用政策的段落太少。", "缺少引用政策的段落。") and own == [(0, "语气不好。")]


@pytest.mark.parametrize(("text", "parts"), CASES["parts"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_block_of_a_prompt_stays_whole(text: str, parts: list[str], end: str) -> None:
    assert parts_of(text.replace("\n", end)) == parts
