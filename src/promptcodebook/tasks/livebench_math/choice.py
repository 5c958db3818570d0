"""Multiple choice (AMC, SMC): a cascade of readings, of which one must give the right letter."""

from __future__ import annotations

import re

from promptcodebook.tasks.livebench_math.boxed import last_boxed

__all__ = ["choice_path", "last_solution", "option_value", "said_letter"]

_OPTION = re.compile(r"\\textbf\{\(([A-E])\)\s?\}")
_OPTION_END = re.compile(r"\\qquad|\$|\n")
_REPEATED = re.compile(r"([A-E])\1{3,}")
_TAIL = 20


def choice_path(question: str, letter: str, answer: str) -> str:
    """The first reading of `answer` that gives `letter` (A-E), or "" when none does.

    Paths: solution tag, repeated letter, box, option value, last line, last parentheses.
    """
    if _is_letter(last_solution(answer), letter):
        return "solution tag"
    if letter * 4 in answer:
        return "repeated letter"
    if _boxed_letter(answer) == letter.lower():
        return "box"
    value = option_value(question, letter)
    if value in answer[-(_TAIL + len(value)) :]:
        return "option value"
    return _last_line_path(letter, answer)


def last_solution(answer: str) -> str:
    """What stands in the last <solution>...</solution> on one line, or ""."""
    found = ""
    for line in answer.split("\n"):
        at = 0
        while (start := line.find("<solution>", at)) >= 0:
            end = line.find("</solution>", start + 10)
            if end < 0:
                break
            found, at = line[start + 10 : end], end + 11
    return found


def option_value(question: str, letter: str) -> str:
    """The text of an option, without "$" and "~" at its ends; "FAILURE" if it cannot be read.

    The last option with that letter counts, and an option must end at a "\\qquad" or "$".
    """
    value = ""
    at = 0
    while found := _OPTION.search(question, at):
        end = _OPTION_END.search(question, found.end())
        if end is None:
            break
        if end[0] == "\n":
            at = found.end()
            continue
        if found[1] == letter:
            value = question[found.end() : end.start()].strip()
        at = end.end()
    return (value or "FAILURE").strip().strip("$").strip("~")


def said_letter(answer: str) -> str:
    """The letter an answer seems to give, for the feedback; "" when none can be told."""
    tag = last_solution(answer).strip()
    if tag and len(set(tag)) == 1 and tag[0].upper() in "ABCDE":
        return tag[0].upper()
    repeated = _REPEATED.findall(answer)
    if repeated:
        return str(repeated[-1])
    box = _boxed_letter(answer)
    return box.upper() if len(box) == 1 and box in "abcde" else ""


def _is_letter(text: str, letter: str) -> bool:
    return len(set(text)) == 1 and text[0].lower() == letter.lower()


def _boxed_letter(answer: str) -> str:
    box = last_boxed(answer) or ""
    return box.replace("\\text{", "").replace("}", "").replace("\\", "").lower()


def _last_line_path(letter: str, answer: str) -> str:
    line = answer.strip().split("\n")[-1].strip()
    if line.replace("*", "").lower() == letter.lower():
        return "last line"
    if "(" in line and ")" in line:
        inside = line.split("(", 1)[1].split(")", 1)[0]
        if inside.lower() == letter.lower():
            return "last parentheses"
    return ""
