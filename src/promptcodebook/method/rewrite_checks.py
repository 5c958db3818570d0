"""The checks that a rewrite must pass, and that refuse it otherwise (method decision 11): its
length, near-copies of other instincts, and what it copies from the training data. `policy/scan.py`
has the check for harm, and `acceptance.py` the rule by rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from promptcodebook.base.incidents import Incident, Tally, no_tally
from promptcodebook.base.text import (
    count_words,
    fault_in_text,
    place_in,
    runs_of,
    word_spans,
    words_of,
)
from promptcodebook.config.schema import Update
from promptcodebook.types import Check, Example, Variable

RUN = 8  # words of a training input in a row that count as copied
NEAR_COPY = "a near-copy of another instinct"


# Mean characters a word, as more is no text; and how alike two instincts are that are copies.
_LETTERS, _ALIKE = 20, 0.9


def word_cap(update: Update, variable: Variable) -> int:
    """Length cap of a variable, in words."""
    return update.instinct_words if isinstance(variable, int) else update.directive_words


@dataclass(frozen=True)
class LengthCheck:
    """A text, and within the variable's cap in words."""

    update: Update

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words, cap = count_words(text), word_cap(self.update, variable)
        if not words:
            return "the rewrite is empty"
        if fault := fault_in_text(text.removeprefix(place_in(text))):
            return f"the rewrite is no text: {fault}"
        if words > cap:
            return f"{words} words, over the cap of {cap}"
        most = cap * _LETTERS
        return f"{len(text)} characters, over the cap of {most}" if len(text) > most else None


def near_copy(variable: Variable, text: str, before: str, others: Sequence[str]) -> str | None:
    """A Check: an instinct must not become a near-copy of another entry."""
    words = words_of(text)
    for other in others:
        matcher = SequenceMatcher(None, words, words_of(other), autojunk=False)
        if matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE:
            return NEAR_COPY
    return None


class NoLeakCheck:
    """No run of 8 normalised words of a training input and no whole training answer, unless the
    text held it before. Answers of fewer than 3 words and 12 characters turn up by chance."""

    def __init__(self, examples: Iterable[Example]) -> None:
        # Hashes, not words: a large training split must not be held in memory eight times over.
        self._runs: set[int] = set()
        self._answers: dict[str, str] = {}
        for example in examples:
            self._runs.update(map(hash, _runs(words_of(example.input))))
            answer = " ".join(words_of(example.target or ""))
            if count_words(answer) >= 3 or len(answer) >= 12:
                self._answers[f" {answer} "] = example.id

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words, words_before = words_of(text), words_of(before)
        held = set(_runs(words_before))
        if any(hash(run) in self._runs and run not in held for run in _runs(words)):
            return "it copies eight words in a row from a training input"
        padded, earlier = f" {' '.join(words)} ", f" {' '.join(words_before)} "
        for answer, example in self._answers.items():
            if answer in padded and answer not in earlier:
                return f"it gives away the answer of a training example: {example}"
        return None

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Each piece of the text that is copied: start, end, and from what."""
        words = word_spans(text)
        plain = [word for word, _, _ in words]
        copied = {i: len(run) for i, run in enumerate(_runs(plain)) if hash(run) in self._runs}
        starts = [i for i in copied if i - 1 not in copied]
        ends = [i for i in copied if i + 1 not in copied]
        for first, last in zip(starts, ends, strict=True):
            yield words[first][1], words[last + copied[last] - 1][2], "a training input"
        padded = f" {' '.join(plain)} "
        for answer, example in self._answers.items():
            if (at := padded.find(answer)) >= 0:
                first = padded[: at + 1].count(" ") - 1
                end = words[first + answer.count(" ") - 2][2]
                yield words[first][1], end, f"the answer of the training example {example}"


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return runs_of(tuple(words), RUN)


@dataclass(frozen=True)
class AllChecks:
    """The first refusal of several checks, in order; it is counted where an incident is named."""

    checks: Sequence[tuple[Check, Incident | None]]
    tally: Tally = no_tally

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        for check, incident in self.checks:
            reason = check(variable, text, before, others)
            if reason is not None:
                if incident is not None:
                    self.tally(incident)
                return reason
        return None
