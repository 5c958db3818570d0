"""The simulated encoder: chooses instincts whose words look like the input's.

It sees surface words through noise, not the table of needed skills; success rates, criteria that
speak of a skill, and a mild preference for low indices weigh in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.reading import Entry, asked_number
from promptcodebook.simulated.words import content_stems, sentences

__all__ = ["overlap", "route", "seen_words"]

_HOW_MANY = (
    r"exactly\s+#\b",
    r"\b(?:select|choose|pick|name|take|shortlist)\s+(?:out\s+|the\s+|any\s+|up to\s+)?"
    r"(?:best\s+|top\s+)?#\b",
    r"\b#\s+(?:different|distinct|best|most|of the|of these|indices|integers|numbers)",
)


def route(mind: Mind) -> str:
    """The reply to a routing request: S distinct indices of the listed instincts."""
    asked = mind.asked
    entries = asked.reading.codebook()
    wanted = _how_many(asked.reading.frame)
    chosen = sorted(e.index for e in _ranked(mind, entries)[:wanted])
    demands = [s for s in sentences(asked.input) if mind.world.lexicon.about(s)][:4]
    analysis = "These come closest to what the input asks for."
    values: dict[str, object] = {
        "constraints": demands,
        "indices": chosen,
        "prose": analysis,
    }
    return asked.shape.fill(values, ", ".join(map(str, chosen)))


def _how_many(frame: str) -> int:
    for pattern in _HOW_MANY:
        number = asked_number(frame, pattern)
        if number is not None:
            return number
    return 4


def seen_words(mind: Mind, text: str) -> frozenset[str]:
    """The input's content stems, some of them overlooked (the encoder's noise)."""
    noise = mind.settings.encoder_noise
    words = content_stems(text)
    if noise <= 0.0:
        return words
    of = keyed_int(mind.draw.world_seed, mind.draw.sample, text)
    # One number per word, mixed cheaply: this runs for every word of every input.
    return frozenset(w for w in words if (hash_unit(of, w)) >= noise)


def hash_unit(of: int, word: str) -> float:
    """A number in [0, 1) decided by both arguments (FNV-1a over the word's characters)."""
    state = of & 0xFFFFFFFFFFFFFFFF
    for letter in word:
        state = ((state ^ ord(letter)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    state ^= state >> 29
    return ((state * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF) / 2**64


def overlap(words: frozenset[str], text: str, weight: Counter[str], count: int) -> float:
    """How much a text's words look like the given ones; words that stand everywhere count less."""
    own = content_stems(text)
    shared = words & own
    if not shared:
        return 0.0
    total = sum(math.log((count + 1) / (weight[w] + 0.5)) for w in shared)
    return max(0.0, total) / math.sqrt(4 + len(own))


def _ranked(mind: Mind, entries: Sequence[Entry]) -> list[Entry]:
    settings, draw = mind.settings, mind.draw
    lexicon = mind.world.lexicon
    words = seen_words(mind, mind.asked.input)
    spread = Counter(w for e in entries for w in content_stems(e.text))
    called = lexicon.cued_in(mind.asked.reading.system_frame) & lexicon.about_in(mind.asked.input)

    def score(place: int, entry: Entry) -> float:
        value = overlap(words, entry.text, spread, len(entries))
        value += settings.success_weight * (0.5 if entry.rate is None else entry.rate)
        value -= settings.index_preference * place
        value += settings.encoder_jitter * draw.unit("jitter", entry.index)
        if called and called & lexicon.cued_in(entry.text):
            value += settings.criteria_weight
        return value

    scored = [(score(place, e), -place, e) for place, e in enumerate(entries)]
    return [e for _, _, e in sorted(scored, key=lambda s: s[:2], reverse=True)]
