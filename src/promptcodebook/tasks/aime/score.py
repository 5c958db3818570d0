r"""Scoring AIME answers, integers from 0 to 999, in two ways.

`accuracy` reads the last \boxed{...} (or \fbox{...}), else the last integer of the last line that
speaks of the answer; `integer_only` is the stricter rule of the GEPA artifact. Neither evaluates
expressions.
"""

from __future__ import annotations

import re

__all__ = ["accuracy", "boxed", "integer_only", "read_answer"]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|[{}]")
_ANSWER_LINE = re.compile(r"^.*\banswer\b.*$", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(
    r"(?<![\w.^/{,])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/]|\s*\^(?!\s*\{?\s*\\circ))"
)
_WRAPPER = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"(?:\^\s*\{?\s*\\circ\s*\}?|°)$")
_GROUPED = re.compile(r"\d{1,3}(?:(?:,|\{,\})\d{3})+")


def accuracy(output: str, gold: str) -> float:
    """1.0 iff the integer read from `output` equals `gold`, both in 0..999, else 0.0."""
    found, wanted = read_answer(output), _integer(gold)
    return float(found is not None and found == wanted)


def integer_only(output: str, gold: str) -> float:
    """1.0 iff the whole output is an integer to Python's int() and equals `gold`, else 0.0."""
    try:
        return float(int(output) == int(gold))
    except ValueError:
        return 0.0


def read_answer(output: str) -> int | None:
    """The integer in 0..999 that `output` gives as its answer, or None."""
    content = boxed(output)
    if content is not None:
        return _integer(content)
    lines = _ANSWER_LINE.findall(output)
    numbers = _NUMBER.findall(lines[-1]) if lines else []
    return _integer(numbers[-1]) if numbers else None


def boxed(output: str) -> str | None:
    r"""What stands in the last \boxed or \fbox whose braces balance, or None."""
    opened = list[tuple[bool, int]]()
    start, content = -1, None
    for match in _BOX.finditer(output):
        if match[0] != "}":
            opened.append((match[0] != "{", match.end()))
        elif opened:
            is_box, at = opened.pop()
            if is_box and at > start:
                start, content = at, output[at : match.start()]
    return content


def _unwrapped(match: re.Match[str]) -> str:
    """A number in a text command stays, a unit goes."""
    return match[1] if any(c.isdigit() for c in match[1]) else ""


def _integer(text: str) -> int | None:
    """0..999 after removing what may stand around a number; None for anything else."""
    text = re.sub(r"[$\s]|\\[,;:! ]", "", _WRAPPER.sub(_unwrapped, text))
    text = _DEGREE.sub("", text)
    if _GROUPED.fullmatch(text):
        text = re.sub(r"[{},]", "", text)
    if not re.fullmatch(r"\+?[0-9]{1,12}", text):
        return None
    value = int(text)
    return value if value <= 999 else None
