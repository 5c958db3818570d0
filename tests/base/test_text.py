import csv
import io
import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from promptcodebook.base.text import (
    answer_words,
    fault_in_text,
    fenced,
    fold_text,
    json_decoder,
    markdown,
    one_line,
    parse_json,
    printable,
    quote,
    shell,
    shorten,
    strip_fence,
    strip_wrapping,
    toml,
    word_changes,
    words_of,
)
from promptcodebook.config.loading import written
from promptcodebook.errors import ConfigError
from promptcodebook.report.pages import csv_text
from tests.build.cases import table
from tests.build.nasty import NASTY


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


@pytest.mark.parametrize("wrapped", table(__file__, "wrapped"))
def test_what_a_model_puts_around_the_text_it_was_asked_for_is_taken_off(wrapped: str) -> None:
    reply = wrapped.replace("JSON", json.dumps(BARE)).replace("BARE", BARE)
    assert strip_wrapping(reply) == BARE


@pytest.mark.parametrize("text", table(__file__, "prose"))
def test_ordinary_prose_keeps_every_character_and_may_be_a_text(text: str) -> None:
    text = text.replace("BARE", BARE)
    assert strip_wrapping(text) == text and fault_in_text(text) is None


INSTEAD = table(__file__, "in_place_of_a_text")


@pytest.mark.parametrize(("reply", "fault"), [(t, f) for f in INSTEAD for t in INSTEAD[f]])
def test_what_stands_in_place_of_a_text_is_named(reply: str, fault: str) -> None:
    assert fault in (fault_in_text(strip_wrapping(reply)) or "")


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


@pytest.mark.parametrize("text", [
    "", "{", b"\xff\xfe", "[" * 200_000, '{"a":' * 200_000, "[" * 101 + "]" * 101, "1" * 301,
    '{"a": 10e400}', "[1e999]", "[NaN]", "-Infinity", "9" * 400 + ".0", "1" * 100_000,
    "[" * 5000 + "]" * 5000, '"\x00"', "[1]]",
])  # fmt: skip
def test_no_text_from_outside_makes_reading_json_fail_in_another_way(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_from_outside_keeps_what_json_can_hold() -> None:
    for tree in ("\ud800", "é", [[[]] * 200, {"a": [1e300, 10**299, -0.5, True, None]}]):
        assert parse_json(json.dumps(tree)) == tree
        assert parse_json(json.dumps(tree).encode()) == tree
    assert parse_json(b'\xef\xbb\xbf"\xed\xa0\x80"') == "\ud800"
    deep = "[" * 100 + "]" * 100
    assert json.dumps(parse_json(deep)) == deep
    odd = json_decoder(odd_numbers=True)
    assert parse_json(f"[NaN, 1e999, -Infinity, {'1' * 400}, 5]", odd) == [None] * 4 + [5]
    twice = json_decoder(lambda pairs: [key for key, _ in pairs])
    assert parse_json('{"a": 1, "a": 2}', twice) == ["a", "a"]


# Texts as a part of another language.


@pytest.mark.parametrize("nasty", NASTY)
def test_a_text_stays_a_text_in_every_language(nasty: str, tmp_path: Path) -> None:
    tree = {"a": nasty, nasty: [nasty, {nasty: 1.5}], "yes": True}
    lines = [f"{toml(key)} = {toml(value)}  # {one_line(nasty)}\n" for key, value in tree.items()]
    assert tomllib.loads("".join(lines)) == tree
    assert len("".join(lines).splitlines()) == len(tree)
    line = f"printf %s {shell(nasty)}"
    assert shlex.split(line) == ["printf", "%s", nasty]
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, cwd=tmp_path, check=True)
    assert ran.stdout.decode() == nasty and not any(tmp_path.iterdir())
    page = f"# {markdown(nasty)}\n\n| {markdown(nasty)} |\n| --- |\n\n{fenced(nasty)}\n\nlast\n"
    shown = MarkdownIt("commonmark").enable("table").render(page)
    assert shown.count("<h1") == shown.count("<th>") == shown.count("<pre>") == 1
    assert "<script" not in shown and "<b>" not in shown and "<a " not in shown
    assert shown.endswith("<p>last</p>\n")
    sheet = list(csv.reader(io.StringIO(csv_text([nasty], [[nasty]], nasty))))
    cells = [cell.lstrip() for row in sheet for cell in row]
    assert len(sheet) == 2 and not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


_ANY = st.text(st.characters(codec="utf-8"))


@given(st.dictionaries(_ANY, _ANY | st.lists(_ANY) | st.booleans() | st.integers(-9, 9)))
def test_any_settings_are_read_back_as_they_were_meant(tree: dict[str, Any]) -> None:
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tree.items())
    assert tomllib.loads(written(text, tree)) == tree


def test_settings_that_would_be_read_as_others_are_not_saved() -> None:
    for text, meant in (
        ('lm = "a"\nexecutor = "touch PWNED"\n', {"lm": "a"}),
        ('lm = "a"\n', {"lm": "b"}),
        ('lm = "a\n', {"lm": "a"}),
        ('lm = "\ud800"\n', {"lm": "\ud800"}),
    ):
        with pytest.raises(ConfigError, match=r"cannot be written into a pco\.toml"):
            written(text, meant)
