"""A hidden skill, and how a text brings it up. Never an id: only words and their stems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from promptcodebook.simulated.words import sentences, stems

__all__ = ["Lexicon", "Skill"]

_WINDOW = 10
"""Words within which the stems of one cue must stand."""


@dataclass(frozen=True, slots=True)
class Skill:
    """Something the simulated executor can do and shows only when told.

    `cues`: each a few words whose stems, near one another in one sentence of a prompt, bring the
    skill out. `topics`: the same for what shows in an input that needs it, or in a report of its
    failure. `advice`: ways of saying it that a critic or an optimizer may use; each cues the skill.
    `against`: what a prompt must not say, as it works against the skill. A `general` skill is
    needed by most inputs and helps with every demand.
    """

    name: str
    cues: tuple[str, ...]
    topics: tuple[str, ...]
    advice: tuple[str, ...]
    against: tuple[str, ...] = ()
    general: bool = False


class _Phrases:
    """Phrases of several owners, found in a sentence by their stems."""

    def __init__(self, owned: Sequence[Sequence[str]]) -> None:
        self._phrases = [
            (owner, frozenset(stems(phrase)))
            for owner, phrases in enumerate(owned)
            for phrase in phrases
        ]
        self._vocabulary = frozenset(s for _, phrase in self._phrases for s in phrase)

    def find(self, sentence: str) -> frozenset[int]:
        """The owners with a phrase in the sentence."""
        said = [s for s in stems(sentence)]
        known = self._vocabulary.intersection(said)
        found: set[int] = set()
        for owner, phrase in self._phrases:
            if owner not in found and phrase <= known and _near(said, phrase):
                found.add(owner)
        return frozenset(found)


def _near(said: Sequence[str], phrase: frozenset[str]) -> bool:
    """All stems of the phrase within one window of the sentence."""
    last: dict[str, int] = {}
    for place, word in enumerate(said):
        if word in phrase:
            last[word] = place
            if len(last) == len(phrase) and place - min(last.values()) < _WINDOW:
                return True
    return False


class Lexicon:
    """Reads skills out of texts: what a prompt cues, what an input or a report is about."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        cues = _Phrases([s.cues for s in skills])
        topics = _Phrases([s.topics for s in skills])
        against = _Phrases([s.against for s in skills])
        self._cued = lru_cache(maxsize=8192)(cues.find)
        self._about = lru_cache(maxsize=8192)(topics.find)
        self._against = lru_cache(maxsize=4096)(against.find)

    def cued(self, sentence: str) -> frozenset[int]:
        """Skills that one sentence of a prompt brings out."""
        return self._cued(sentence)

    def cued_in(self, text: str) -> frozenset[int]:
        """Skills that a whole prompt brings out."""
        return frozenset[int]().union(*(self._cued(s) for s in sentences(text)))

    def about(self, sentence: str) -> frozenset[int]:
        """Skills whose need shows in one sentence of an input or a report."""
        return self._about(sentence)

    def about_in(self, text: str) -> frozenset[int]:
        """Skills whose need shows in a whole input."""
        return frozenset[int]().union(*(self._about(s) for s in sentences(text)))

    def against_in(self, text: str) -> frozenset[int]:
        """Skills that a text works against."""
        return frozenset[int]().union(*(self._against(s) for s in sentences(text)))
