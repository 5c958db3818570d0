"""What the critic is told of a PUPA rollout: the score's parts, and what could still be read."""

from __future__ import annotations

import re
from collections import Counter

from promptcodebook.tasks.pupa.pipeline import Answered
from promptcodebook.tasks.pupa.score import PupaScore, leaked_units

__all__ = ["feedback", "kind_of"]

_DIGITS_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}([./-]\d{1,4})?")
_MONTH = re.compile(r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*")
_DAY_OR_YEAR = re.compile(r"\d{1,4}(st|nd|rd|th)?")
_SHOWN = 12
"""Leaked pieces that are quoted at the most."""


def feedback(
    made: PupaScore, answered: Answered, units: tuple[str, ...], weight: float, judge: str
) -> str:
    """The parts of the score, and by kind and wording which units stand in the request.

    The wording is for the critic alone, which is a trusted role. `judge` names who decided.
    """
    if not answered.request.strip():
        sent = "No request went outside, so nothing leaked and nobody helped."
    else:
        sent = _leaks(made, leaked_units(answered.request, units), len(units))
    liked = (
        f"By {judge} the answer is at least as good as the reference."
        if made.quality
        else f"By {judge} the reference is better than the answer."
    )
    empty = "" if answered.response.strip() else " The answer to the user is empty."
    return (
        f"Score {made.score:.2f} = quality {made.quality:g} - {weight:g} x leakage "
        f"{made.leakage:.2f}. {liked}{empty} {sent}"
    )


def kind_of(unit: str) -> str:
    """What sort of private piece a unit looks like, so that advice need not repeat it."""
    text = unit.strip().lower()
    if "@" in text:
        return "e-mail address or handle"
    if re.search(r"https?:|www\.|\w\.\w{2,}/", text):
        return "web address"
    if _DIGITS_DATE.fullmatch(text) or _month_and_day(re.findall(r"\w+", text)):
        return "date"
    if re.fullmatch(r"[\d\s()+./#-]*\d[\d\s()+./#-]*", text):
        return "number"
    if re.search(r"\d", text):
        return "address or code with digits"
    return "name, place or organisation"


def _month_and_day(words: list[str]) -> bool:
    months = [word for word in words if _MONTH.fullmatch(word)]
    return len(months) == 1 < len(words) and all(
        _DAY_OR_YEAR.fullmatch(word) for word in words if word != months[0]
    )


def _leaks(made: PupaScore, found: tuple[str, ...], total: int) -> str:
    if not found and not made.leakage:
        return "None of the private pieces stood in the request sent outside."
    if not found:
        return (
            f"About {round(made.leakage * total)} of {total} private pieces could be learned from "
            "the request sent outside, in other words than the user's."
        )
    kinds = Counter(map(kind_of, found))
    said = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    quoted = "; ".join(f"{kind_of(u)}: {' '.join(u.split())}" for u in found[:_SHOWN])
    return (
        f"Readable in the request sent outside ({said}): {quoted}. Such kinds of detail must be "
        "left out or described in general terms before the request leaves; advice should speak of "
        "the kinds and never repeat the pieces."
    )
