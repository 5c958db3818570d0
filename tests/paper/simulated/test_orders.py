"""Orders: what is one, when it is obeyed, and that a list of cue words is none."""

from __future__ import annotations

from itertools import chain

import pytest

from promptcodebook.paper.simulated.orders import Skills, content_stems, read_skills
from promptcodebook.paper.tasks.constraints.checks import KINDS
from promptcodebook.paper.tasks.constraints.task import constraints_of
from promptcodebook.tasks.task import load_task
from tests.build.simulated import examples

TABLES = ("constraints", "general")


@pytest.fixture(scope="module")
def skills() -> Skills:
    return read_skills("constraints")


@pytest.mark.parametrize("table", TABLES)
def test_every_way_of_saying_a_skill_is_one_order_about_it(table: str) -> None:
    skills = read_skills(table)
    for k in range(len(skills)):
        for phrase in range(len(skills[k].do)):
            (bare,) = skills.orders(skills.say(k, None, phrase))
            assert bare.skill == k
            for condition in range(len(skills)):
                (order,) = skills.orders(skills.say(k, condition, phrase))
                assert (order.skill, order.against) == (k, False)
                assert order.when is not None
                assert order.when.skills == {condition}


def test_the_demands_of_the_shipped_inputs_show() -> None:
    skills = read_skills("constraints")
    assert set(skills.names) == set(KINDS)
    for example in examples:
        shown = {skills.names[k] for k in skills.shown_in(example.input)}
        assert shown == {str(c["kind"]) for c in constraints_of(example)}


def test_a_list_of_cue_words_is_no_order(skills: Skills) -> None:
    words = chain.from_iterable(skills[k].do for k in range(len(skills)))
    cues = sorted({w for text in words for w in content_stems(text)})
    for text in (
        *(joint.join(cues) for joint in (" ", ", ", "\n", "; ")),
        "Count words, trim words, dash lines, bullet points, title brackets.",
        "Words limit sentences paragraphs bullets title JSON quotes digits.",
    ):
        assert skills.orders(text) == ()


@pytest.mark.parametrize(("text", "obeyed", "passed_over"), [
    ("Put a title in double angle brackets.", ("Give it a title.", "Hello."), ()),
    ("When a title is asked for, put one title on top.", ("Give it a title.",), ("Hello.",)),
    ("Put a title on top if a title is asked for.", ("Give it a title.",), ("Hello.",)),
    ("Write the bullets as asked.", ("Use 4 bullets in total.",), ("Hello.",)),
    ("If it is about gardens, put a title on top.", ("Describe gardens.",), ("Hello.",)),
])  # fmt: skip
def test_a_condition_decides_where_an_order_is_obeyed(
    skills: Skills, text: str, obeyed: tuple[str, ...], passed_over: tuple[str, ...]
) -> None:
    (order,) = skills.orders(text)
    for given in obeyed:
        assert order.applies(skills.shown_in(given), content_stems(given)), given
    for given in passed_over:
        assert not order.applies(skills.shown_in(given), content_stems(given)), given


def test_what_forbids_is_told_from_what_orders(skills: Skills) -> None:
    (against,) = skills.orders("Do not put a title on top of it.")
    assert against.against
    (no_commas,) = skills.orders("Do not use a comma in the text.")
    assert not no_commas.against
    (numbered,) = skills.orders("Write exactly 3 sentences in the answer.")
    assert numbered.number == 3


def test_the_skills_were_written_apart_from_the_seed_instincts() -> None:
    for task in ("constraints", "hotpotqa", "pupa", "aime"):
        seeds = " ".join(load_task(task).seeds).lower()
        for table in map(read_skills, TABLES):
            for skill in map(table.__getitem__, range(len(table))):
                assert not any(text.lower() in seeds for text in (*skill.do, skill.when))
