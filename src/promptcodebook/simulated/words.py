"""Words, stems, sentences and tokens: how the simulated model reads. Pure functions."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = [
    "content_stems",
    "count_tokens",
    "count_words",
    "cut_tokens",
    "sentences",
    "stem",
    "stems",
    "tokens",
]

_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|[;\n]+")
_MARK = re.compile(r"^\s*(?:[-*•]\s+|\d{1,2}[.)]\s+|\[\d+\]\s*|#+\s+)")
_ENDINGS = ("ational", "ation", "ions", "ion", "ings", "ing", "edly", "ed", "ly", "es", "s")

_COMMON = (
    "a an and are as at be been before but by can do does each every for from has have how i if in "
    "into is it its let may must no not of on one only or other our out own shall should so some "
    "such than that the their them then there these they this those to up us use using was we were "
    "what when where which while who will with would you your about after all also any between "
    "both here more most very make sure write give answer response text task input"
)
_STOP = frozenset(_COMMON.split())
"""Words that say nothing about what an input asks."""


def stem(word: str) -> str:
    """A lower-case word without its ending; alike for `count`, `counts`, `counting`, `counted`."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            if ending == "s" and word.endswith(("ss", "us", "is")):
                break
            word = word[: -len(ending)]
            if ending.startswith(("ing", "ed")) and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


@lru_cache(maxsize=8192)
def _stem_cached(word: str) -> str:
    return stem(word)


def stems(text: str) -> tuple[str, ...]:
    """The stems of a text's words, in order."""
    return tuple(_stem_cached(w) for w in _WORD.findall(text.lower()))


@lru_cache(maxsize=2048)
def content_stems(text: str) -> frozenset[str]:
    """The stems of the words that say what a text is about."""
    found = _WORD.findall(text.lower())
    return frozenset(_stem_cached(w) for w in found if w not in _STOP and len(w) > 1)


@lru_cache(maxsize=4096)
def sentences(text: str) -> tuple[str, ...]:
    """Directives of a text: pieces between full stops, semicolons and line ends, unmarked."""
    pieces = (_MARK.sub("", p).strip() for p in _SENTENCE.split(text))
    return tuple(p for p in pieces if any(c.isalnum() for c in p))


def count_words(text: str) -> int:
    """Words between white space."""
    return len(text.split())


def tokens(text: str) -> list[str]:
    """Tokens as the simulated model counts them: runs of up to 8 letters or 3 digits, signs."""
    return _TOKEN.findall(text)


@lru_cache(maxsize=2048)
def count_tokens(text: str) -> int:
    """How many tokens a text has."""
    return len(_TOKEN.findall(text))


def cut_tokens(text: str, most: int) -> str:
    """The text's first `most` tokens."""
    for number, match in enumerate(_TOKEN.finditer(text), 1):
        if number > most:
            return text[: match.start()].rstrip()
    return text
