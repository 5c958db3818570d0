r"""Scoring AIME answers, integers from 0 to 999, in two ways. `accuracy` reads the last \boxed{...}
(or \fbox{...}), else the last integer of the last line that speaks of the answer; `integer_only` is
the stricter rule of the GEPA artifact."""

from __future__ import annotations

import re

from promptcodebook.tasks.rewards.reading import boxed_answer
from promptcodebook.types import Example, Score

_NUMBER = re.compile(
    r"(?<![\w.^/{,])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/]|\s*\^(?!\s*\{?\s*\\circ))"
)

_FEEDBACK_CHARS = 1500  # of a solution, so that the critic sees several examples


def accuracy(output: str, gold: str) -> float:
    """1.0 iff the integer read from `output` equals `gold`, both in 0..999, else 0.0."""
    given = read_answer(output)
    return float(given is not None and given == _integer(gold))


def integer_only(output: str, gold: str) -> float:
    """1.0 iff the whole output is an integer to Python's int() and equals `gold`, else 0.0."""
    try:
        return float(int(output) == int(gold))
    except ValueError:
        return 0.0


def read_answer(output: str) -> int | None:
    """The integer in 0..999 that `output` gives as its answer, or None."""
    content = boxed_answer(output)
    if content is not None:
        return _integer(content)
    lines = re.findall(r"^.*\banswer\b.*$", output, re.IGNORECASE | re.MULTILINE)
    numbers = _NUMBER.findall(lines[-1]) if lines else []
    return _integer(numbers[-1]) if numbers else None


def _integer(text: str) -> int | None:
    """0..999 after removing what may surround a number; None for anything else."""

    def unwrap(match: re.Match[str]) -> str:  # a number in a text command stays, a unit goes
        return match[1] if any(c.isdigit() for c in match[1]) else ""

    text = re.sub(r"[$\s]|\\[,;:! ]", "", re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", unwrap, text))
    text = re.sub(r"(?:\^\s*\{?\s*\\circ\s*\}?|°)$", "", text)
    if re.fullmatch(r"\d{1,3}(?:(?:,|\{,\})\d{3})+", text):
        text = re.sub(r"[{},]", "", text)
    if not re.fullmatch(r"\+?[0-9]{1,12}", text):
        return None
    value = int(text)
    return value if value <= 999 else None


def reward(example: Example, output: str) -> Score:
    """1 or 0; the feedback gives the right number and the worked solution where there is one."""
    gold, given = example.target or "", read_answer(output)
    if accuracy(output, gold):
        return Score(1.0, f"The answer {gold} is right.")
    fault = f"The answer {given} is wrong; the right answer is {gold}."
    if given is None:
        fault = (
            "No answer could be read: the answer must be one integer from 0 to 999 "
            f"in \\boxed{{}}. The right answer is {gold}."
        )
    solution = str(example.fields.get("solution") or "").strip()
    if len(solution) > _FEEDBACK_CHARS:
        solution = solution[:_FEEDBACK_CHARS].rsplit(" ", 1)[0] + " …"
    return Score(0.0, f"{fault} A worked solution: {solution}" if solution else fault)
