"""Words, sentences and tokens: how the simulated model reads. What it looks for, `wording.toml` and
the tables of skills hold. Pure functions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any

_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|[;\n]+")
_MARK = re.compile(r"^\s*(?:[-*•]\s+|\d{1,2}[.)]\s+|\[\d+\]\s*|#+\s+)")
_ENDINGS = ("ational", "ation", "ions", "ion", "ings", "ing", "edly", "ed", "ly", "es", "s")


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """The table in `simulated/NAME.toml`."""
    file = resources.files("promptcodebook.simulated").joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text("utf-8"))


@cache
def patterns(table: str) -> Mapping[str, re.Pattern[str]]:
    """A table of `wording.toml` as patterns, in the file's order."""
    return {name: re.compile(text) for name, text in read_table("wording")[table].items()}


def says(name: str, text: str) -> re.Match[str] | None:
    """Where a text says, for the first time, what the pattern among `said` looks for."""
    return patterns("said")[name].search(text)


@lru_cache(maxsize=4096)
def meaning(table: str, text: str) -> str:
    """The name of the table's first pattern that the text fits; '' if none does."""
    return next((name for name, found in patterns(table).items() if found.search(text)), "")


@cache
def listed(name: str) -> tuple[str, ...]:
    """A list of words in `wording.toml`, in its order."""
    return tuple(read_table("wording")["words"][name].split())


@cache
def word_list(name: str) -> frozenset[str]:
    """The same as a set."""
    return frozenset(listed(name))


def asked_number(text: str, name: str) -> int | None:
    """The number that a text asks for, by the first of the patterns under `numbers` that it fits:
    digits, or a word up to twelve, where the pattern has `#`."""
    words = listed("numbers")
    for wanted in read_table("wording")["numbers"][name]:
        number = rf"(\d{{1,4}}|{'|'.join(words)})"
        match = re.search(wanted.replace("#", number), text, re.IGNORECASE)
        if match is not None:
            said = match[1].lower()
            return words.index(said) if said in words else int(said)
    return None


@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
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


@lru_cache(maxsize=2048)
def content_stems(text: str) -> frozenset[str]:
    """The stems of the words that say what a text is about."""
    found, common = _WORD.findall(text.lower()), word_list("common")
    return frozenset(_stem(w) for w in found if w not in common and len(w) > 1)


@lru_cache(maxsize=4096)
def sentences(text: str) -> tuple[str, ...]:
    """Directives of a text: pieces between full stops, semicolons and line ends, unmarked."""
    pieces = (_MARK.sub("", p).strip() for p in _SENTENCE.split(text))
    return tuple(p for p in pieces if any(c.isalnum() for c in p))


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
