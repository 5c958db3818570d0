"""The simulated attribution: reads the critic's prose and lays each piece of advice at a part.

Advice that an active instinct gives and the prompt lost: rendering. Advice that another entry
gives: routing. Advice that stands nowhere: the instinct about the same matter, else what is
missing. An error lays it at a part drawn at random, where it is read as being about that part's own
matter: the condition is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from promptcodebook.simulated.critic import judged
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.orders import Order
from promptcodebook.simulated.reading import Entry
from promptcodebook.simulated.words import sentences
from promptcodebook.simulated.world import say

__all__ = ["blame", "critique_and_blame"]

_CHANNELS = ("rendering", "instinct", "routing")
_HARM = re.compile(r"\b(?:works? against|harms?|harmful|hurts?|misleads?|misleading)\b")
_CROWDED = re.compile(r"\b(?:crowded|cluttered|too long|contradicts)\b")
_INDEX = re.compile(r"\b(\d{1,3})\b")
MISSING = "missing"


@dataclass(slots=True)
class _Blame:
    rendering: list[str] = field(default_factory=lambda: list[str]())
    instinct: dict[str, list[str]] = field(default_factory=lambda: dict[str, list[str]]())
    routing: list[str] = field(default_factory=lambda: list[str]())

    def lay(self, channel: str, advice: str, index: str) -> None:
        if channel == "rendering":
            self.rendering.append(f"Keep this in the prompt: {advice}")
        elif channel == "routing":
            self.routing.append(f"Choose the instinct that says so: {advice}")
        else:
            self.instinct.setdefault(index, []).append(f"Its text must say: {advice}")


def blame(mind: Mind) -> str:
    """The reply to a request to partition a verdict."""
    verdict = mind.section("verdict") or mind.section("feedback") or mind.asked.request.user
    return _reply(mind, _partitioned(mind, verdict), {})


def critique_and_blame(mind: Mind) -> str:
    """The reply to a request for verdict and partition in one (Eq. 8)."""
    found = judged(mind)
    values: dict[str, object] = {"score": found.score, "prose": found.feedback}
    return _reply(mind, _partitioned(mind, found.feedback), values)


def _reply(mind: Mind, found: _Blame, values: dict[str, object]) -> str:
    shape = mind.asked.shape
    key = next((k for k in shape.keys if shape.meaning(k) == "instinct"), "")
    texts = {k: " ".join(v) for k, v in found.instinct.items()}
    instinct: object = " ".join(texts.values())
    if key in shape.objects:
        instinct = dict(sorted(texts.items()))
    elif key in shape.lists:
        instinct = [{"index": k, "text": v} for k, v in sorted(texts.items())]
    blamed = [bool(found.rendering), bool(texts), bool(found.routing)]
    part = round(0.6 / max(1, sum(blamed)), 2)
    severity = {c: part if hit else 0.0 for c, hit in zip(_CHANNELS, blamed, strict=True)}
    values = {
        **values,
        "rendering": " ".join(found.rendering),
        "instinct": instinct,
        "routing": " ".join(found.routing),
        "severity": severity,
    }
    return shape.fill(values, "\n".join(f"{c}: {values[c]}" for c in _CHANNELS))


def _partitioned(mind: Mind, verdict: str) -> _Blame:
    found = _Blame()
    active = mind.asked.reading.active()
    for sentence in sentences(verdict):
        if _HARM.search(sentence):
            _lay_harm(found, sentence, active)
        elif _CROWDED.search(sentence):
            found.rendering.append("Leave out of the prompt what does not bear on the input.")
        else:
            for order in mind.orders(sentence):
                _lay(mind, found, order, active)
    return found


def _lay_harm(found: _Blame, sentence: str, active: tuple[Entry, ...]) -> None:
    """What an active instinct orders to the harm of an input, else what the prompt does."""
    said = f"It works against such inputs by: {sentence.rsplit(': ', 1)[-1].rstrip('.')}."
    named = {str(e.index) for e in active}.intersection(_INDEX.findall(sentence))
    for index in sorted(named):
        found.instinct.setdefault(index, []).append(said)
    if not named:
        found.rendering.append(said)


def _lay(mind: Mind, found: _Blame, order: Order, active: tuple[Entry, ...]) -> None:
    phrase = int(2 * mind.draw.unit("way", order.skill))
    skills = mind.world.skills
    if mind.happens(mind.settings.attribution_error, "error", order.skill):
        channel = _CHANNELS[mind.pick(range(3), "channel", order.skill)]
        places = [str(e.index) for e in active] or [MISSING]
        index = places[mind.pick(range(len(places)), "index", order.skill)]
        found.lay(channel, say(skills, order.skill, None, phrase), index)
        return
    when = min(order.when.skills, default=None) if order.when is not None else None
    advice = say(skills, order.skill, when, phrase)
    holders = [e for e in active if _gives(mind, e, order)]
    elsewhere = [
        e for e in mind.asked.reading.codebook() if e not in active and _gives(mind, e, order)
    ]
    if holders:
        found.lay("rendering", "every order of the chosen strategies with its condition.", "")
    elif elsewhere and active:
        found.lay("routing", advice, "")
    else:
        found.lay("instinct", advice, _carrier(mind, active, order))


def _gives(mind: Mind, entry: Entry, order: Order) -> bool:
    """Whether an instinct gives this order under this condition."""
    return any(o.skill == order.skill and o.when == order.when for o in mind.orders(entry.text))


def _carrier(mind: Mind, active: tuple[Entry, ...], order: Order) -> str:
    """The active instinct about the same matter; else one that orders nothing; else none."""
    for entry in active:
        if any(o.skill == order.skill for o in mind.orders(entry.text)):
            return str(entry.index)
    idle = [e.index for e in active if not mind.orders(e.text)]
    if idle:
        return str(idle[mind.pick(range(len(idle)), "carrier", order.skill)])
    return MISSING
