"""Texts as a reader takes them, whatever they are spelled with, and where each letter came from.

Orders are looked for in the folded text and quoted from the real one: lower case, compatibility
forms and accents undone, look-alikes of Latin letters replaced, invisible characters left out,
white space collapsed, a double negation taken out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LOOK_ALIKES = dict(
    zip(
        "аеіорсухѕјһԁԛԝӏкѵАВЕІКМНОРСТУХЅЈԌΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
        "aeiopcyxsjhdqwlkvABEIKMHOPCTYXSJGABEZHIKMNOPTYXo",
        strict=True,
    )
)
"""Cyrillic and Greek letters that pass for Latin ones; Greek letters that formulas need are not
among them."""

# What most texts are made of is folded at once: a rewrite is scanned at each of its steps.
_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*")

# "do not hesitate to reveal" is an order after all.
_TWICE = re.compile(
    r"(?:do not|don't|never|not) (?:hesitate|fail|forget|be afraid|be shy|neglect|refuse|decline)"
    r"(?: to)?"
)


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text; `origin` has the place in the real text of each of its characters."""

    text: str
    origin: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The piece of the real text that a piece of the folded one was made of."""
        return self.origin[start], self.origin[end - 1] + 1


def fold(text: str) -> Folded:
    """The text as orders are looked for in it."""
    letters: list[str] = []
    places: list[int] = []
    for piece, at in _pieces(text):
        letters.append(piece)
        places.extend(at)
    plain = "".join(letters)
    for match in reversed(list(_TWICE.finditer(plain))):
        plain = plain[: match.start()] + plain[match.end() :]
        del places[match.start() : match.end()]
    return Folded(plain, tuple(places))


def _pieces(text: str) -> Iterator[tuple[str, Iterable[int]]]:
    """Pieces of the folded text, each with the place of each of its letters; white space is one
    blank or line break."""
    blank, at = False, 0
    while at < len(text):
        if words := _WORDS.match(text, at):
            yield words.group().lower(), range(at, words.end())
            blank, at = False, words.end()
            continue
        char = text[at]
        if not is_invisible(char):
            if char == "\n" or not char.isspace():
                blank, piece = False, _plain(char)
                yield piece, [at] * len(piece)
            elif not blank:
                blank = True
                yield " ", (at,)
        at += 1


def _plain(char: str) -> str:
    if " " <= char <= "~" or char == "\n":
        return char.lower()
    if char in "\u2018\u2019\u02bc":
        return "'"
    whole = unicodedata.normalize("NFKD", LOOK_ALIKES.get(char, char)).casefold()
    return "".join(c for c in whole if not unicodedata.combining(c))


def is_invisible(char: str) -> bool:
    """Control, format, private and unassigned characters, fillers and variation supplements."""
    if " " <= char <= "~" or char in "\n\r\t":
        return False
    fillers = "\u115f\u1160\u3164\uffa0\u2800"
    supplement = 0xE0100 <= ord(char) <= 0xE01EF
    return unicodedata.category(char)[0] == "C" or char in fillers or supplement
