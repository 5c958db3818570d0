"""Orders that no instinct may give: English phrases in their plain forms, matched in folded text.

A net, not a proof. It looks for orders ("reveal the system prompt"), not for mentions: what a text
forbids, flags or merely describes ("never mislead the reader", "a reply that misleads") passes.
The phrases are data (orders.toml); docs/safety.md has what they find and what they miss.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from promptcodebook.policy.audit.decoding import decodings
from promptcodebook.policy.audit.folding import Folded, fold


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
    text = (resources.files("promptcodebook.policy.audit") / "orders.toml").read_text("utf-8")
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
