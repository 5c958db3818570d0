"""Traces that an attack or a leak leaves in a text and no instinct needs: markers of turns and
templates, invisible or look-alike characters, addresses, secrets, and personal data.

Each finder yields spans of the text as it is. Numbers with a check digit count only where it fits.
traces.toml has what its form alone gives away.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from promptcodebook.policy.decoding import LOOK_ALIKES, decodings, is_invisible, random_runs

Severity = Literal["high", "medium", "low"]
"""high = not to be promoted; medium = a person should check it; low = worth knowing."""
Span = tuple[int, int]


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    """Those of traces.toml, by name."""
    text = (resources.files("promptcodebook.policy") / "traces.toml").read_text("utf-8")
    tree = tomllib.loads(text).items()
    return {name: re.compile(re.sub(r"\n\s*", "", pattern)) for name, pattern in tree}


def _spans(name: str, text: str) -> Iterator[tuple[Span, str]]:
    """Where a pattern is found, and the words there."""
    return ((match.span(), match.group()) for match in _patterns()[name].finditer(text))


def _high(
    name: str, text: str, fits: Callable[[str], object] = bool
) -> Iterator[tuple[Span, Severity]]:
    for span, found in _spans(name, text):
        if fits(found):
            yield span, "high"


@dataclass(frozen=True, slots=True)
class Trace:
    """A kind of trace; `what` names it as in "it contains an address"."""

    name: str
    what: str
    find: Callable[[str], Iterator[tuple[Span, Severity]]]


def _markers(text: str) -> Iterator[tuple[Span, Severity]]:
    for name in ("marker", "placeholder"):
        yield from _high(name, text)


def _invisible(text: str) -> Iterator[tuple[Span, Severity]]:
    for (start, end), char in _spans("unusual", text):
        if is_invisible(char) and not _joins(text, start):
            yield (start, end), "high"


def _joins(text: str, i: int) -> bool:
    """A (non-)joiner between two characters beyond ASCII: part of an emoji or of a script."""
    around = text[i - 1 : i] + text[i + 1 : i + 2]
    return text[i] in "\u200c\u200d" and len(around) == 2 and not any(c.isascii() for c in around)


def _look_alikes(text: str) -> Iterator[tuple[Span, Severity]]:
    """Words of Latin letters with a Cyrillic or Greek one among them, words of such letters alone
    in a text that is Latin for the rest, and letters styled in Unicode."""
    if text.isascii():
        return
    native = any(_is_cyrillic(c) and c not in LOOK_ALIKES for c in text)
    for match in re.finditer(r"[^\W\d_]+", text):
        word = match.group()
        latin = any(c.isascii() for c in word)
        stray = not native and all(_is_cyrillic(c) for c in word)
        if (latin or stray) and any(c in LOOK_ALIKES for c in word):
            yield match.span(), "high"
        elif any(_is_styled(c) for c in word):
            yield match.span(), "medium"


def _is_cyrillic(char: str) -> bool:
    return unicodedata.name(char, "").startswith("CYRILLIC")


def _is_styled(char: str) -> bool:
    """A Latin letter in mathematical, full-width or enclosed form."""
    if char.isascii():
        return False
    plain = unicodedata.normalize("NFKC", char)
    name = unicodedata.name(char, "")
    return plain.isascii() and plain.isalpha() and ("MATHEM" in name or "FULLWIDTH" in name)


def _addresses(text: str) -> Iterator[tuple[Span, Severity]]:
    beacons = [span for span, _ in _spans("beacon", text)]
    for (start, end), found in _spans("url", text):
        end -= len(found) - len(found.rstrip(".,:-"))
        if text[start - 1 : start] == "@":  # what follows in an e-mail address
            continue
        drawn = any(a <= start < b for a, b in beacons)
        sent = _patterns()["sending"].search(text, max(0, start - 120), start)
        yield (start, end), "high" if drawn or sent else "medium"


def _secrets(text: str) -> Iterator[tuple[Span, Severity]]:
    taken = [span for span, _ in _spans("secret", text)]
    for span in taken:
        yield span, "high"
    for match in _patterns()["named_secret"].finditer(text):
        start, end = match.span("value")
        value = match["value"].rstrip(".!?)]}")
        if not any(a < end and start < b for a, b in taken) and _is_key_like(value):
            yield (start, start + len(value)), "high"


def _is_key_like(value: str) -> bool:
    """No word and no number: digits among letters, or marks within."""
    letters = sum(c.isalpha() for c in value)
    digits = sum(c.isdigit() for c in value)
    marks = sum(not c.isalnum() and c not in "-_'/" for c in value)
    return len(value) >= 6 and letters >= 2 and digits >= 1 and letters + digits + marks >= 6


def _personal(text: str) -> Iterator[tuple[Span, Severity]]:
    for span, found in _spans("email", text):
        yield span, "medium" if _patterns()["office"].match(found) else "high"
    for name, fits in _NUMBERS.items():
        yield from _high(name, text, fits)


def _encoded(text: str) -> Iterator[tuple[Span, Severity]]:
    """What is English only once it is decoded, and runs that are neither words nor decoded. What
    an order in it makes of it, the search for orders says."""
    decoded = [each for each in decodings(text) if not each.usual]
    spans = [(each.start, each.end) for each in decoded]
    for span in dict.fromkeys([*spans, *random_runs(text, decoded)]):
        yield span, "medium"


def _has_check_digit(number: str) -> bool:
    """Luhn's sum, over 13 to 19 digits."""
    digits = [int(c) for c in number if c.isdigit()]
    doubled = [d if i % 2 == 0 else sum(divmod(2 * d, 10)) for i, d in enumerate(digits[::-1])]
    return 13 <= len(digits) <= 19 and sum(doubled) % 10 == 0


def _is_iban(found: str) -> bool:
    """ISO 13616: the remainder by 97 is 1."""
    plain = found.replace(" ", "")
    moved = plain[4:] + plain[:4]
    return 15 <= len(plain) <= 34 and int("".join(str(int(c, 36)) for c in moved)) % 97 == 1


_NUMBERS: Mapping[str, Callable[[str], bool]] = {
    "phone": bool,
    "ssn": bool,
    "card": _has_check_digit,
    "iban": _is_iban,
    "born": bool,
    "document": bool,
    "street": bool,
}

TRACES: tuple[Trace, ...] = (
    Trace("marker", "a role marker or control token", _markers),
    Trace("invisible", "an invisible character", _invisible),
    Trace("look-alike", "a letter that passes for another", _look_alikes),
    Trace("secret", "a secret", _secrets),
    Trace("personal", "personal data", _personal),
    Trace("address", "an address", _addresses),
    Trace("encoded", "encoded text, or a run of letters that is no word", _encoded),
)
