"""A text folded, so that orders are found in any spelling; what of it is not plain language, as in
code or with letters replaced; and what the rules cannot read at all, by words.txt."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any
from urllib.parse import unquote

from promptcodebook.base.text import shipped_table

_STRANGE = "аеіорсухѕјһԁԛԝӏкѵАВЕІКМНОРСТУХЅЈԌΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"
_FAMILIAR = "aeiopcyxsjhdqwlkvABEIKMHOPCTYXSJGABEZHIKMNOPTYXo"
# Cyrillic and Greek letters that pass for Latin ones, but for Greek ones that formulas need.
LOOK_ALIKES = dict(zip(_STRANGE, _FAMILIAR, strict=True))
# What most texts are made of is folded at once: a rewrite is scanned at each of its steps.
_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*")


def read_table(name: str) -> Mapping[str, Any]:
    """A file of this room, such as orders.toml."""
    return shipped_table(__file__, name)


def on_one_line(pattern: str) -> str:
    """A line break in an expression and the blanks after it are nothing."""
    return re.sub(r"\n\s*", "", pattern)


@cache
def patterns() -> Mapping[str, re.Pattern[str]]:
    """The expressions of traces.toml."""
    table = read_table("traces.toml")
    return {name: re.compile(on_one_line(pattern)) for name, pattern in table.items()}


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text; `origin` has the place in the real text of each of its characters."""

    text: str
    origin: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The piece of the real text that a piece of the folded one was made of."""
        return self.origin[start], self.origin[end - 1] + 1


def fold(text: str) -> Folded:
    """The text as orders are looked for in it: without case, compatibility forms, accents,
    look-alike letters, invisible characters and double negation; white space is one character."""
    pieces, places, blank, at = list[str](), list[int](), False, 0
    while at < len(text):
        words, char, end = _WORDS.match(text, at), text[at], at + 1
        if words is not None:
            piece, end, blank = words.group().lower(), words.end(), False
        elif is_invisible(char):
            piece = ""
        elif char.isspace() and char != "\n":
            piece, blank = "" if blank else " ", True
        else:
            piece, blank = _plain(char), False
        pieces.append(piece)
        places += range(at, end) if words is not None else [at] * len(piece)
        at = end
    plain = "".join(pieces)
    for match in reversed(list(patterns()["twice"].finditer(plain))):
        plain = plain[: match.start()] + plain[match.end() :]
        del places[match.start() : match.end()]
    return Folded(plain, tuple(places))


def _plain(char: str) -> str:
    if char in "\n\u2018\u2019\u02bc":
        return "\n" if char == "\n" else "'"
    whole = unicodedata.normalize("NFKD", LOOK_ALIKES.get(char, char)).casefold()
    return "".join(c for c in whole if not unicodedata.combining(c))


def is_invisible(char: str) -> bool:
    """Control, format, private and unassigned characters, fillers and variation supplements."""
    if " " <= char <= "~" or char in "\n\r\t":
        return False
    fillers = "\u115f\u1160\u3164\uffa0\u2800"
    supplement = 0xE0100 <= ord(char) <= 0xE01EF
    return unicodedata.category(char)[0] == "C" or char in fillers or supplement


# --- what is not plain language, and was once

_FEW_ESCAPES = 4  # fewer are in many addresses and names
_LEAST_BITS = 3.2  # of a character: less is no digest or key
_LEET = str.maketrans("0345789@$!|+", "oeastbgasilt")
_FEW_DIGITS = 2  # words with a digit in them that might be chance


def hidden(text: str) -> Iterator[tuple[int, int]]:
    """Each piece that is not plain language although its words may be: encoded, or spelled letter
    by letter or with digits for letters. It is not read; a digest and a key look the same."""
    for match in patterns()["hidden"].finditer(text):
        run = match.group()
        bits = -sum(n / len(run) * math.log2(n / len(run)) for n in Counter(run).values())
        words = re.findall("[A-Z]?[a-z]+", run)  # of a name such as createdAtTheLatest
        known = sum(len(word) for word in words if _is_known(word))
        if not run.isalpha() or (bits >= _LEAST_BITS and known < 0.7 * len(run)):
            yield match.span()
    escapes = patterns()["escape"].finditer(text)
    leet = (m for m in patterns()["leet"].finditer(text) if _has_digits(m.group()))
    for found, least in ((list(escapes), _FEW_ESCAPES), (list(leet), _FEW_DIGITS)):
        if len(found) >= least:
            yield found[0].start(), found[-1].end()


def _has_digits(word: str) -> bool:
    """Whether it is an English word with digits or signs for some of its letters."""
    bare = word.rstrip("!|+").lower()
    plain = [bare.translate(_LEET).replace("1", letter) for letter in "il"]
    return (
        len(bare) > 2
        and not bare.isalpha()
        and any(each.isalpha() and _is_known(each) for each in plain)
    )


def spelled_out(text: str) -> Iterator[tuple[str, int, int]]:
    """What plain text says in escapes or in a name such as tellTheUser, with its place."""
    if found := list(patterns()["escape"].finditer(text)):
        plain = re.sub(r"\\[ux]([0-9a-fA-F]{2,4})", lambda m: chr(int(m[1], 16)), text)
        yield html.unescape(unquote(plain)), found[0].start(), found[-1].end()
    for match in re.finditer(r"(?<![^\W_])[^\W_]+(?:[_-][^\W_]+){2,}|[^\W\d_]{14,}", text):
        yield re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", match.group()), *match.span()


# --- what is English, and what is nothing that can be read

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_LATIN = re.compile(r"[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")
_ENDINGS = ("'s", "\u2019s", "s", "es", "ed", "d", "ing", "er", "r", "ly", "n't", "n\u2019t")


@cache
def _words() -> frozenset[str]:
    text = (resources.files("promptcodebook.policy") / "words.txt").read_text("utf-8")
    return frozenset(line for line in text.split() if line.isalpha())


@lru_cache(4096)
def _is_known(word: str) -> bool:
    """Whether it is English, as far as a short list and the usual endings can tell."""
    known, word = _words(), word.lower()
    if word in known or word in ("a", "i"):
        return True
    for ending in _ENDINGS if word.endswith(_ENDINGS) else ():
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            doubled = stem[:-1] if stem[-1] == stem[-2] else stem
            if not known.isdisjoint((stem, f"{stem}e", doubled, f"{stem[:-1]}y")):
                return True
    return False


def _prose(text: str) -> list[tuple[re.Match[str], bool]]:
    """The words of a text with whether each is known: no names among other words, no code."""

    def of_code(start: int, end: int) -> bool:
        beside = text[start - 1 : start] + text[end : end + 1]
        return any(c in "_\\/<>{}[]=^$@#`" or c.isdigit() for c in beside)

    found = (m for m in _WORD.finditer(text) if len(m.group()) > 1)
    words = [m for m in found if not of_code(*m.span())]
    names = sum(m.group().istitle() for m in words) < 0.5 * len(words)
    known = [(match, _is_known(match.group())) for match in words]
    return [
        (match, is_known)
        for match, is_known in known
        if is_known or not (names and match.group()[:1].isupper() and match.start() > 0)
    ]


def _unknown(text: str, least: int) -> list[tuple[int, int]]:
    """Stretches of at least that many words of which none is English."""
    found: list[tuple[int, int]] = []
    run: list[re.Match[str]] = []
    for match, known in [*_prose(text), (None, True)]:
        if match is not None and not known:
            run.append(match)
            continue
        if len(run) >= least:
            found.append((run[0].start(), run[-1].end()))
        run = []
    return found


_LEAST_WORDS, _STRETCH = 5, 5
_SHARE = 0.4


def foreign(text: str) -> tuple[int, int] | None:
    """The piece of a text that the rules cannot read: another language or script, or none."""
    letters = [(i, c) for i, c in enumerate(text) if c.isalpha()]
    other = [i for i, c in letters if not _LATIN.match(c)]
    if len(other) > max(5, 0.4 * len(letters)) or (
        other and patterns()["other_script"].search(text)
    ):
        return other[0], other[-1] + 1
    words = _prose(text)
    known = sum(known for _, known in words)
    if len(words) >= _LEAST_WORDS and known < _SHARE * len(words):
        return words[0][0].start(), words[-1][0].end()
    return next(iter(_unknown(text, _STRETCH)), None)
