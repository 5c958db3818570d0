"""Words, stems, sentences and tokens: how the simulated model reads. Pure functions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import cast

__all__ = [
    "content_stems",
    "count_tokens",
    "count_words",
    "cut_tokens",
    "pattern",
    "patterns",
    "says",
    "sentences",
    "stem",
    "stems",
    "tokens",
    "word_list",
    "wording",
]


@cache
def wording(table: str = "") -> Mapping[str, str]:
    """A table of `wording.toml`, '' = the patterns that stand alone."""
    file = resources.files("promptcodebook.simulated").joinpath("wording.toml")
    tree = cast("Mapping[str, object]", tomllib.loads(file.read_text("utf-8")))
    found = tree[table] if table else {k: v for k, v in tree.items() if isinstance(v, str)}
    return cast("Mapping[str, str]", found)


@cache
def patterns(table: str) -> Mapping[str, re.Pattern[str]]:
    """The same as patterns, in the file's order."""
    return {name: re.compile(text) for name, text in wording(table).items()}


def pattern(name: str) -> re.Pattern[str]:
    """A pattern that stands alone."""
    return patterns("")[name]


def says(name: str, text: str) -> bool:
    """Whether a text holds what the pattern looks for."""
    return patterns("")[name].search(text) is not None


@cache
def word_list(name: str) -> frozenset[str]:
    """A list of words in `wording.toml`."""
    return frozenset(wording("words")[name].split())


_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|[;\n]+")
_MARK = re.compile(r"^\s*(?:[-*•]\s+|\d{1,2}[.)]\s+|\[\d+\]\s*|#+\s+)")
_ENDINGS = ("ational", "ation", "ions", "ion", "ings", "ing", "edly", "ed", "ly", "es", "s")


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
    found, common = _WORD.findall(text.lower()), word_list("common")
    return frozenset(_stem_cached(w) for w in found if w not in common and len(w) > 1)


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
