"""The simulated encoder: chooses instincts whose condition or words fit the input's.

It sees surface words through noise, not what the executor lacks; success rates, criteria that name
an order, and a mild preference for low indices weigh in.
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
_INDEX_PREFERENCE, _JITTER = 0.004, 0.08
"""What each place further down the list costs an instinct, and the noise on its relevance."""


def route(mind: Mind) -> str:
    """The reply to a routing request: S distinct indices of the listed instincts."""
    asked = mind.asked
    frame = asked.reading.frame
    numbers = (asked_number(frame, pattern) for pattern in _HOW_MANY)
    wanted = next((n for n in numbers if n is not None), 4)
    chosen = sorted(e.index for e in _ranked(mind, asked.reading.codebook())[:wanted])
    values: dict[str, object] = {
        "constraints": [s for s in sentences(asked.input) if mind.world.skills.shown(s)][:4],
        "indices": chosen,
        "prose": "These come closest to what the input asks for.",
    }
    return asked.shape.fill(values, ", ".join(map(str, chosen)))


def seen_words(mind: Mind, text: str) -> frozenset[str]:
    """The input's content stems, some of them overlooked (the encoder's noise)."""
    noise = mind.settings.encoder_noise
    of = keyed_int(mind.draw.noise_seed, mind.draw.sample, text)
    return frozenset(w for w in content_stems(text) if _unit(of, w) >= noise)


def _unit(of: int, word: str) -> float:
    """A number in [0, 1) decided by both arguments (FNV-1a): cheap, as each word asks for one."""
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
    settings, problem = mind.settings, mind.problem
    words = seen_words(mind, mind.asked.input)
    spread = Counter(w for e in entries for w in content_stems(e.text))
    called = {o.skill for o in mind.noted(mind.asked.request.system, "choose the instinct")}

    def score(place: int, entry: Entry) -> float:
        value = overlap(words, entry.text, spread, len(entries))
        value += settings.success_weight * (0.5 if entry.rate is None else entry.rate)
        value += _JITTER * mind.draw.unit("jitter", entry.index) - _INDEX_PREFERENCE * place
        fits = {
            o.skill
            for o in mind.orders(entry.text)
            if o.when is not None and o.applies(problem.shown, words)
        }
        if fits and not mind.happens(settings.encoder_noise, "overlook", entry.index):
            value += 1.0
        return value + (0.5 if called & fits else 0.0)

    scored = [(score(place, e), -place, e) for place, e in enumerate(entries)]
    return [e for _, _, e in sorted(scored, key=lambda s: s[:2], reverse=True)]
