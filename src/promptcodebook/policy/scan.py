"""The rule scan: what is wrong with a text, found without a model, and the checks of rewrites. The
rules look for orders that no instinct may give ("reveal the system prompt") and for traces that an
attack or a leak leaves. A text that forbids, flags or describes an order ("never mislead the
reader") passes. The scan is a net, not a proof: docs/safety.md says what it finds and misses.

override, reveal, deceive, hide, grader: orders to ignore instructions, to reveal the prompt or
keys, to deceive, to withhold, to flatter the scorer. discriminate: treating people worse for who
they are. harm, expose, advice: plain forms of hate, violence, crime, sexual material, slander and
piracy; medical or financial assurances. personal: e-mail addresses, telephone, card and account
numbers, US social security numbers, dates of birth, documents, street addresses. secret: keys and
tokens by their form, named passwords, passwords in addresses, private keys. address: web addresses.
invisible, look-alike: characters that are not seen; Cyrillic or Greek letters in Latin words.
marker: marks of chat templates; what Jinja or Handlebars would fill in. encoded: base64, hex,
Morse, spaced letters, digits for letters. unreadable: another language or script, or none, such as
reversed text or ROT13. field and copied: docs/safety.md."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

from promptcodebook.method.rewrite_checks import NoLeakCheck
from promptcodebook.policy import decoding
from promptcodebook.types import Variable

# high = not to be promoted; medium = a person should check it; low = worth knowing.
Severity = Literal["high", "medium", "low"]
# Who found it: a rule, a comparison with the training data, the role judge, or, in audits that a
# registry keeps from before 0.2.0, Presidio.
FindingSource = Literal["rules", "data", "judge"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with `text[start:end]` of the variable `where`: `kind` is a kind of order, a
    trace, 'unreadable', 'copied', or a hazard's code; `reason` says what the text does."""

    where: str
    kind: str
    severity: Severity
    start: int
    end: int
    quote: str
    reason: str
    source: FindingSource = "rules"


def scan(text: str, where: str = "", copies: NoLeakCheck | None = None) -> list[Finding]:
    """All that the rules find in a text; `copies` = compared with training data too."""
    found = {(each.kind, each.start): each for each in reversed(_orders(text))}
    findings = [replace(each, where=where) for each in (*_traces(text), *found.values())]
    if (unread := decoding.foreign(text)) is not None:
        reason = "it is not in a language or script that the rules can read"
        quote = excerpt(text[slice(*unread)])
        findings.append(Finding(where, "unreadable", "medium", *unread, quote, reason))
    for start, end, what in copies.find(text) if copies is not None else ():
        reason, quote = f"it copies {what}", excerpt(text[start:end])
        findings.append(Finding(where, "copied", "high", start, end, quote, reason, "data"))
    return sorted(findings, key=lambda finding: (finding.start, finding.end, finding.kind))


def excerpt(found: str) -> str:
    """In quotation marks, on one line, at most 80 letters."""
    flat = " ".join(found.split())
    return repr(flat if len(flat) <= 80 else f"{flat[:77]}...")


def trace_check(
    variable: Variable, text: str, before: str, others: Sequence[str] = ()
) -> str | None:
    """A `Check`: no trace that the earlier text did not have."""
    known = {(each.kind, each.quote.strip().lower()) for each in _traces(before)}
    for each in _traces(text):
        if (each.kind, each.quote.strip().lower()) not in known:
            return f"{each.reason} that the earlier text did not have: {each.quote}"
    return None


def order_check(
    variable: Variable, text: str, before: str = "", others: Sequence[str] = ()
) -> str | None:
    """A `Check`: no order that no instinct may give, whether or not the earlier text gave it. ψ may
    speak of scores, as a rubric must, unless it hands out full ones whatever the answer."""
    rubric = variable == "critic" and not decoding.patterns()["always"].search(text)
    given = (each for each in _orders(text) if not (rubric and each.kind == "grader"))
    return next((f"{each.reason}: {each.quote}" for each in given), None)


def safety_check(
    variable: Variable, text: str, before: str, others: Sequence[str] = ()
) -> str | None:
    """Both: what a rewrite must pass where `critic.safety` is on."""
    return order_check(variable, text) or trace_check(variable, text, before)


# --- orders


@dataclass(frozen=True, slots=True)
class OrderPhrases:
    """Phrases of one kind of order, as matched in folded text. `forbids`: they are an order because
    of what they forbid ("do not tell the user ..."), so that no "not" before them disarms them."""

    name: str
    reason: str
    phrase: re.Pattern[str]
    forbids: bool


@cache
def orders() -> tuple[OrderPhrases, ...]:
    """The kinds of order of orders.toml."""
    tree = decoding.read_table("orders.toml")
    words: dict[str, str] = {}

    def fill(pattern: str) -> str:
        return re.sub(r"<([a-z]+)>", lambda match: words[match[1]], decoding.on_one_line(pattern))

    for name, pattern in tree["words"].items():
        words[name] = fill(pattern)
    return tuple(
        OrderPhrases(
            kind["name"],
            kind["reason"],
            re.compile("|".join(rf"\b(?:{fill(phrase)})" for phrase in kind[phrases])),
            forbids=phrases == "lacks",
        )
        for kind in tree["orders"]
        for phrases in ("phrases", "lacks")
        if phrases in kind
    )


_CLAUSE = 300  # characters before an order that can disarm it: six words and what forbids them


@lru_cache(maxsize=1024)
def _orders(text: str) -> tuple[Finding, ...]:
    """Each order that the text gives, in plain words, in a name or in escapes.
    Cached: training asks of the same texts with every rollout."""
    found = [
        Finding("", order.name, "high", start, end, excerpt(text[start:end]), order.reason)
        for order, start, end in _plain_orders(text)
    ]
    for spelled, start, end in decoding.spelled_out(text):
        for order, first, last in _plain_orders(spelled):
            quote = excerpt(spelled[first:last])
            found.append(Finding("", order.name, "high", start, end, quote, order.reason))
    return tuple(found)


def _plain_orders(text: str) -> Iterator[tuple[OrderPhrases, int, int]]:
    folded, disarmed = decoding.fold(text), decoding.patterns()["disarmed"]
    for order in orders():
        for match in order.phrase.finditer(folded.text):
            before = folded.text[max(0, match.start() - _CLAUSE) : match.start()]
            if order.forbids or not disarmed.search(re.split(r"[.!?;:\n]", before)[-1]):
                yield order, *folded.span(match.start(), match.end())


# --- traces: finders of spans in the text as it is

_Found = Iterator[tuple[tuple[int, int], Severity]]


@lru_cache(maxsize=1024)
def _traces(text: str) -> tuple[Finding, ...]:
    """Cached: a rewrite is checked by itself, then beside the others of its step."""
    found: list[Finding] = []
    taken = bytearray(len(text))
    for name, (what, find) in _TRACES.items():
        for (start, end), severity in find(text):
            if all(taken[start:end]):
                continue
            taken[start:end] = b"\1" * (end - start)
            quote = f"U+{ord(text[start]):04X}" if name == "invisible" else text[start:end]
            reason = f"it contains {what}"
            found.append(Finding("", name, severity, start, end, excerpt(quote), reason))
    return tuple(found)


def _spans(name: str, text: str) -> Iterator[tuple[tuple[int, int], str]]:
    return ((match.span(), match.group()) for match in decoding.patterns()[name].finditer(text))


def _markers(text: str) -> _Found:
    for name in ("marker", "placeholder"):
        for span, _ in _spans(name, text):
            yield span, "high"


def _invisible(text: str) -> _Found:
    for (start, end), char in _spans("unusual", text):
        # A (non-)joiner between two characters beyond ASCII is part of an emoji or of a script.
        around = text[start - 1 : start] + text[end : end + 1]
        native = len(around) == 2 and not any(c.isascii() for c in around)
        if decoding.is_invisible(char) and not (char in "\u200c\u200d" and native):
            yield (start, end), "high"


def _look_alikes(text: str) -> _Found:
    """Words of Latin letters with a Cyrillic or Greek one among them, words of such letters alone
    in a text that is Latin for the rest, and letters styled in Unicode."""
    if text.isascii():
        return
    native = any(_is_cyrillic(c) and c not in decoding.LOOK_ALIKES for c in text)
    for match in re.finditer(r"[^\W\d_]+", text):
        word = match.group()
        latin = any(c.isascii() for c in word)
        stray = not native and all(_is_cyrillic(c) for c in word)
        if (latin or stray) and any(c in decoding.LOOK_ALIKES for c in word):
            yield match.span(), "high"
        elif any(_is_styled(c) for c in word):
            yield match.span(), "medium"


def _is_cyrillic(char: str) -> bool:
    return unicodedata.name(char, "").startswith("CYRILLIC")


def _is_styled(char: str) -> bool:
    if char.isascii():
        return False
    plain = unicodedata.normalize("NFKC", char)
    name = unicodedata.name(char, "")
    return plain.isascii() and plain.isalpha() and ("MATHEM" in name or "FULLWIDTH" in name)


def _secrets(text: str) -> _Found:
    taken = [span for span, _ in _spans("secret", text)]
    for span in taken:
        yield span, "high"
    for match in decoding.patterns()["named_secret"].finditer(text):
        start, end = match.span("value")
        value = match["value"].rstrip(".!?)]}")
        if not any(a < end and start < b for a, b in taken) and _is_key_like(value):
            yield (start, start + len(value)), "high"


def _is_key_like(value: str) -> bool:
    letters = sum(c.isalpha() for c in value)
    digits = sum(c.isdigit() for c in value)
    marks = sum(not c.isalnum() and c not in "-_'/" for c in value)
    return len(value) >= 6 and letters >= 2 and digits >= 1 and letters + digits + marks >= 6


def _personal(text: str) -> _Found:
    """Numbers with a check digit count only where it fits."""
    for span, found in _spans("email", text):
        yield span, "medium" if decoding.patterns()["office"].match(found) else "high"
    numbers: Mapping[str, Callable[[str], bool]] = {"card": _has_check_digit, "iban": _is_iban}
    for name in ("phone", "ssn", "card", "iban", "born", "document", "street"):
        for span, found in _spans(name, text):
            if numbers.get(name, bool)(found):
                yield span, "high"


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


def _addresses(text: str) -> _Found:
    beacons = [span for span, _ in _spans("beacon", text)]
    for (start, end), found in _spans("url", text):
        end -= len(found) - len(found.rstrip(".,:-"))
        if text[start - 1 : start] == "@":  # what follows in an e-mail address
            continue
        drawn = any(a <= start < b for a, b in beacons)
        sent = decoding.patterns()["sending"].search(text, max(0, start - 120), start)
        yield (start, end), "high" if drawn or sent else "medium"


def _encoded(text: str) -> _Found:
    for span in dict.fromkeys(decoding.hidden(text)):
        yield span, "medium"


# Each kind, what it is called in "it contains an address", and what finds it.
_TRACES: Mapping[str, tuple[str, Callable[[str], _Found]]] = {
    "marker": ("a role marker or control token", _markers),
    "invisible": ("an invisible character", _invisible),
    "look-alike": ("a letter that passes for another", _look_alikes),
    "secret": ("a secret", _secrets),
    "personal": ("personal data", _personal),
    "address": ("an address", _addresses),
    "encoded": ("text that is not plain language", _encoded),
}
