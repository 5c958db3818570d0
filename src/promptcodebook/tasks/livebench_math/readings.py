r"""How an answer is read, by kind: the last box, a choice's letter, an order of ids, LaTeX.

Boxes are read as LiveBench reads them. Multiple choice (AMC, SMC) is a cascade of readings; one of
them must give the right letter. Olympiad proofs with masked formulas give an order of formulas. An
AMPS_Hard answer is LaTeX: here it is found in the response and normalised by the recipe of the
Minerva paper in LiveBench's shape (what follows the last "=", without wrappers such as \text, with
\frac and \sqrt in braces).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPTION = re.compile(r"\\textbf\{\(([A-E])\)\s?\}")
_OPTION_END = re.compile(r"\\qquad|\$|\n")
_REPEATED = re.compile(r"([A-E])\1{3,}")
_TAIL = 20

Ids = list[int | None]
"""Expression ids in order; None means a piece that is not a number."""

_DIGITS = re.compile(r"\d+")
_DROPPED = ("$", "{", "}", "\\", "boxed", "<", ">")

_CONSTANTS = ("+C", "+ C", "+c", "+ c")
_DELETED = re.compile(
    r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]ig+[lr]?(?![a-zA-Z])|\\[,;]|\n"
)
_FRAC = re.compile(r"\\frac\s*([^{}\\\s])\s*([^{}\\\s])")
_SQRT = re.compile(r"\\sqrt\s*([^{}\[\\\s])")
_WRAPPER = re.compile(r"\\(?:text|textbf|overline|boxed)\{([^{}]*)\}")
_PLAIN_NUMBER = re.compile(r"-?[\d,]+(?:\.\d*)?")
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def last_boxed(text: str) -> str | None:
    r"""The content without "$", or None when there is no box or its braces do not close.

    A "\boxed " (with a blank) anywhere wins: what follows its last occurrence up to the next "$".
    Else the braces of the last \boxed decide, or of the last \fbox where there is no \boxed.
    """
    if r"\boxed " in text:
        return text.rsplit(r"\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind(r"\boxed")
    if start < 0:
        start = text.rfind(r"\fbox")
    if start < 0:
        return None
    inside = _braces(text, start)
    return None if inside is None else inside.replace("$", "")


def _braces(text: str, start: int) -> str | None:
    """The content of the first balanced braces from `start` on."""
    opened, depth = -1, 0
    for i in range(start, len(text)):
        if text[i] == "{":
            depth += 1
            opened = i if opened < 0 else opened
        elif text[i] == "}":
            depth -= 1
            if depth <= 0:
                return text[opened + 1 : i] if opened >= 0 else None
    return None


def choice_path(question: str, letter: str, answer: str) -> str:
    """The first reading of `answer` that gives `letter` (A-E), or "" when none does.

    Paths: solution tag, repeated letter, box, option value, last line, last parentheses.
    """
    solution, small = last_solution(answer), letter.lower()
    if len(set(solution)) == 1 and solution[0].lower() == small:
        return "solution tag"
    if letter * 4 in answer:
        return "repeated letter"
    if _boxed_letter(answer) == small:
        return "box"
    value = option_value(question, letter)
    if value in answer[-(_TAIL + len(value)) :]:
        return "option value"
    line = answer.strip().split("\n")[-1].strip()
    if line.replace("*", "").lower() == small:
        return "last line"
    if "(" in line and ")" in line:
        inside = line.split("(", 1)[1].split(")", 1)[0]
        return "last parentheses" if inside.lower() == small else ""
    return ""


def last_solution(answer: str) -> str:
    """The content of the last <solution>...</solution> on one line, or ""."""
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


def read_letter(answer: str) -> str:
    """The letter an answer seems to give, for the feedback; "" when it is unclear."""
    tag = last_solution(answer).strip()
    if tag and len(set(tag)) == 1 and tag[0].upper() in "ABCDE":
        return tag[0].upper()
    repeated = _REPEATED.findall(answer)
    if repeated:
        return str(repeated[-1])
    box = _boxed_letter(answer)
    return box.upper() if len(box) == 1 and box in "abcde" else ""


def _boxed_letter(answer: str) -> str:
    box = last_boxed(answer) or ""
    return box.replace("\\text{", "").replace("}", "").replace("\\", "").lower()


def read_ids(answer: str) -> tuple[Ids, str]:
    """The ids that an answer gives, and the path that read them; ([], "") when none did.

    A reading that finds nothing but pieces that are not numbers is passed over.
    """
    for path, read in _READINGS.items():
        ids = read(answer)
        if any(i is not None for i in ids):
            return ids, path
    return [], ""


def closeness(ids: Sequence[int | None], gold: Sequence[int]) -> float:
    """1 - Levenshtein(ids, gold) / max(length): 1 for the right order, 0 for nothing in common."""
    longest = max(len(ids), len(gold))
    return 1 - _edits(ids, gold) / longest if longest else 1.0


def _edits(first: Sequence[int | None], second: Sequence[int]) -> int:
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            kept = corner if a == b else corner + 1
            corner, row[j] = row[j], min(kept, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _answer_line(answer: str) -> Ids:
    lines = answer.lower().strip().split("\n")
    at = next((i for i in reversed(range(len(lines))) if "answer:" in lines[i]), None)
    if at is None:
        return []
    texts = (lines[at].split("answer:")[1], *lines[at + 1 : at + 2])
    plain = [text.replace("**", "").replace(".", "").strip() for text in texts]
    listed = next((text for text in plain if text), "")
    words = [piece.strip().split(" ")[-1] for piece in listed.split(",")]
    for mark in _DROPPED:
        words = [word.replace(mark, "") for word in words]
    return [*map(_integer, words)]


def _box(answer: str) -> Ids:
    box = last_boxed(answer)
    if box is None:
        return []
    return [_integer(piece) for piece in box.replace("\\text{", "").replace("}", "").split(",")]


def _last_line(answer: str) -> Ids:
    found = (_DIGITS.search(piece) for piece in answer.strip().split("\n")[-1].split(","))
    return [_integer(digits[0]) if digits else None for digits in found]


def _tail(answer: str) -> Ids:
    if "answer:" not in answer.lower():
        return []
    ids: Ids = []
    for piece in answer.lower().rsplit("answer:", 1)[1].strip().split(","):
        digits = _DIGITS.search(piece)
        ids.append(_integer(digits[0]) if digits else None)
        if digits and piece[digits.end() :]:
            break
    return ids


_READINGS = {
    "answer line": _answer_line,
    "box": _box,
    "last line": _last_line,
    "after the last answer": _tail,
}


def clean_response(response: str) -> str:
    """The response without constants of integration, sizes, thin spaces and line ends."""
    for constant in _CONSTANTS:
        response = response.replace(constant, "")
    response = _DELETED.sub("", response)
    for command in (r"\dfrac", r"\tfrac"):
        response = response.replace(command, r"\frac")
    return response.replace(r"\cdot", "*")


def clean_gold(gold: str) -> str:
    r"""The gold text without \left and \right; "\ " is a product."""
    gold = gold.replace(r"\left", "").replace(r"\right", "")
    return gold.replace(" ^", "^").replace("\\ ", "*").strip()


def parse_answer(response: str) -> tuple[str | None, str]:
    """(answer, path) of a cleaned response: its last box, else the end of its last formula."""
    box = last_boxed(response)
    if box is not None:
        return normalise(box), "box"
    # The text between the last two "$" (or "$$").
    close = response.rfind("$")
    if close > 0 and response[close - 1] == "$":
        close -= 1
    start = response.rfind("$", 0, close) if close > 0 else -1
    formula = response[start + 1 : close].strip() if start >= 0 else None
    return (None, "") if formula is None else (normalise(formula), "formula")


def normalise(text: str) -> str:
    """The normal form of an answer."""
    text = text.rsplit("=", 1)[-1].strip()
    for _ in range(4):  # wrappers may be nested
        text = _WRAPPER.sub(r"\1", text)
    text = _FRAC.sub(r"\\frac{\1}{\2}", text)
    text = _SQRT.sub(r"\\sqrt{\1}", text).replace("$", "").strip()
    return text.replace(",", "") if _PLAIN_NUMBER.fullmatch(text) else text


def compact(text: str) -> str:
    """For comparing texts: without blanks, except between two digits."""
    return _BLANK.sub("", text.strip())
