"""The reward of the constraints task: the share of a prompt's constraints that the answer keeps."""

from __future__ import annotations

from typing import cast

from promptcodebook.tasks.constraints.checks import Constraint, check
from promptcodebook.tasks.constraints.measure import words
from promptcodebook.types import Example, Score

__all__ = ["constraints_of", "reward"]

_FEWEST_WORDS = 5
"""What an answer to a prompt without constraints needs to count as one."""


def constraints_of(example: Example) -> tuple[Constraint, ...]:
    """The constraints an example carries in `fields["constraints"]`, in the prompt's order."""
    return tuple(cast("list[Constraint]", example.fields.get("constraints") or []))


def reward(example: Example, output: str) -> Score:
    """Satisfied / all constraints, in [0, 1]; the feedback says for each what was found.

    Without constraints: 1 for an answer of at least five words, else 0.
    """
    constraints = constraints_of(example)
    if not constraints:
        if len(words(output)) >= _FEWEST_WORDS:
            return Score(1.0, "The request sets no constraints, and it was answered.")
        return Score(0.0, "The request was not answered: there are fewer than five words.")
    checked = [check(constraint, example.input, output) for constraint in constraints]
    kept = [c.said for c in checked if c.satisfied]
    broken = [c.said for c in checked if not c.satisfied]
    parts = [f"{len(kept)} of {len(checked)} constraints are satisfied."]
    if broken:
        parts.append("Not satisfied: " + " ".join(broken))
    if kept:
        parts.append("Satisfied: " + " ".join(kept))
    return Score(len(kept) / len(checked), " ".join(parts))
