r"""Writes answers to questions with one gold answer: the gold, or a plausible wrong one."""

from __future__ import annotations

import re

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.world import Problem

__all__ = ["outside", "write_answer", "wrong_answer"]

_OPENING = "Working from what is given, a few steps settle it."
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_OTHERS = ("not stated", "none of these", "the other one", "unknown", "both", "no")


def write_answer(problem: Problem, right: bool, variant: int) -> str:
    """The gold in the form that the question asks for, or a wrong one; without a gold a pertinent
    or a vague text."""
    gold, text = problem.gold, problem.input
    if gold is None:
        words = " ".join(text.split()[:12])
        return f"On the matter of {words}: settled as asked." if right else f"It depends: {words}."
    said = gold if right else wrong_answer(gold, text, variant)
    letters = re.fullmatch(r"[A-Ea-e]", gold) is not None
    if letters and "five times" in text:
        return f"{_OPENING}\n\n{said.upper() * 5}"
    if "boxed" in text or re.fullmatch(r"\d{1,3}", gold):
        return f"{_OPENING}\n\nThe answer is \\boxed{{{said}}}."
    return f"Answer: {said}" if gold.count(",") > 1 else said


def wrong_answer(gold: str, text: str, variant: int) -> str:
    """Something of the gold's form that is not the gold."""
    start = keyed_int("wrong", text, variant % 3)
    if re.fullmatch(r"[A-Ea-e]", gold):
        return "ABCDE".replace(gold.upper(), "")[start % 4]
    parts = [p.strip() for p in gold.split(",")]
    if len(parts) > 2:
        return ",".join(parts[1:] + parts[:1])
    number = _NUMBER.search(gold)
    if number is not None:
        value = int(re.sub(r"\D", "", number[0]))
        near = [v for v in (value + 1, value - 1, value * 2, value + 10) if 0 <= v != value]
        near = [v for v in near if v <= 999 or value > 999]
        return gold[: number.start()] + str(near[start % len(near)]) + gold[number.end() :]
    if gold.strip().upper() in ("SUPPORTED", "NOT_SUPPORTED"):
        return "NOT_SUPPORTED" if gold.strip().upper() == "SUPPORTED" else "SUPPORTED"
    words = [w for w in re.findall(r"\b[A-Z][a-z]{2,}\b", text) if w.lower() not in gold.lower()]
    others = words or [o for o in _OTHERS if o not in gold.lower()]
    return others[start % len(others)]


def outside(request: str) -> str:
    """An outside model's answer: it knows nothing but the request, and takes up its words."""
    return (
        "Here is a general way to go about it: say what it is for, go through it point by point "
        f"and close politely. Taking up what was asked: {' '.join(request.split()[:400])}"
    )
