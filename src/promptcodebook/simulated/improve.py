"""`improve`: one rewrite for every caller, our updater and any other optimizer's reflection.

It finds the present text and the feedback in the request, takes up the advice, keeps to the cap
that the request states (no other cap), and sometimes loses something at temperature.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from promptcodebook.simulated.critic import negative_claims
from promptcodebook.simulated.mind import Mind, advice_clause, advice_for
from promptcodebook.simulated.reading import asked_number, fenced
from promptcodebook.simulated.words import count_words, sentences

__all__ = ["improve", "rewrite"]

_CAPS = (
    r"(?:at most|no more than|within|limit of|maximum of|up to|under|below|cap of|exceed)"
    r"\s+#\s+words",
    r"#\s+words\s+(?:at most|or fewer|or less|maximum)",
    r"#-word\s+(?:limit|cap|maximum)",
)
_FENCES_ASKED = re.compile(r"(within|inside|between|in)\s+(a\s+)?(```|triple back)")
_UNIT = re.compile(r"(?<=[.!?])\s+")
_QUOTED = re.compile(r"[\"“]([^\"“”]{20,})[\"”]")


@dataclass(slots=True)
class _Unit:
    """One sentence of the text, on its line."""

    line: int
    text: str
    skills: frozenset[int]
    new: bool = False


def improve(mind: Mind) -> str:
    """The reply to a request to rewrite a text in the light of feedback."""
    text, feedback = _found(mind)
    cap = _cap(mind.asked.request.user.lower() + mind.asked.reading.system_frame)
    new = rewrite(mind, text, feedback, cap)
    if _FENCES_ASKED.search(mind.asked.request.user + mind.asked.request.system):
        new = f"```\n{new}\n```"
    return mind.asked.shape.fill({"prose": new}, new) if mind.asked.request.schema else new


def _found(mind: Mind) -> tuple[str, str]:
    """The present text and the feedback, wherever the request has put them."""
    sections = mind.asked.reading.sections
    user = mind.asked.request.user
    blocks = fenced(user)
    quoted = _QUOTED.findall(user)
    text = sections.get("text") or (blocks[0] if blocks else "") or sections.get("prompt", "")
    text = text or (quoted[0] if quoted else "")
    said = [sections.get(name, "") for name in ("feedback", "verdict", "reward")]
    feedback = "\n".join(filter(None, said)) or "\n".join(blocks[1:])
    return text.strip(), feedback or user.replace(text, " ")


def _cap(asked: str) -> int | None:
    for pattern in _CAPS:
        number = asked_number(asked, pattern)
        if number is not None:
            return number
    return None


def rewrite(mind: Mind, text: str, feedback: str, cap: int | None) -> str:
    """The text with the feedback's advice taken up, within `cap` words (None = no cap)."""
    units = _units(mind, text)
    units = [u for u in units if not _to_go(mind, u, feedback)] or units
    held = frozenset[int]().union(*(u.skills for u in units))
    advice = _advice(mind, feedback)
    line = max((u.line for u in units), default=-1)
    bulleted = text.rsplit("\n", 1)[-1].lstrip().startswith("- ") and "\n" in text
    taken = 0
    for skill, clause in advice:
        if skill in held or taken >= mind.settings.updater_uptake:
            continue
        line += 1 if bulleted else 0
        said = f"- {clause}" if bulleted else clause
        cued = mind.world.lexicon.cued(clause)
        units.append(_Unit(max(line, 0), said, cued, new=True))
        held |= cued
        taken += 1
    _lose(mind, units)
    wanted = Counter(skill for skill, _ in advice)
    while cap is not None and sum(count_words(u.text) for u in units) > cap and len(units) > 1:
        units.remove(_weakest(units, wanted))
    return _joined(units)


def _units(mind: Mind, text: str) -> list[_Unit]:
    units: list[_Unit] = []
    for number, line in enumerate(text.split("\n")):
        for piece in _UNIT.split(line) if line.strip() else [""]:
            units.append(_Unit(number, piece, mind.world.lexicon.cued(piece)))
    return units


def _joined(units: list[_Unit]) -> str:
    lines: dict[int, list[str]] = {}
    for unit in units:
        lines.setdefault(unit.line, []).append(unit.text)
    return "\n".join(" ".join(parts) for _, parts in sorted(lines.items())).strip()


def _to_go(mind: Mind, unit: _Unit, feedback: str) -> bool:
    """Whether the feedback calls for dropping this sentence."""
    harm = "harm" in feedback or "works against" in feedback
    return harm and bool(mind.world.lexicon.against_in(unit.text)) and not unit.skills


def _advice(mind: Mind, feedback: str) -> list[tuple[int, str]]:
    """Skills that the feedback speaks for, most often named first, each with a clause saying it."""
    lexicon = mind.world.lexicon
    named: Counter[int] = Counter()
    clauses: dict[int, str] = {}
    for sentence in sentences(feedback):
        for skill in sorted(lexicon.cued(sentence)):
            named[skill] += 1
            clauses.setdefault(skill, advice_clause(mind, sentence, skill))
    if not named:
        _read_reports(mind, feedback, named, clauses)
    order = sorted(named, key=lambda k: (-named[k], mind.draw.unit("order", k)))
    return [(k, clauses[k]) for k in order]


def _read_reports(mind: Mind, feedback: str, named: Counter[int], clauses: dict[int, str]) -> None:
    """Raw reports of what failed: the model must find the advice itself, as a critic does."""
    for claim in negative_claims(feedback):
        for skill in sorted(mind.world.lexicon.about(claim)):
            if mind.draw.unit("recognise", claim, skill) < mind.settings.capacity:
                named[skill] += 1
                clauses.setdefault(skill, advice_for(mind, skill, "improve"))


def _lose(mind: Mind, units: list[_Unit]) -> None:
    """At temperature, now and then a sentence goes missing; never the only one."""
    old = [u for u in units if not u.new and u.text.strip()]
    if len(old) > 1 and mind.draw.unit("lose") < mind.settings.updater_loss * mind.temperature:
        units.remove(old[int(mind.draw.unit("which") * len(old))])


def _weakest(units: list[_Unit], wanted: Counter[int]) -> _Unit:
    """The sentence to give up for the cap: without advice first, then the oldest unasked for."""
    long = sum(count_words(u.text) for u in units) > 100

    def worth(place_unit: tuple[int, _Unit]) -> tuple[bool, bool, bool, int]:
        place, unit = place_unit
        # A long directive keeps its opening: it says what the role is.
        opening = long and place == 0
        asked = any(wanted[s] for s in unit.skills)
        return (opening, unit.new, bool(unit.skills) and (asked or not unit.new), place)

    return min(enumerate(units), key=worth)[1]
