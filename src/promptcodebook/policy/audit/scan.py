"""The rule scan: what is wrong with a text, found without a model; and the check of rewrites that
is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from promptcodebook.method.checks import NoLeakCheck
from promptcodebook.policy.audit.decoding import foreign
from promptcodebook.policy.audit.orders import find_orders
from promptcodebook.policy.audit.traces import TRACES, Severity
from promptcodebook.types import Variable

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
        found = list(_traces(text, ""))
        known = {(each.kind, _same(each)) for each in (_traces(before, "") if found else ())}
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
