"""Traces that an attack or a leak leaves in a text and no instinct needs: markers of turns and
templates, invisible or look-alike characters, addresses, secrets, and personal data.

Each finder yields spans of the text as it is. Numbers with a check digit count only where it fits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from promptcodebook.policy.decoding import LOOK_ALIKES, decodings, is_invisible, random_runs

Severity = Literal["high", "medium", "low"]
"""high = not to be promoted; medium = a person should check it; low = worth knowing."""
Span = tuple[int, int]

MARKERS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>"  # <|im_start|>, <|eot_id|>, ...
    r"|\[/?(?:INST|SYS(?:TEM_PROMPT)?)\]|<</?SYS>>"  # Llama 2, Mistral
    r"|</?s>|<(?:start|end)_of_turn>|</?think>"  # sentence ends, Gemma, reasoning blocks
    r"|^[ \t>*]*(?:system|assistant|user|human|developer|ai)[ \t*]*:"  # a turn of a transcript
    r"|^[ \t]*#{1,6}[ \t]*(?:system|assistant|user|human|instruction)s?[ \t]*(?::|$)",
    re.IGNORECASE | re.MULTILINE,
)
"""What chat templates put between turns: in a prompt it may open a turn of its own."""
_UNUSUAL = re.compile(r"[^ -~\n\r\t]")

_PLACES = re.compile(r"\{\{[#/^!>&~-]?[ \t]*[a-z_][^{}\n]{0,80}\}\}|\{%[^{}\n]{1,80}%\}", re.I)
"""What Jinja, Handlebars and their kin would fill in or run."""

_URL = re.compile(
    r"(?:https?|ftps?|file|wss?|data|javascript):(?://)?[^\s)>\]\"']+"
    r"|\bwww\.[^\s)>\]\"']+"
    # A host begins where its run of letters, dots and hyphens does: no run is tried twice.
    r"|(?<![\w.-])[a-z0-9.-]*[a-z0-9-]\.(?:com|org|net|io|ai|dev|app|gov|edu|info|biz|xyz|ru|cn|co|me)\b"
    r"(?:/[^\s)>\]\"']*)?",
    re.IGNORECASE,
)
_BEACON = re.compile(
    r"!\[[^\]\n]{0,200}\]\([ \t]*https?://[^\s)]+|\b(?:data|javascript):[^\s]+", re.IGNORECASE
)
"""An image is fetched as soon as it is shown, with whatever its address holds."""
_SENDING = re.compile(
    r"\b(?:send|post|upload|forward|submit|transmit|export|copy|mail|exfiltrate)\b[^.!?\n]{0,80}$",
    re.IGNORECASE,
)

_SECRETS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_\w{22,}|\bglpat-[\w-]{20,}|\bhf_[A-Za-z0-9]{30,}|\bxox[abprs]-[\w-]{10,}"
    r"|\bAIza[\w-]{35}|\b[rs]k_(?:live|test)_\w{16,}|\bnpm_\w{36}|\bpypi-[\w-]{16,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{5,}(?:\.[\w-]*)?"  # a JSON web token
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
    r"|\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,80}:[^\s/@]{1,80}@[^\s/]+"  # user:password@host
)
_NAMED_SECRET = re.compile(
    r"\b(?:pass(?:word|phrase|code)|pwd|pin|secret|token|api[ _-]?key|bearer)\b"
    r"(?:\s+(?:is|was))?[ \t]*[:=]?[ \t]*[\"'`]?(?P<value>[^\s\"'`,;]{4,200})",
    re.IGNORECASE,
)

_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[a-z0-9-]{1,63}\.){1,5}[a-z]{2,24}\b", re.I)
_OFFICES = frozenset(
    {
        *("support", "help", "info", "contact", "sales", "office", "hello", "service", "team"),
        *("billing", "press", "privacy", "abuse", "admin", "noreply", "no-reply", "postmaster"),
        *("webmaster", "feedback", "orders", "returns", "jobs", "careers"),
    }
)
"""Names before an @ that belong to no person."""
_PHONE = re.compile(
    r"(?<![\w+.])\+\d(?:[ ()./-]{0,2}\d){7,14}(?!\w)"
    r"|(?<![\w(])\(\d{2,5}\)[ -]?\d(?:[ ./-]?\d){5,10}\b"
    r"|\b(?:call|phone|dial|fax)[: ]{1,2}\d(?:[ ./-]?\d){6,14}\b"
)
_SSN = re.compile(r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")
_CARD = re.compile(r"(?<![\w-])[2-6]\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}(?![\w-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b")
_BORN = re.compile(
    r"\b(?:born(?: on)?|date of birth|birth ?date|birthday|dob)\b\W{0,3}(?:is |was |of )?"
    r"(?:\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{1,2}\.? \w{3,9},? \d{4}|\w{3,9} \d{1,2},? \d{4})",
    re.IGNORECASE,
)
_DOCUMENT = re.compile(
    r"\b(?:passport|licen[cs]e|id|identity card|insurance|tax)(?: (?:number|no\.?|id))"
    r"(?: is| was)?[ \t:]*(?=[A-Z0-9-]*\d)[A-Z0-9-]{6,14}\b",
    re.IGNORECASE,
)
_STREET = re.compile(
    r"\b\d{1,5}[a-z]? (?:[A-Z][\w'-]{1,20} ){1,3}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|"
    r"Boulevard|Blvd|Court|Square|Terrace)\b"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """A kind of trace; `what` names it as in "it contains an address"."""

    name: str
    what: str
    find: Callable[[str], Iterator[tuple[Span, Severity]]]


def _markers(text: str) -> Iterator[tuple[Span, Severity]]:
    for pattern in (MARKERS, _PLACES):
        for match in pattern.finditer(text):
            yield match.span(), "high"


def _invisible(text: str) -> Iterator[tuple[Span, Severity]]:
    for match in _UNUSUAL.finditer(text):
        if is_invisible(match.group()) and not _joins(text, match.start()):
            yield match.span(), "high"


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
    beacons = [m.span() for m in _BEACON.finditer(text)]
    for match in _URL.finditer(text):
        start, end = match.span()
        end -= len(match.group()) - len(match.group().rstrip(".,:-"))
        if text[start - 1 : start] == "@":  # what follows in an e-mail address
            continue
        drawn = any(a <= start < b for a, b in beacons)
        sent = _SENDING.search(text, max(0, start - 120), start)
        yield (start, end), "high" if drawn or sent else "medium"


def _secrets(text: str) -> Iterator[tuple[Span, Severity]]:
    taken: list[Span] = []
    for match in _SECRETS.finditer(text):
        taken.append(match.span())
        yield match.span(), "high"
    for match in _NAMED_SECRET.finditer(text):
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
    for match in _EMAIL.finditer(text):
        office = match.group().partition("@")[0].lower() in _OFFICES
        yield match.span(), "medium" if office else "high"
    for pattern, fits in _NUMBERS.items():
        for match in pattern.finditer(text):
            if fits(match.group()):
                yield match.span(), "high"


def _encoded(text: str) -> Iterator[tuple[Span, Severity]]:
    """What is English only once it is decoded, and runs that are neither words nor decoded. What
    an order in it makes of it, the search for orders says."""
    decoded = [each for each in decodings(text) if not each.usual]
    spans = [(each.start, each.end) for each in decoded]
    for span in dict.fromkeys([*spans, *random_runs(text, decoded)]):
        yield span, "medium"


def _always(found: str) -> bool:
    return True


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


_NUMBERS: Mapping[re.Pattern[str], Callable[[str], bool]] = {
    _PHONE: _always,
    _SSN: _always,
    _CARD: _has_check_digit,
    _IBAN: _is_iban,
    _BORN: _always,
    _DOCUMENT: _always,
    _STREET: _always,
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
