"""Orders: what a prompt tells its reader to do, and under which condition.

An order is a clause that opens with an imperative, reads as language (not as a list of words) and
is about a skill. "When a title is asked for, put one ..." is conditional; "put a title ..." is
obeyed everywhere; "as many bullets as asked" defers to the request and so is conditional too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from promptcodebook.simulated.skills import Skills
from promptcodebook.simulated.words import (
    content_stems,
    count_words,
    pattern,
    says,
    sentences,
    word_list,
)

__all__ = ["Condition", "Order", "OrderReader"]

_CLAUSE = re.compile(r",\s+(?:and|then|and then)\s+|;\s+")
_NOT = re.compile(r"^(?:never|do not|don't|must not|you must not)\s+", re.IGNORECASE)
_GLUED = 0.2
"""Share of little words that language has and a list of cue words has not."""
_MOST = 2
"""Skills that one clause can be an order about; what names more is a list."""
_NUMBER = re.compile(r"\b(\d{1,4})\b")


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds where one of `skills` shows in the input; by its words where it names none."""

    skills: frozenset[int]
    stems: frozenset[str]

    def holds(self, shown: frozenset[int], words: frozenset[str]) -> bool:
        if self.skills:
            return bool(self.skills & shown)
        return bool(self.stems) and 2 * len(self.stems & words) >= len(self.stems)


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `when` None = obeyed on every input; `against` = an order not to do it; `number`
    is one it insists on; `text` is the sentence it stands in."""

    skill: int
    when: Condition | None
    text: str
    against: bool = False
    number: int | None = None

    def applies(self, shown: frozenset[int], words: frozenset[str]) -> bool:
        return self.when is None or self.when.holds(shown, words)


class OrderReader:
    """Reads the orders in texts, for one table of skills."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills
        self.of_sentence = lru_cache(maxsize=16384)(self._of_sentence)
        self.of = lru_cache(maxsize=4096)(self._of)
        self._ordered = lru_cache(maxsize=8192)(self._order_clause)

    def _of(self, text: str) -> tuple[Order, ...]:
        """The orders of a whole text, in order."""
        return tuple(order for s in sentences(text) for order in self.of_sentence(s))

    def _of_sentence(self, sentence: str) -> tuple[Order, ...]:
        """The orders of one sentence; what introduces them before a colon is passed over."""
        parts = re.split(r":\s+", sentence)
        for start in range(len(parts)):
            found = self._read(": ".join(parts[start:]).strip(' "'), sentence)
            if found:
                return found
        return ()

    def _read(self, said: str, sentence: str) -> tuple[Order, ...]:
        ahead, behind = pattern("ahead").match(said), pattern("behind").match(said)
        condition, body = "", said
        if ahead is not None:
            condition, body = ahead[1], ahead[2]
        elif behind is not None:
            condition, body = behind[2], behind[1]
        found: list[Order] = []
        for clause in _CLAUSE.split(body):
            for skill, against in self._ordered(clause):
                own: Condition | None = None
                if condition:
                    own = Condition(self._skills.meant(condition), content_stems(condition))
                elif says("defers", clause):
                    own = Condition(frozenset((skill,)), frozenset())
                number = _NUMBER.search(clause)
                told = int(number[1]) if number is not None else None
                found.append(Order(skill, own, sentence, against, told))
        return tuple(found)

    def _order_clause(self, clause: str) -> tuple[tuple[int, bool], ...]:
        """The skills that a clause is an order about, each with whether it forbids it."""
        text = pattern("lead").sub("", clause.strip().lower())
        against = _NOT.match(text) is not None
        words = re.findall(r"[a-z']+", _NOT.sub("", text))
        if count_words(text) < 3 or not words or words[0] not in word_list("imperatives"):
            return ()
        little = word_list("little")
        if sum(w in little for w in words) < _GLUED * len(words):
            return ()
        bare = _NOT.sub("", text)
        skills = [k for k in range(len(self._skills)) if self._skills[k].order.search(bare)]
        if len(skills) > _MOST:
            return ()
        return tuple((k, against and not self._skills[k].forbids) for k in skills)
