r"""Writes answers to competition and textbook mathematics in the form that a question asks for."""

from __future__ import annotations

import re

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.problem import Problem
from promptcodebook.simulated.writer_answers import wrong_answer

__all__ = ["write_livebench"]

_OPENING = "Working from what is given, a few steps settle it."


def write_livebench(problem: Problem, met: frozenset[str], variant: int) -> str:
    """The gold in the asked form (letters, digits, a list, a box), or a plausible wrong one."""
    gold = (problem.gold or "").strip()
    right = "answer" in met and bool(gold)
    pick = keyed_int("wrong", problem.input, variant % 3)
    if re.fullmatch(r"[A-Ea-e]", gold):
        letter = gold.upper() if right else "ABCDE".replace(gold.upper(), "")[pick % 4]
        return f"{_OPENING}\n\n{letter * 5}"
    if re.fullmatch(r"\d{3}", gold):
        return f"{_OPENING}\n\nThe answer is {gold if right else _other(gold, pick)}."
    pieces = [p.strip() for p in gold.split(",")]
    if len(pieces) > 2 and all(p.isdigit() for p in pieces):
        if not right:
            half = len(pieces) // 2
            pieces = [*pieces[half:], *pieces[:half]]
        return f"{_OPENING}\n\nAnswer: {','.join(pieces)}"
    said = gold if right else _unlike(gold, problem.input, variant)
    return f"{_OPENING}\n\n\\boxed{{{said}}}"


def _other(gold: str, pick: int) -> str:
    return f"{(int(gold) + 1 + pick % 700) % 1000:03d}"


def _unlike(gold: str, text: str, variant: int) -> str:
    if re.search(r"\d", gold):
        return wrong_answer(gold, text, variant)
    return f"{gold} + 1" if gold else "0"
