"""Hidden skills of the hotpotqa world: what retrieval needs, and the form of a short answer.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill
from promptcodebook.simulated.skills_retrieval import EVIDENCE_SKILLS, NOTE_SKILLS, SEARCH_SKILLS

__all__ = ["HOTPOTQA_SKILLS"]

_ANSWERS = (
    Skill(
        "kind_asked",
        ("type of thing asked", "kind of thing asked", "category asked", "expected answer type"),
        ("what", "which", "profession", "genre", "nationality"),
        (
            "Make sure that the answer is the kind of thing asked for.",
            "Decide on the expected answer type before answering.",
        ),
    ),
    Skill(
        "short_span",
        ("shortest span", "few words", "short phrase", "no full sentence", "answer bare"),
        (
            "exact match",
            "answer wrong",
            "wrong answer",
            "incorrect",
            "not the gold",
            "was expected",
        ),
        (
            "Answer with the shortest span that settles it, no full sentence.",
            "Say the answer in a few words and stop.",
        ),
        general=True,
    ),
    Skill(
        "yes_no",
        ("yes or no", "bare yes", "yes no only"),
        ("are both", "is the", "do both", "were both", "both", "does", "did"),
        (
            "Reply to a question of fact that can be affirmed with yes or no only.",
            "Where it asks whether, answer a bare yes or a bare no.",
        ),
    ),
    Skill(
        "pick_one",
        ("one of two", "pick compared", "name the winner", "choose alternative"),
        ("older", "first", "or", "more", "which one", "closer"),
        (
            "For a comparison give the name of one of the two, as asked.",
            "Choose the alternative that the facts favour and say only it.",
        ),
    ),
    Skill(
        "year_form",
        ("year alone", "date in full", "asked date", "only year"),
        ("year", "when", "date", "born"),
        (
            "If a year is wanted give the year alone.",
            "Match the asked date: only the year, or the date in full.",
        ),
    ),
    Skill(
        "full_name",
        ("full name", "name in full", "complete name"),
        ("who", "whose", "actor", "singer", "author", "director"),
        (
            "Give people by their full name.",
            "Write the name in full, as the page does.",
        ),
    ),
    Skill(
        "number_form",
        ("number with unit", "digits as in source", "number as printed"),
        ("how many", "how much", "population", "number of"),
        (
            "Copy a number as printed in the passage.",
            "Give the number with its unit, digits as in the source.",
        ),
    ),
)

HOTPOTQA_SKILLS: tuple[Skill, ...] = (
    *SEARCH_SKILLS,
    *NOTE_SKILLS,
    *_ANSWERS,
    *EVIDENCE_SKILLS,
)
