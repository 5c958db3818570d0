"""Worlds to test with: the shipped constraints task, and a few questions with gold answers."""

from __future__ import annotations

from promptcodebook.paper.simulated.world import World
from promptcodebook.paper.tasks.constraints.task import load_constraints
from promptcodebook.types import Example

examples = [e for _, split in load_constraints(None).dataset.items() for e in split]
world = World("constraints", examples)
_ASKED = (
    ("How many subsets of {1, ..., 8} have an even sum?", "128"),
    ("Find the remainder when 7^100 is divided by 13.", "9"),
    ("A circle of radius 5 is tangent to both legs of a right triangle. Find its area.", "75"),
    ("The probability that two dice show a sum of 8 is m/n in lowest terms. Find m+n.", "41"),
)
problems = [Example(f"p{k}", text, gold) for k, (text, gold) in enumerate(_ASKED)]
"""Made-up problems in the manner of a competition."""
