"""Each kind of constraint, on answers that keep and that break it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.errors import TaskError
from promptcodebook.tasks.constraints.checks import KINDS, PARAMETERS, check

CASES: list[tuple[dict[str, object], list[str], list[str]]] = [
    ({"kind": "max_words", "n": 3}, ["one two three", "don't - stop 5"], ["a b c d"]),
    ({"kind": "min_words", "n": 3}, ["one two three", "a b c d"], ["one two", "one - two"]),
    (
        {"kind": "sentences", "n": 2},
        ["One. Two!", "Use e.g. this. Done?", "1. First.\n2. Second.", 'He said "go." Then left',
         "<<Title>>\nOne here. Two", "It costs 3.50 today. Fine."],
        ["One.", "One. Two. Three.", "no stop at all"],
    ),
    (
        {"kind": "paragraphs", "n": 2},
        ["a\n\nb", "a\nstill a\n \n\nb\n", "a\r\n\r\nb"],
        ["a\nb", "a\n\nb\n\nc"],
    ),
    ({"kind": "bullets", "n": 2}, ["Intro\n- a\n- b"], ["- a", "- a\n- b\n- c", "* a\n* b"]),
    (
        {"kind": "numbered", "n": 2},
        ["1. a\n2. b", "List:\n1. a\ntext\n2. b\nend"],
        ["1. a", "1. a\n3. b", "2. b\n1. a", "1. a\n2. b\n3. c", "1) a\n2) b"],
    ),
    (
        {"kind": "include", "words": ["table", "well-being"]},
        ["Table, for your WELL-BEING."],
        ["tables and well-being", "table"],
    ),
    ({"kind": "avoid", "words": ["just"]}, ["Justice, adjust"], ["It is JUST so", "just"]),
    ({"kind": "no_commas"}, ["a; b"], ["a, b"]),
    ({"kind": "lowercase"}, ["all small 1!", "ça va"], ["One", "123"]),
    ({"kind": "uppercase"}, ["ALL BIG 1!"], ["ALL bIG", "123"]),
    (
        {"kind": "title"},
        ["<<My title>>\ntext", "Text <<t>> more"],
        ["<< >>", "<My title>", "<<a\nb>>"],
    ),
    (
        {"kind": "json", "keys": ["a", "b"]},
        ['{"a": 1, "b": [2], "c": 3}', ' {"b": null, "a": {}}\n'],
        ['{"a": 1}', '["a", "b"]', '```json\n{"a": 1, "b": 2}\n```', '{"a": 1, "b": 2', "5"],
    ),
    ({"kind": "start_with", "text": "To begin"}, [" To begin, yes"], ["to begin", "So: To begin"]),
    ({"kind": "end_with", "text": "The end."}, ["x The end.\n"], ["The end", "The end. Bye"]),
    ({"kind": "exact_numbers", "n": 2}, ["12 and 7", "3.5"], ["1", "1 2 3", "one two"]),
    ({"kind": "quoted"}, ['"All of it."', ' "a" and "b" '], ['"', '""', '"a', "'all'"]),
    (
        {"kind": "postscript"},
        ["Text.\n\nP.S. More.", "Text.\n\nP.S.: more\nand more"],
        ["Text. P.S. More.", "P.S. More.\n\nText.", "Text.\n\nP.S.", "Text.\n\nPS more"],
    ),
    ({"kind": "letter_count", "letter": "w", "n": 3}, ["Wow wow"], ["wow"]),
    (
        {"kind": "two_versions"},
        ["one\n******\ntwo", "one\r\n ****** \r\ntwo"],
        ["one", "one\n******\none", "one\n******\n", "a\n******\nb\n******\nc", "a ****** b"],
    ),
    ({"kind": "placeholders", "n": 2}, ["[a] [b c] [d]"], ["[a]", "[] [ ", "(a) (b)"]),
    ({"kind": "headings", "n": 1}, ["## A\ntext"], ["# A", "## A\n## B", "text ## A", "##A"]),
    ({"kind": "no_digits"}, ["one"], ["1", "room 5"]),
    (
        {"kind": "alphabetical", "n": 3},
        ["- apple\n- Banana\n- cherry", "x\n- a\n- a\n- b\ny"],
        ["- b\n- a\n- c", "- a\n- b", "- a\n- b\n- c\n- d"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [(c, text, True) for c, kept, _ in CASES for text in kept]
    + [(c, text, False) for c, _, broken in CASES for text in broken],
)
def test_kinds(constraint: dict[str, object], text: str, expected: bool) -> None:
    checked = check(constraint, "prompt", text)
    assert checked.satisfied is expected, checked.explanation
    assert checked.explanation.endswith(".")


def test_every_kind_has_cases() -> None:
    assert [c["kind"] for c, _, _ in CASES] == list(KINDS)
    assert len(KINDS) == 24
    for constraint, _, _ in CASES:
        assert set(PARAMETERS[str(constraint["kind"])]) == set(constraint) - {"kind"}


@pytest.mark.parametrize("constraint", [c for c, _, _ in CASES], ids=lambda c: str(c["kind"]))
def test_a_blank_answer_keeps_nothing(constraint: dict[str, object]) -> None:
    assert not check(constraint, "prompt", " \n").satisfied


@given(st.sampled_from([c for c, _, _ in CASES]), st.text(max_size=80))
def test_any_text_gets_a_verdict(constraint: dict[str, object], text: str) -> None:
    assert check(constraint, "prompt", text).explanation


def test_what_is_said_names_found_and_wanted() -> None:
    said = check({"kind": "sentences", "n": 3}, "p", "A b. C d. E f. G h.").explanation
    assert said == "The answer has 4 sentences; exactly 3 were asked for."


def test_malformed_constraints() -> None:
    with pytest.raises(TaskError, match=r"unknown constraint kind 'sentence'.*'sentences'"):
        check({"kind": "sentence", "n": 3}, "p", "x")
    with pytest.raises(TaskError, match="'letter_count' of the prompt 'p' lacks n"):
        check({"kind": "letter_count", "letter": "x"}, "p", "x")
