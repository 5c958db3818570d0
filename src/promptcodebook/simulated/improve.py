"""`improve`: one rewrite for every caller, our updater and any other optimizer's reflection.

It takes up the advice in the feedback (orders, not sentences copied from inputs), within the scope
that the text already has, keeps to the cap that the request states, and may make things worse.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from promptcodebook.simulated.critic import wrong_claims
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.orders import Order
from promptcodebook.simulated.reading import asked_number, fenced
from promptcodebook.simulated.words import count_words, sentences
from promptcodebook.simulated.world import say

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
_OF_PART = re.compile(r"\b(keep this in the prompt|choose the instinct|look whether)\b", re.I)
_NEUTRAL = "Do what the request asks."
"""What is left of a text of which nothing can stay."""
_HARM = re.compile(r"\b(works against|harm)")


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
    asked = mind.asked.request.user.lower() + mind.asked.reading.system_frame
    caps = (asked_number(asked, pattern) for pattern in _CAPS)
    new = rewrite(mind, text, feedback, next((cap for cap in caps if cap is not None), None))
    if _FENCES_ASKED.search(mind.asked.request.user + mind.asked.request.system):
        new = f"```\n{new}\n```"
    return mind.asked.shape.fill({"prose": new}, new) if mind.asked.shape.json else new


def _found(mind: Mind) -> tuple[str, str]:
    """The present text and the feedback, wherever the request has put them."""
    user = mind.asked.request.user
    blocks = fenced(user)
    quoted = _QUOTED.findall(user)
    text = mind.section("text") or (blocks[0] if blocks else "") or mind.section("prompt")
    text = text or (quoted[0] if quoted else "")
    said = [mind.section(name) for name in ("feedback", "verdict", "reward")]
    feedback = "\n".join(filter(None, said)) or "\n".join(blocks[1:])
    return text.strip(), feedback or user.replace(text, " ")


def rewrite(mind: Mind, text: str, feedback: str, cap: int | None) -> str:
    """The text with the feedback's advice taken up, within `cap` words (None = no cap)."""
    units = _units(mind, text)
    bad = {o.skill for s in sentences(feedback) if _HARM.search(s) for o in mind.orders(s)}
    units = [u for u in units if not u.skills & bad]
    units = units or [_Unit(0, _NEUTRAL, frozenset())]
    line = max((u.line for u in units), default=-1)
    bulleted = text.rsplit("\n", 1)[-1].lstrip().startswith("- ") and "\n" in text
    taken = 0
    for sentence, skills in _advice(mind, text, feedback):
        if skills & bad or taken >= mind.settings.updater_uptake:
            continue
        taken += 1
        if sentence in text:
            continue
        # A new wording of an order takes the place of the old one, condition and all.
        units = [u for u in units if not u.skills & skills]
        line += 1 if bulleted else 0
        units.append(_Unit(max(line, 0), f"- {sentence}" if bulleted else sentence, skills, True))
    _lose(mind, units)
    while cap is not None and sum(count_words(u.text) for u in units) > cap and len(units) > 1:
        units.remove(_weakest(units))
    return _joined(units)


def _units(mind: Mind, text: str) -> list[_Unit]:
    found: list[_Unit] = []
    for number, line in enumerate(text.split("\n")):
        for piece in _UNIT.split(line) if line.strip() else [""]:
            skills = frozenset(o.skill for o in mind.orders(piece))
            found.append(_Unit(number, piece, skills))
    return found


def _joined(units: list[_Unit]) -> str:
    lines: dict[int, list[str]] = {}
    for unit in units:
        lines.setdefault(unit.line, []).append(unit.text)
    return "\n".join(" ".join(parts) for _, parts in sorted(lines.items())).strip()


def _advice(mind: Mind, text: str, feedback: str) -> list[tuple[str, frozenset[int]]]:
    """What the feedback wants said, the most often named first: sentences and their skills."""
    named: Counter[int] = Counter()
    said: dict[int, str] = {}
    for sentence in sentences(feedback):
        for order in mind.orders(sentence) if not _HARM.search(sentence) else ():
            named[order.skill] += 1
            said.setdefault(order.skill, _worded(mind, order, text, sentence))
    if not named:
        _read_reports(mind, feedback, named, said)
    order = sorted(named, key=lambda k: (-named[k], mind.draw.unit("order", k)))
    return [(said[k], frozenset((k,))) for k in order]


def _worded(mind: Mind, order: Order, text: str, sentence: str) -> str:
    """Advice as it goes into the text: under its own condition, else under the text's."""
    if _OF_PART.search(sentence):
        return f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}."
    when = order.when
    if when is None:
        scoped = [o.when for o in mind.orders(text) if o.when is not None]
        when = scoped[0] if scoped else None
    condition = min(when.skills, default=None) if when is not None else None
    phrase = int(2 * mind.draw.unit("way", order.skill))
    return say(mind.world.skills, order.skill, condition, phrase)


def _read_reports(mind: Mind, feedback: str, named: Counter[int], said: dict[int, str]) -> None:
    """Raw reports of what failed: the advice must be found here, as a critic does, and may be
    wrong in the same way."""
    for claim in dict.fromkeys(wrong_claims(feedback)):
        shown = mind.world.skills.shown(claim)
        if not shown:
            continue
        skill = mind.pick(shown, claim)
        if mind.happens(mind.settings.capacity, "recognise", claim):
            advice = say(mind.world.skills, skill, skill, int(2 * mind.draw.unit("way", claim)))
        else:
            advice = mind.mislead(shown, shown, claim)
        for order in mind.orders(advice):
            named[order.skill] += 1
            said.setdefault(order.skill, advice)


def _lose(mind: Mind, units: list[_Unit]) -> None:
    """At temperature, now and then a sentence goes missing; never the only one."""
    old = [u for u in units if not u.new and u.text.strip()]
    if len(old) > 1 and mind.happens(mind.settings.updater_loss * mind.temperature, "lose"):
        units.remove(old[mind.pick(range(len(old)), "which")])


def _weakest(units: list[_Unit]) -> _Unit:
    """The sentence to give up for the cap: one without an order first, then what is new: an order
    that nobody complained of stays."""
    long = sum(count_words(u.text) for u in units) > 100

    def worth(place: int) -> tuple[bool, bool, bool, int]:
        unit = units[place]
        # A long directive keeps its opening: it says what the role is.
        return (long and place == 0, bool(unit.skills), not unit.new, place)

    return units[min(range(len(units)), key=worth)]
