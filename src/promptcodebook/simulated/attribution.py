"""The simulated attribution: reads the critic's prose and lays each complaint at a part.

Advice that an active instinct holds and the prompt lost: rendering. A harmful instinct, or advice
that stands nowhere: instinct. Advice that another entry holds: routing. With a stated error rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from promptcodebook.simulated.critic import judged
from promptcodebook.simulated.mind import Mind, advice_clause
from promptcodebook.simulated.reading import Entry
from promptcodebook.simulated.words import content_stems, sentences

__all__ = ["blame", "critique_and_blame"]

_CHANNELS = ("rendering", "instinct", "routing")
_HARM = re.compile(r"\b(?:works? against|harms?|harmful|hurts?|misleads?|misleading)\b")
_IDLE = re.compile(r"\b(?:does not bear|irrelevant|unrelated|useless|not apply|off topic)\b")
_CROWDED = re.compile(r"\b(?:crowded|cluttered|too long|overloaded|wordy|buried)\b")
_LOST = re.compile(r"\b(?:lost|dropped|left out|blurred|omitted)\b")
_INDEX = re.compile(r"(?:instinct|strategy|entry|directive)?\s*\[?\b(\d{1,3})\b")


@dataclass(slots=True)
class _Blame:
    rendering: list[str] = field(default_factory=lambda: list[str]())
    instinct: dict[int, list[str]] = field(default_factory=lambda: dict[int, list[str]]())
    routing: list[str] = field(default_factory=lambda: list[str]())

    def lay(self, channel: str, text: str, index: int) -> None:
        if channel == "rendering":
            self.rendering.append(f"Keep this in the prompt: {text}")
        elif channel == "routing":
            self.routing.append(f"Choose the instinct that says so where it applies: {text}")
        else:
            self.instinct.setdefault(index, []).append(f"Its text must say: {text}")


def blame(mind: Mind) -> str:
    """The reply to a request to partition a verdict."""
    sections = mind.asked.reading.sections
    verdict = sections.get("verdict") or sections.get("feedback") or mind.asked.request.user
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
        instinct = {str(k): v for k, v in sorted(texts.items())}
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
    plain = "\n".join(f"{c}: {values[c]}" for c in _CHANNELS)
    return shape.fill(values, plain)


def _partitioned(mind: Mind, verdict: str) -> _Blame:
    found = _Blame()
    lexicon = mind.world.lexicon
    active = mind.asked.reading.active()
    seen: set[int] = set()
    for sentence in sentences(verdict):
        if _HARM.search(sentence):
            for index in _indices(sentence, active):
                found.lay("instinct", "less, as it does harm on such inputs.", index)
        elif _IDLE.search(sentence):
            found.routing.append(f"{sentence.rstrip('.')}.")
        elif _CROWDED.search(sentence):
            found.rendering.append("Leave out of the prompt what does not bear on the input.")
        else:
            for skill in sorted(lexicon.cued(sentence) - seen):
                seen.add(skill)
                _lay_advice(mind, found, sentence, skill)
    return found


def _indices(sentence: str, active: tuple[Entry, ...]) -> list[int]:
    known = {e.index for e in active}
    return [int(m) for m in _INDEX.findall(sentence) if int(m) in known]


def _lay_advice(mind: Mind, found: _Blame, sentence: str, skill: int) -> None:
    lexicon = mind.world.lexicon
    reading = mind.asked.reading
    active = reading.active()
    clause = advice_clause(mind, sentence, skill)
    index = _carrier(mind, active, clause)
    held = any(skill in lexicon.cued_in(e.text) for e in active)
    mine = {e.index for e in active}
    elsewhere = [
        e for e in reading.codebook() if e.index not in mine and skill in lexicon.cued_in(e.text)
    ]
    if mind.draw.unit("error", skill) < mind.settings.attribution_error:
        channel = _CHANNELS[int(mind.draw.unit("channel", skill) * 3)]
    elif held or (not active and _LOST.search(sentence)):
        channel = "rendering"
    elif elsewhere and active:
        channel = "routing"
    else:
        channel = "instinct"
    found.lay(channel, clause, index)


def _carrier(mind: Mind, active: tuple[Entry, ...], clause: str) -> int:
    """The active instinct to carry new advice: the one nearest in words, else the emptiest."""
    if not active:
        return 0
    words = content_stems(clause)
    lexicon = mind.world.lexicon

    def fit(entry: Entry) -> tuple[float, int, float]:
        near = len(words & content_stems(entry.text))
        held = len(lexicon.cued_in(entry.text))
        return (near if near > 1 else 0, -held, mind.draw.unit("carrier", entry.index))

    return max(active, key=fit).index
