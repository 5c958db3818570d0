"""Texts as a reader takes them, whatever they are spelled with, and where each letter came from.

Orders are looked for in the folded text and quoted from the real one: lower case, compatibility
forms and accents undone, look-alikes of Latin letters replaced, invisible characters left out,
white space collapsed, a double negation taken out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LOOK_ALIKES", "Folded", "fold", "is_invisible"]

LOOK_ALIKES = dict(
    zip(
        "аеіорсухѕјһԁԛԝӏкѵАВЕІКМНОРСТУХЅЈԌΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
        "aeiopcyxsjhdqwlkvABEIKMHOPCTYXSJGABEZHIKMNOPTYXo",
        strict=True,
    )
)
"""Cyrillic and Greek letters that pass for Latin ones; Greek letters that formulas need are not
among them."""

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
    letters = list(_letters(text))
    plain = "".join(letter for letter, _ in letters)
    kept = [True] * len(letters)
    for match in _TWICE.finditer(plain):
        kept[match.start() : match.end()] = [False] * (match.end() - match.start())
    left = [pair for pair, keep in zip(letters, kept, strict=True) if keep]
    return Folded("".join(letter for letter, _ in left), tuple(place for _, place in left))


def _letters(text: str) -> Iterator[tuple[str, int]]:
    """Each letter of the folded text with its place; white space is one blank or line break."""
    blank = False
    for place, char in enumerate(text):
        if is_invisible(char):
            continue
        if char == "\n" or not char.isspace():
            blank = False
        elif blank:
            continue
        else:
            blank, char = True, " "
        yield from ((letter, place) for letter in _plain(char))


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
