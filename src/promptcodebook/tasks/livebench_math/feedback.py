"""What the critic is told about an answer: right or wrong, the right answer, and what is amiss."""

from __future__ import annotations

import re
from collections.abc import Callable

from promptcodebook.tasks.livebench_math.choice import option_value, said_letter
from promptcodebook.tasks.livebench_math.rearrangement import Ids
from promptcodebook.tasks.livebench_math.score import Verdict, without_thoughts

__all__ = ["feedback"]

_SHOWN = 300
_GAPS_SHOWN = 8


def feedback(question: str, gold: str, answer: str, found: Verdict) -> str:
    """One short paragraph on `answer`, as `found` judged it."""
    if found.score == 1.0:
        return f"Right: the answer is {_short(gold)} (read from: {found.path})."
    return _WRONG[found.kind](question, gold, without_thoughts(answer), found)


def _choice(question: str, gold: str, answer: str, found: Verdict) -> str:
    value = option_value(question, gold)
    named = f"{gold}, which is {_short(value)}" if value != "FAILURE" else gold
    letter = said_letter(answer)
    if letter and letter != gold:
        other = option_value(question, letter)
        meant = "" if other == "FAILURE" else f" ({_short(other)})"
        return f"Wrong: the answer chose {letter}{meant}; the right choice is {named}."
    return (
        f"No choice could be read from the answer; the right choice is {named}. "
        f"The letter must be written five times without blanks: {gold * 5}."
    )


def _aime(question: str, gold: str, answer: str, found: Verdict) -> str:
    if gold in answer:
        return (
            f"The right answer {gold} occurs, but not at the end: the three digits must be the "
            "last part of the response."
        )
    plain = str(int(gold))
    if plain != gold and re.search(rf"(?<!\d){plain}(?!\d)", answer[-50:]):
        return (
            f"The value {plain} is right, but it must be given as exactly three digits, with "
            f"zeros in front: {gold}."
        )
    return f"Wrong: the right answer is {gold}, as the last part of the response."


def _rearrangement(question: str, gold: str, answer: str, found: Verdict) -> str:
    order = [int(piece) for piece in gold.split(",")]
    right = f"The right order is {', '.join(map(str, order))}."
    if not found.path:
        return (
            "No list of expression numbers could be read: the last line must be "
            f"'Answer: ' and the numbers, separated by commas. {right}"
        )
    said = [f"{found.score:.0%} of the full score by edit distance. {right}"]
    if len(found.ids) != len(order):
        said.append(f"The answer gave {len(found.ids)} numbers for {len(order)} gaps.")
    said.append(_gaps(found.ids, order))
    return " ".join(part for part in said if part)


def _gaps(ids: Ids, order: list[int]) -> str:
    wrong = [
        f"gap {gap} needs expression {wanted}, given was {'no number' if given is None else given}"
        for gap, (given, wanted) in enumerate(zip(ids, order, strict=False), 1)
        if given != wanted
    ]
    more = len(wrong) - _GAPS_SHOWN
    shown = "; ".join(wrong[:_GAPS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"Wrong places: {shown}." if wrong else ""


def _amps(question: str, gold: str, answer: str, found: Verdict) -> str:
    right = f"The right answer is {_short(gold)}."
    if not found.read:
        return (
            "No result could be read: the final result must stand in \\boxed{...}, "
            f"and nothing but it. {right}"
        )
    if found.timed_out:
        return f"{_short(found.read)} could not be shown to be right in the time allowed. {right}"
    if found.path.endswith("not readable"):
        return (
            f"{_short(found.read)} could not be read as a formula, so it counts as wrong. {right}"
        )
    return f'Wrong: the answer was read as "{_short(found.read)}". {right}'


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


_WRONG: dict[str, Callable[[str, str, str, Verdict], str]] = {
    "choice": _choice,
    "aime": _aime,
    "rearrangement": _rearrangement,
    "amps": _amps,
}
