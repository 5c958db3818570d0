"""Hidden skills of the hover world: what retrieval needs, and how a claim is verified.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill
from promptcodebook.simulated.skills_retrieval import EVIDENCE_SKILLS, NOTE_SKILLS, SEARCH_SKILLS

__all__ = ["HOVER_SKILLS"]

_VERDICTS = (
    Skill(
        "every_clause",
        ("every clause", "each assertion", "all must hold", "single false detail"),
        ("label wrong", "wrong label", "label", "should have been", "verdict wrong"),
        (
            "Call a claim supported if every clause of it holds.",
            "A single false detail makes the whole claim fail.",
        ),
    ),
    Skill(
        "swapped_entity",
        ("swapped", "replaced entity", "substituted name", "different entity"),
        ("who", "named", "name", "person"),
        (
            "Look for a substituted name: a true story told of a different entity.",
            "Suspect a swapped person or work.",
        ),
    ),
    Skill(
        "negation",
        ("negation", "word not", "denied", "opposite"),
        ("not", "never", "only", "neither", "no"),
        (
            "Mind each negation and whether the opposite is what the page says.",
            "Watch the word not and the word only.",
        ),
    ),
    Skill(
        "date_check",
        ("compare date", "date match", "date against", "check year"),
        ("year", "born", "before", "after", "century", "older"),
        (
            "Check the year claimed, date against date.",
            "See whether each date does match the page.",
        ),
    ),
    Skill(
        "quantity_check",
        ("count match", "figure against", "check amount", "number claimed"),
        ("two", "three", "number", "more than", "million", "many"),
        (
            "Hold each figure against the one in the page.",
            "Check the amount and the number claimed.",
        ),
    ),
    Skill(
        "label_form",
        ("label alone", "one of labels", "two labels", "label in capital"),
        ("label unreadable", "no label", "supported"),
        (
            "End with one of the two labels and nothing more.",
            "Write the label alone, in capitals.",
        ),
    ),
    Skill(
        "third_hop",
        ("third page", "last hop", "chain of pages", "further hop"),
        ("whose", "that", "which", "of the"),
        (
            "Expect a chain of pages and follow it to the third page.",
            "Plan a further hop when two pages do not settle it.",
        ),
    ),
)

HOVER_SKILLS: tuple[Skill, ...] = (
    *SEARCH_SKILLS,
    *NOTE_SKILLS,
    *_VERDICTS,
    *EVIDENCE_SKILLS,
)
