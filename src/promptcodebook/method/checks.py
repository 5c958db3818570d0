"""What a rewrite must pass before it is kept (method decision 11), each a `Check`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from promptcodebook.config import Update
from promptcodebook.types import Check, Example

__all__ = [
    "AllChecks",
    "LengthCheck",
    "NearCopyCheck",
    "NoLeakCheck",
    "normalised_words",
    "word_cap",
]

RUN = 8
"""Words of a training input in a row that count as copied."""

_WORD = re.compile(r"[^\W_]+", re.UNICODE)


def normalised_words(text: str) -> list[str]:
    """Lower-cased words without punctuation."""
    return _WORD.findall(text.lower())


def word_cap(update: Update, variable: str) -> int:
    """Length cap of a variable, in words."""
    directive = variable in ("encoder", "generator", "critic")
    return update.directive_words if directive else update.instinct_words


class LengthCheck:
    """Not empty, and within the variable's cap in words."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def __call__(self, variable: str, text: str, before: str, others: Sequence[str]) -> str | None:
        words = len(text.split())
        if not words:
            return "the rewrite is empty"
        cap = word_cap(self._update, variable)
        return f"{words} words, over the cap of {cap}" if words > cap else None


class NearCopyCheck:
    """An instinct must not become a near-copy of another entry."""

    def __init__(self, alike: float = 0.9) -> None:
        self._alike = alike

    def __call__(self, variable: str, text: str, before: str, others: Sequence[str]) -> str | None:
        words = normalised_words(text)
        for other in others:
            theirs = normalised_words(other)
            matcher = SequenceMatcher(None, words, theirs, autojunk=False)
            if matcher.quick_ratio() >= self._alike and matcher.ratio() >= self._alike:
                return "a near-copy of another instinct"
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
            self._runs.update(_runs(normalised_words(example.input)))
            answer = " ".join(normalised_words(example.target or ""))
            if len(answer.split()) >= 3 or len(answer) >= 12:
                self._answers[f" {answer} "] = example.id

    def __call__(self, variable: str, text: str, before: str, others: Sequence[str]) -> str | None:
        held = set(_runs(normalised_words(before)))
        for run in _runs(normalised_words(text)):
            if run in self._runs and run not in held:
                return "it copies eight words in a row from a training input"
        padded = f" {' '.join(normalised_words(text))} "
        earlier = f" {' '.join(normalised_words(before))} "
        for answer, example in self._answers.items():
            if answer in padded and answer not in earlier:
                return f"it gives away the answer of training example {example}"
        return None


def _runs(words: Sequence[str]) -> Iterable[int]:
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


class AllChecks:
    """The first refusal of several checks, in order."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = tuple(checks)

    def __call__(self, variable: str, text: str, before: str, others: Sequence[str]) -> str | None:
        for check in self._checks:
            reason = check(variable, text, before, others)
            if reason is not None:
                return reason
        return None
