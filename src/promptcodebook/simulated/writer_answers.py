r"""Writes answers to questions with one gold answer: the gold, or a plausible wrong one."""

from __future__ import annotations

import re

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.problem import Problem

__all__ = ["write_boxed", "write_plain"]

_OPENINGS = (
    "Setting up the relations that the problem states and simplifying",
    "Writing down the given conditions and counting what satisfies them",
    "Reducing the problem to a smaller one and working back",
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_OTHERS = ("not stated", "none of these", "the other one", "unknown", "both", "no")


def write_boxed(problem: Problem, met: frozenset[str], variant: int) -> str:
    r"""A short derivation that ends in \boxed{...}."""
    gold = problem.gold or str(keyed_int("unknown", problem.input) % 1000)
    answer = gold if "answer" in met else _wrong_integer(gold, problem.input, variant)
    opening = _OPENINGS[variant % len(_OPENINGS)]
    return f"{opening} leads to one value after a few steps.\n\nThe answer is \\boxed{{{answer}}}."


def write_plain(problem: Problem, met: frozenset[str], variant: int) -> str:
    """The gold or a wrong answer; without a gold a short text, vague when the skill lacks."""
    if problem.gold is not None:
        right = "answer" in met
        return problem.gold if right else wrong_answer(problem.gold, problem.input, variant)
    words = " ".join(problem.input.split()[:12])
    if "answer" in met:
        return (
            f"On the matter of {words}: this is settled in the way that was asked, point by point."
        )
    return f"It depends. There is a lot to say about {words}."


def wrong_answer(gold: str, text: str, variant: int) -> str:
    """Something of the gold's form that is not the gold."""
    number = _NUMBER.search(gold)
    if number is not None:
        digits = re.sub(r"\D", "", number[0])
        other = _wrong_integer(digits, text, variant)
        return gold[: number.start()] + other + gold[number.end() :]
    words = re.findall(r"\b[A-Z][a-z]{2,}\b", text)
    start = keyed_int("wrong", text, variant % 3)
    if words and words[start % len(words)].lower() not in gold.lower():
        return words[start % len(words)]
    rest = [o for o in _OTHERS if o not in gold.lower()]
    return rest[start % len(rest)]


def _wrong_integer(gold: str, text: str, variant: int) -> str:
    """A near miss: off by one, doubled, halved or with digits swapped, within 0..999 if it was."""
    value = int(gold) if gold.isdigit() else 0
    swapped = int(str(value)[::-1])
    near = (value + 1, value - 1, value * 2, value // 2, swapped, value + 10)
    fits = [v for v in near if v != value and v >= 0 and (v <= 999 or value > 999)]
    return str(fits[keyed_int("wrong", text, variant % 3) % len(fits)])
