"""What a rewrite must pass before it is kept: each is a `Check` (method decision 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from promptcodebook.config import Update
from promptcodebook.incidents import Incident, Tally
from promptcodebook.protocols import Check
from promptcodebook.text import word_spans, words_of
from promptcodebook.types import (
    Example,
    Variable,
)

RUN = 8
"""Words of a training input in a row that count as copied."""
NEAR_COPY = "a near-copy of another instinct"


def word_cap(update: Update, variable: Variable) -> int:
    """Length cap of a variable, in words."""
    return update.instinct_words if isinstance(variable, int) else update.directive_words


_LETTERS = 20
"""Characters a word, on the average: what has more is no text, and the checks after this one would
be long at it."""


class LengthCheck:
    """Not empty, and within the variable's cap in words."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words = len(text.split())
        if not words:
            return "the rewrite is empty"
        cap = word_cap(self._update, variable)
        if words > cap:
            return f"{words} words, over the cap of {cap}"
        if len(text) > cap * _LETTERS:
            return f"{len(text)} characters, over the cap of {cap * _LETTERS}"
        return None


class NearCopyCheck:
    """An instinct must not become a near-copy of another entry."""

    def __init__(self, alike: float = 0.9) -> None:
        self._alike = alike

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words = words_of(text)
        for other in others:
            theirs = words_of(other)
            matcher = SequenceMatcher(None, words, theirs, autojunk=False)
            if matcher.quick_ratio() >= self._alike and matcher.ratio() >= self._alike:
                return NEAR_COPY
        return None


class NoLeakCheck:
    """No run of 8 normalised words of a training input and no whole training answer.

    What the text held before its rewrite is not held against it. Answers count from 3 words or 12
    characters on: shorter ones ('yes', '42') turn up by chance.
    """

    def __init__(self, examples: Iterable[Example]) -> None:
        # Hashes, not words: a large training split must not be held in memory eight times over.
        self._runs: set[int] = set()
        self._answers: dict[str, str] = {}
        for example in examples:
            self._runs.update(_runs(words_of(example.input)))
            answer = " ".join(words_of(example.target or ""))
            if len(answer.split()) >= 3 or len(answer) >= 12:
                self._answers[f" {answer} "] = example.id

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        held = set(_runs(words_of(before)))
        for run in _runs(words_of(text)):
            if run in self._runs and run not in held:
                return "it copies eight words in a row from a training input"
        padded = f" {' '.join(words_of(text))} "
        earlier = f" {' '.join(words_of(before))} "
        for answer, example in self._answers.items():
            if answer in padded and answer not in earlier:
                return f"it gives away the answer of a training example: {example}"
        return None

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Each piece of the text that is copied: start, end, and from what."""
        words = word_spans(text)
        plain = [word for word, _, _ in words]
        copied = [i for i, run in enumerate(_runs(plain)) if run in self._runs]
        for first, last in _stretches(copied):
            yield words[first][1], words[last + RUN - 1][2], "a training input"
        padded = f" {' '.join(plain)} "
        for answer, example in self._answers.items():
            if (at := padded.find(answer)) >= 0:
                first = padded[: at + 1].count(" ") - 1
                last = first + answer.count(" ") - 2
                yield (
                    words[first][1],
                    words[last][2],
                    f"the answer of the training example {example}",
                )


def _stretches(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each row of neighbours."""
    first = -1
    for i, place in enumerate(places):
        if i == 0 or places[i - 1] + 1 != place:
            first = place
        if i + 1 == len(places) or places[i + 1] != place + 1:
            yield first, place


def _runs(words: Sequence[str]) -> Iterable[int]:
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


class CountedCheck:
    """A check whose refusals are counted apart."""

    def __init__(self, check: Check, incident: Incident, tally: Tally) -> None:
        self._check = check
        self._incident = incident
        self._tally = tally

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        reason = self._check(variable, text, before, others)
        if reason is not None:
            self._tally(self._incident)
        return reason


class AllChecks:
    """The first refusal of several checks, in order."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = tuple(checks)

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        for check in self._checks:
            reason = check(variable, text, before, others)
            if reason is not None:
                return reason
        return None
