"""Olympiad proofs with masked formulas: the order of the formulas by edit distance."""

from __future__ import annotations

import re
from collections.abc import Sequence

from promptcodebook.tasks.livebench_math.boxed import last_boxed

__all__ = ["Ids", "closeness", "read_ids"]

Ids = list[int | None]
"""Expression ids in order; None stands for a piece that is no number."""

_DIGITS = re.compile(r"\d+")
_DROPPED = ("$", "{", "}", "\\", "boxed", "<", ">")


def read_ids(answer: str) -> tuple[Ids, str]:
    """The ids that an answer gives, and the path that read them; ([], "") when none did.

    A reading that finds nothing but pieces that are no numbers is passed over.
    """
    for path, read in (
        ("answer line", _answer_line),
        ("box", _box),
        ("last line", _last_line),
        ("after the last answer", _tail),
    ):
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
    said = _plain(lines[at].split("answer:")[1])
    if not said and at + 1 < len(lines):
        said = _plain(lines[at + 1])
    return [_answer_piece(piece) for piece in said.split(",")]


def _plain(text: str) -> str:
    return text.replace("**", "").replace(".", "").strip()


def _answer_piece(piece: str) -> int | None:
    word = piece.strip().split(" ")[-1]
    for mark in _DROPPED:
        word = word.replace(mark, "")
    return _integer(word)


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
