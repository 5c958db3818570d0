r"""LiveBench-Math's scorers, chosen by the parts of the subtask's name. amc, smc: multiple choice,
a cascade of readings; one of them must give the right letter. aime: the three digits near the end.
imo, usamo: edit distance of an order of formulas. amps: algebraic equality of LaTeX, normalised by
the recipe of the Minerva paper in LiveBench's shape (what follows the last "=", without wrappers
such as \text, with \frac and \sqrt in braces).

Multiple choice, in this order: the last one-line <solution> is one repeated letter, upper or lower
case; the gold letter four times in a row, in capitals, anywhere; the last box holds the letter; the
gold option's value occurs in the last 20 + its length characters; the last line without "*" is the
letter; the first parentheses of the last line hold it.

AMPS: constants of integration (+C), \left, \right and the like are removed. The first of these
that finds both equal decides: equal text of the normal forms, blanks aside; SymPy's lark grammar,
for some pair of readings where a text has several; math-verify's tolerant parser. Readings a and b
are equal if a - b is 0 or a number below 0.001 in absolute value. Else it must vanish at four
complex points, or where it has no value there, SymPy must simplify it to 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product, starmap
from typing import Any

from promptcodebook.base.worker import shared_worker
from promptcodebook.errors import DataError, MissingExtra

ALGEBRA = ("sympy", "lark", "math_verify")  # what comparing formulas takes
Ids = tuple[int | None, ...]  # of expressions; None for a piece that is not a number

# The scorer by the first part of the subtask.
_KINDS = {
    **{"amc": "choice", "smc": "choice", "aime": "aime"},
    **{"imo": "rearrangement", "usamo": "rearrangement", "amps": "amps"},
}
_AIME_TAIL = 50
_TAIL = 20
_LONGEST = 4000  # characters that are still compared by algebra; no gold is as long
_LIMITS_S = {"lark": 4.0, "math-verify": 3.0}  # in their order

_OPTION = re.compile(r"\\textbf\{\(([A-E])\)\s?\}")
_OPTION_END = re.compile(r"\\qquad|\$|\n")
_DIGITS = re.compile(r"\d+")
_DROPPED = ("$", "{", "}", "\\", "boxed", "<", ">")
# Sizes, thin spaces and line ends.
_DELETED = re.compile(
    r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]ig+[lr]?(?![a-zA-Z])|\\[,;]|\n"
)


@dataclass(frozen=True, slots=True)
class MathScore:
    """A score in [0, 1], and how it came about. `path` is the reading or comparison that decided,
    "" when nothing could be read; `read` the answer as it was read; `ids` of rearrangements."""

    score: float
    kind: str
    path: str
    read: str = ""
    ids: Ids = ()
    timed_out: bool = False


def score(question: str, ground_truth: str, subtask: str, answer: str) -> float:
    """The public score, 0 to 1; a fraction only for imo and usamo. Raises DataError when the
    subtask is unknown."""
    return math_score(question, ground_truth, subtask, answer).score


def math_score(question: str, ground_truth: str, subtask: str, answer: str) -> MathScore:
    """`score` with the path that decided."""
    kind = kind_of(subtask)
    answer = without_thoughts(answer)
    if kind == "choice":
        path = choice_path(question, ground_truth, answer)
        return MathScore(float(bool(path)), kind, path)
    if kind == "aime":
        at_end = ground_truth in answer[-_AIME_TAIL:]
        return MathScore(float(at_end), kind, "end of the answer" if at_end else "")
    if kind == "rearrangement":
        ids, path = read_ids(answer)
        gold = [int(piece) for piece in ground_truth.split(",")]
        return MathScore(closeness(ids, gold), kind, path, ids=ids)
    return _amps(ground_truth, answer)


def kind_of(subtask: str) -> str:
    """The scorer of a subtask: choice, aime, rearrangement or amps."""
    first, second, *_ = (*subtask.lower().split("_"), "")
    kind = "choice" if second == "amc" else _KINDS.get(first)
    if kind is None:
        hint = "known: amc..., updated_amc..., smc, aime..., imo, usamo, amps_hard..."
        raise DataError(f"unknown subtask {subtask!r} of LiveBench-Math", hint=hint)
    return kind


def without_thoughts(answer: str) -> str:
    """The answer without its <think>...</think> spans; one that is never closed stays."""
    *closed, rest = answer.split("</think>")
    kept = [s.split("<think>", 1)[0] if "<think>" in s else f"{s}</think>" for s in closed]
    return "".join((*kept, rest))


def _amps(ground_truth: str, answer: str) -> MathScore:
    response = answer
    for constant in ("+C", "+ C", "+c", "+ c"):  # of integration
        response = response.replace(constant, "")
    response = _DELETED.sub("", response).replace(r"\dfrac", r"\frac")
    response = response.replace(r"\tfrac", r"\frac").replace(r"\cdot", "*")
    gold = ground_truth.replace(r"\left", "").replace(r"\right", "")
    gold = gold.replace(" ^", "^").replace("\\ ", "*").strip()  # "\ " is a product
    read, path = parse_answer(response)
    if read is None:
        ended = response.removesuffix(".").endswith(ground_truth)
        return MathScore(float(ended), "amps", "end of the answer" if ended else "")
    if not read:
        return MathScore(0.0, "amps", path)
    if compact(read) in (compact(gold), compact(normalise(gold))):
        return MathScore(1.0, "amps", f"{path}, equal text", read)
    if len(read) > _LONGEST:
        return MathScore(0.0, "amps", f"{path}, too long to compare", read[:_LONGEST])
    return _by_algebra(gold, read, path)


def _by_algebra(gold: str, read: str, path: str) -> MathScore:
    decided, late = "not readable", False
    for name, limit_s in _LIMITS_S.items():
        function = f"{__name__}:same_by_{name.replace('-', '_')}"
        result = shared_worker().call(function, (gold, read), limit_s)
        if result.error.startswith("ModuleNotFoundError"):
            raise MissingExtra("comparing mathematical answers", "bench")
        late = late or result.timed_out
        if result.value is True:
            return MathScore(1.0, "amps", f"{path}, {name}", read, timed_out=late)
        if result.value is False:
            decided = name
        elif result.error:
            decided = "comparison failed"
    decided = "time limit" if late else decided
    return MathScore(0.0, "amps", f"{path}, {decided}", read, timed_out=late)


def last_boxed(text: str) -> str | None:
    r"""The content without "$", or None when there is no box or its braces do not close. A "\boxed
    " (with a blank) anywhere wins: what follows its last occurrence up to the next "$". Else the
    braces of the last \boxed decide, or of the last \fbox where there is no \boxed."""
    if r"\boxed " in text:
        return text.rsplit(r"\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind(r"\boxed" if r"\boxed" in text else r"\fbox")
    if start < 0:
        return None
    opened, depth = -1, 0
    for i in range(start, len(text)):
        if text[i] == "{":
            depth += 1
            opened = i if opened < 0 else opened
        elif text[i] == "}":
            depth -= 1
            if depth <= 0:
                return text[opened + 1 : i].replace("$", "") if opened >= 0 else None
    return None


def choice_path(question: str, letter: str, answer: str) -> str:
    """The first reading of `answer` that gives `letter` (A-E), or "" when none does."""
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
        for span in line.split("</solution>")[:-1]:
            _, opened, inside = span.partition("<solution>")
            found = inside if opened else found
    return found


def option_value(question: str, letter: str) -> str:
    """The text of the last option with that letter, without "$" and "~" at its ends; "FAILURE" if
    there is none that ends at a "\\qquad" or "$"."""
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
    repeated = re.findall(r"([A-E])\1{3,}", answer)
    if repeated:
        return str(repeated[-1])
    box = _boxed_letter(answer)
    return box.upper() if len(box) == 1 and box in "abcde" else ""


def _boxed_letter(answer: str) -> str:
    box = last_boxed(answer) or ""
    return box.replace("\\text{", "").replace("}", "").replace("\\", "").lower()


def closeness(ids: Sequence[int | None], gold: Sequence[int]) -> float:
    """1 - Levenshtein(ids, gold) / max(length): 1 for the right order, 0 for nothing in common."""
    row = list(range(len(gold) + 1))
    for i, a in enumerate(ids, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(gold, 1):
            kept = corner if a == b else corner + 1
            corner, row[j] = row[j], min(kept, row[j] + 1, row[j - 1] + 1)
    longest = max(len(ids), len(gold))
    return 1 - row[-1] / longest if longest else 1.0


def read_ids(answer: str) -> tuple[Ids, str]:
    """The ids of the first reading with a number in it, and its path; ((), "") when none has."""
    for path, read in _READINGS.items():
        ids = tuple(read(answer))
        if any(i is not None for i in ids):
            return ids, path
    return (), ""


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _answer_line(answer: str) -> list[int | None]:
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


def _first_number(text: str) -> int | None:
    digits = _DIGITS.search(text)
    return _integer(digits[0]) if digits else None


def _tail(answer: str) -> list[int | None]:
    if "answer:" not in answer.lower():
        return []
    ids = list[int | None]()
    for piece in answer.lower().rsplit("answer:", 1)[1].strip().split(","):
        ids.append(_first_number(piece))
        digits = _DIGITS.search(piece)
        if digits and piece[digits.end() :]:
            break
    return ids


_READINGS: dict[str, Callable[[str], list[int | None]]] = {
    "answer line": _answer_line,
    "box": lambda answer: [
        _integer(piece)
        for piece in (last_boxed(answer) or "").replace("\\text{", "").replace("}", "").split(",")
    ],
    "last line": lambda answer: [
        _first_number(piece) for piece in answer.strip().split("\n")[-1].split(",")
    ],
    "after the last answer": _tail,
}


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
    return (normalise(response[start + 1 : close].strip()), "formula") if start >= 0 else (None, "")


def normalise(text: str) -> str:
    """The normal form of an answer."""
    text = text.rsplit("=", 1)[-1].strip()
    for _ in range(4):  # wrappers may be nested
        text = re.sub(r"\\(?:text|textbf|overline|boxed)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\s*([^{}\\\s])\s*([^{}\\\s])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*([^{}\[\\\s])", r"\\sqrt{\1}", text).replace("$", "").strip()
    return text.replace(",", "") if re.fullmatch(r"-?[\d,]+(?:\.\d*)?", text) else text


def compact(text: str) -> str:
    """For comparing texts: without blanks, except between two digits."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text.strip())


# Whether two LaTeX texts mean the same quantity. Slow on bad input: called through a Worker.

_TOLERANCE = 0.001
_ZERO = 1e-50
# Where two expressions are compared, in hundredths: complex, so that sqrt(x^2) and x differ.
_POINTS = ((71, 7), (-53, 9), (37, -11), (-29, -13))


def same_by_lark(gold: str, answer: str) -> bool | None:
    """By SymPy's lark grammar: equal for some pair of readings; None when one cannot be read."""
    parser, tree = import_module("sympy.parsing.latex"), import_module("lark").Tree

    def read(text: str) -> list[Any]:
        try:
            found = parser.parse_latex(text, backend="lark")
        except Exception:  # what lark and SymPy raise on bad input is not documented
            return []
        return list(found.children) if isinstance(found, tree) else [found]

    return _same(read(gold), read(answer))


def same_by_math_verify(gold: str, answer: str) -> bool | None:
    """By math-verify's tolerant reading; None when one cannot be read."""
    math_verify, sympy = import_module("math_verify"), import_module("sympy")

    def read(text: str) -> list[Any]:
        # Without its plain-text reading, which would take a number out of any sentence; without a
        # time limit of its own, which would take over the alarm that ends an orphaned worker.
        options = {"fallback_mode": "no_fallback", "parsing_timeout": None}
        found = math_verify.parse(f"${text}$", [math_verify.LatexExtractionConfig()], **options)
        return [one for one in found if isinstance(one, sympy.Basic | sympy.MatrixBase)]

    return _same(read(gold), read(answer))


def _same(golds: list[Any], answers: list[Any]) -> bool | None:
    return any(starmap(_equal, product(golds, answers))) if golds and answers else None


def _equal(a: Any, b: Any) -> bool:
    try:
        if a == b:
            return True
        difference = a - b
        if difference == 0 or _small(difference):
            return True
        if (vanishes := _vanishes(difference, a)) is not None:
            return vanishes
        difference = import_module("sympy").simplify(difference)
        return bool(difference == 0) or _small(difference)
    except Exception:  # an equation, a set, a function without a value: no difference to take
        return False


def _small(difference: Any) -> bool:
    if difference.free_symbols:
        return False
    return bool(abs(complex(difference.evalf())) < _TOLERANCE)


def _vanishes(difference: Any, part: Any) -> bool | None:
    """Whether it is 0 at all of the points, next to `part`; None when it has no value there."""
    sympy = import_module("sympy")
    # Exact numbers, so that more digits can always be taken where large terms cancel.
    points = [sympy.Rational(a, 100) + sympy.I * sympy.Rational(b, 100) for a, b in _POINTS]
    symbols = sorted(difference.free_symbols, key=str)
    for shift in range(len(points)):
        at = {s: points[(i + shift) % len(points)] for i, s in enumerate(symbols)}
        value, beside = (e.subs(at).evalf(30, maxn=1000) for e in (difference, part))
        if not (value.is_number and value.is_finite and beside.is_number and beside.is_finite):
            return None  # a pole, or an unknown function
        if abs(value) > _ZERO * abs(beside):
            return False
    return True
