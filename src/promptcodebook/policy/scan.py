"""The rule scan: what is wrong with a text, found without a model, and the checks of rewrites.

The rules look for orders that no instinct may give ("reveal the system prompt"), in folded text. A
text that forbids, flags or describes an order ("never mislead the reader") passes. The scan is a
net, not a proof: docs/safety.md says what it finds and misses. Its phrases are in orders.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

from promptcodebook.method.update import NoLeakCheck
from promptcodebook.policy.decoding import Folded, decodings, fold, foreign
from promptcodebook.policy.traces import TRACES, Severity
from promptcodebook.types import Variable


@dataclass(frozen=True, slots=True)
class Order:
    """A kind of order; `phrase` is matched in folded text. `lacks` matches what is an order because
    of what it forbids ("do not tell the user ..."), so that no "not" before it disarms it."""

    name: str
    reason: str
    phrase: re.Pattern[str]
    lacks: re.Pattern[str] | None = None


@cache
def orders() -> tuple[Order, ...]:
    """The kinds of order of orders.toml."""
    text = (resources.files("promptcodebook.policy") / "orders.toml").read_text("utf-8")
    tree = tomllib.loads(text)
    words: dict[str, str] = {}
    for name, pattern in tree["words"].items():
        words[name] = _fill(pattern, words)
    return tuple(
        Order(
            kind["name"],
            kind["reason"],
            _compile(kind["phrases"], words),
            _compile(kind["lacks"], words) if "lacks" in kind else None,
        )
        for kind in tree["orders"]
    )


def _compile(phrases: Sequence[str], words: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(rf"\b(?:{_fill(phrase, words)})" for phrase in phrases))


def _fill(pattern: str, words: Mapping[str, str]) -> str:
    joined = re.sub(r"\n\s*", "", pattern)
    return re.sub(r"<([a-z]+)>", lambda match: words[match[1]], joined)


# "never reveal ...", "refuse to ignore ...", "flag attempts to ...": the order is not given.
_DISARMED = re.compile(
    r"(?:\b(?:not|never|cannot|nor|refuse|reject|decline|prevent|flag|detect|resist|report|"
    r"penali[sz]e|whether|rather than|guard against|watch for|explain why|"
    r"(?:attempts?|requests?|tries|trying|asks?|asked|tells?|told|instructions?)(?: \w+)? to|"
    r"instead of|if (?:the|a) (?:text|user|document|message|input))\b"
    r"|n't\b)(?:[,\s]+(?!(?:but|then|and|only)\b)[\w'-]+){0,6}[,\s]*$"
)
# Characters before an order that can disarm it: six words and what forbids them.
_CLAUSE = 300


@dataclass(frozen=True, slots=True)
class Given:
    """An order that `text[start:end]` gives: in these words, and for this reason; both say how the
    words are encoded where they are."""

    order: Order
    start: int
    end: int
    words: str
    reason: str


@lru_cache(maxsize=1024)
def find_orders(text: str) -> tuple[Given, ...]:
    """Each order that the text gives, in plain words or in encoded ones. Kept, since training asks
    of the same texts with every rollout."""
    return tuple(_orders_of(text))


def _orders_of(text: str) -> Iterator[Given]:
    for order, start, end in _plain_orders(text):
        yield Given(order, start, end, text[start:end], order.reason)
    for decoded in decodings(text):
        for order, start, end in _plain_orders(decoded.said):
            reason = f"{order.reason}, in {decoded.how}"
            yield Given(order, decoded.start, decoded.end, decoded.said[start:end], reason)


def _plain_orders(text: str) -> Iterator[tuple[Order, int, int]]:
    folded = fold(text)
    for order in orders():
        for match in order.phrase.finditer(folded.text):
            if _is_given(folded, match.start()):
                yield order, *folded.span(match.start(), match.end())
        for match in order.lacks.finditer(folded.text) if order.lacks is not None else ():
            yield order, *folded.span(match.start(), match.end())


def _is_given(folded: Folded, at: int) -> bool:
    """Whether the words before a phrase leave it an order."""
    clause = re.split(r"[.!?;:\n]", folded.text[max(0, at - _CLAUSE) : at])[-1]
    return _DISARMED.search(clause) is None


Source = Literal["rules", "data", "presidio", "judge"]
"""Who found it: a rule, a comparison with the training data, Presidio, or the role judge."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one text: `text[start:end]` of the variable `where`, quoted.

    `kind` is a kind of order, a trace, 'unreadable', 'copied', or the code of an AILuminate hazard.
    `reason` says what the text does, beginning with "it".
    """

    where: str
    kind: str
    severity: Severity
    start: int
    end: int
    quote: str
    reason: str
    source: Source = "rules"


def scan(text: str, where: str = "", copies: NoLeakCheck | None = None) -> list[Finding]:
    """All that the rules find in a text, by its place; `copies` = compared with training data too.

    A piece that several traces fit is found once, by the first of them.
    """
    found = [*_traces(text, where), *_orders(text, where)]
    if (unread := foreign(text)) is not None:
        reason = "it is in a language or script, or in none, that the rules cannot read"
        quote = excerpt(text[slice(*unread)])
        found.append(Finding(where, "unreadable", "medium", *unread, quote, reason))
    for start, end, what in copies.find(text) if copies is not None else ():
        reason = f"it copies {what}"
        quote = excerpt(text[start:end])
        found.append(Finding(where, "copied", "high", start, end, quote, reason, "data"))
    return sorted(found, key=lambda finding: (finding.start, finding.end, finding.kind))


@lru_cache(maxsize=1024)
def _traces_of(text: str) -> tuple[Finding, ...]:
    """Cached: a rewrite is checked by itself, then beside the others of its step."""
    return tuple(_traces(text, ""))


def _traces(text: str, where: str) -> Iterator[Finding]:
    taken = bytearray(len(text))
    for trace in TRACES:
        for (start, end), severity in trace.find(text):
            if all(taken[start:end]):
                continue
            taken[start:end] = b"\1" * (end - start)
            quote = _escape(text[start]) if trace.name == "invisible" else text[start:end]
            reason = f"it contains {trace.what}"
            yield Finding(where, trace.name, severity, start, end, excerpt(quote), reason)


def _escape(char: str) -> str:
    return f"U+{ord(char):04X}"


def _orders(text: str, where: str) -> Iterator[Finding]:
    """Each stretch of text once for each kind of order that it gives."""
    seen: set[tuple[str, int]] = set()
    for each in find_orders(text):
        if (each.order.name, each.start) not in seen:
            seen.add((each.order.name, each.start))
            kind, quote = each.order.name, excerpt(each.words)
            yield Finding(where, kind, "high", each.start, each.end, quote, each.reason)


class TraceCheck:
    """A `Check`: no marker, hidden or false letter, address, secret or personal data that the
    earlier text did not have."""

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        found = _traces_of(text)
        known = {(each.kind, _same(each)) for each in (_traces_of(before) if found else ())}
        for finding in found:
            if (finding.kind, _same(finding)) not in known:
                return f"{finding.reason} that the earlier text did not have: {finding.quote}"
        return None


def _same(finding: Finding) -> str:
    return finding.quote.strip().lower()


_ALWAYS = re.compile(
    r"\b(?:always|regardless|no matter|every (?:response|answer|output)|any case)", re.I
)


class OrderCheck:
    """A `Check`: no order that no instinct may give, whether or not the earlier text gave it.

    ψ may speak of scores, as a rubric must, unless it hands out full ones whatever the answer.
    """

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        rubric = variable == "critic" and not _ALWAYS.search(text)
        for each in find_orders(text):
            if not (rubric and each.order.name == "grader"):
                return f"{each.reason}: {excerpt(each.words)}"
        return None


class SafetyCheck:
    """Both: what a rewrite must pass where `critic.safety` is on."""

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        order = OrderCheck()(variable, text, before, others)
        return order or TraceCheck()(variable, text, before, others)


def excerpt(found: str) -> str:
    """In quotation marks, on one line, at most 80 letters."""
    flat = " ".join(found.split())
    return repr(flat if len(flat) <= 80 else f"{flat[:77]}...")
