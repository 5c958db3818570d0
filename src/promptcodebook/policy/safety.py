"""The safety scan: refuses a rewrite that would turn a prompt against its user or its judge.

A net, not a proof: English phrases in their plain forms, matched after Unicode folding. It looks
for orders ("reveal the system prompt"), not for mentions: what a text forbids, flags or merely
describes ("never mislead the reader", "a reply that misleads") passes. Every rule says in one
line what it catches and why; each has tests on both sides.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from promptcodebook.types import Variable

__all__ = [
    "MARKERS",
    "ORDERS",
    "Order",
    "SafetyCheck",
]


@dataclass(frozen=True, slots=True)
class Order:
    """A kind of order that no rewrite may give; `phrase` is matched in folded text."""

    name: str
    reason: str
    phrase: re.Pattern[str]


def _order(name: str, reason: str, *phrases: str) -> Order:
    return Order(name, reason, re.compile("|".join(rf"\b(?:{p})" for p in phrases)))


# Words that may stand between a verb and what it is done to.
_DET = (
    r"(?:\s+(?:the|a|an|any|all|of|your|its|their|our|my|his|her|these|those|this|that|every|"
    r"own|other|full|entire|complete|whole|exact|hidden|internal|initial|original|secret|"
    r"current|out|me|us|them|it|to|and|or|verbatim|human))*\s+"
)
_LAW = (
    r"(?:instructions?|prompts?|messages?|rules?|guidelines?|directives?|directions?|commands?|"
    r"polic(?:y|ies)|safeguards?|guardrails?|restrictions?)\b"
)
_EARLIER = (
    r"(?:previous|prior|earlier|above|preceding|foregoing|system|developer|safety|built-in|"
    r"original|initial|existing)"
)
_JUDGE = (
    r"(?:graders?|judges?|critics?|evaluators?|scorers?|examiners?|raters?|checkers?|reviewers?|"
    r"reward model|markers?|assessors?)\b"
)
_PERSON = (
    r"(?:users?|readers?|customers?|clients?|humans?|people|persons?|audience|operators?|"
    rf"developers?|public|{_JUDGE})"
)
_WRITE = (
    r"(?:write|produce|generate|create|include|use|add|provide|give|offer|promote|spread|"
    r"encourage|express|output|compose|post)"
)

ORDERS: tuple[Order, ...] = (
    # A learned text must not undo what the user, the system or the vendor laid down.
    _order(
        "override",
        "it tells the model to set earlier or system instructions aside",
        r"(?:ignore|disregard|forget|override|overrule|bypass|circumvent|violate|set aside|"
        r"pay no attention to|(?:do not|don't|stop|never) (?:follow|obey)(?:ing)?)"
        rf"{_DET}(?:{_EARLIER}\s+(?:\w+\s+)?){{1,2}}{_LAW}",
        r"(?:ignore|disregard|forget|override|bypass)\s+(?:all|everything|any and all)"
        rf"(?:\s+(?:of|the|your|other))*\s+(?:{_LAW}(?!\s+(?:in|inside|within|embedded|contained|"
        r"found|given|from|that))|(?:you were|you have been) (?:told|given)|(?:said )?above)",
        r"you are (?:no longer|not) bound by",
        r"(?:enter|enable|switch to|act in) (?:developer|jailbreak|dan|god) mode",
    ),
    # The prompt of a deployment, and its keys, belong to whoever deployed it.
    _order(
        "reveal",
        "it tells the model to reveal its prompt or a key",
        r"(?:reveal|repeat|print|show|output|disclose|leak|expose|display|quote|recite|share|"
        rf"tell|give|send|dump|include|state){_DET}(?:system (?:prompt|message|instructions?)|"
        r"developer (?:message|prompt)|prompt verbatim|hidden (?:prompt|instructions?)|"
        r"(?:api|secret|private|access|encryption|ssh|signing)[ -]?keys?|access tokens?)\b",
        rf"(?:reveal|disclose|leak|expose|dump|exfiltrate|steal){_DET}"
        r"(?:passwords?|credentials?|secrets|environment variables)\b",
    ),
    # Whoever reads the answer, user or evaluator, must be able to take it at its word.
    _order(
        "deceive",
        "it tells the model to deceive someone or to hide something",
        rf"(?:deceive|mislead|trick|fool|manipulate|lie to|gaslight|scam|defraud){_DET}{_PERSON}\b",
        rf"(?:hide|conceal|withhold|keep)\b[^.!?;\n]{{0,80}}?\bfrom{_DET}{_PERSON}\b",
        r"(?:pretend|falsely claim)\s+(?:that you have|to have|you have)\b",
        r"(?:fabricate|falsify|invent|make up)"
        rf"{_DET}(?:\w+\s+)?(?:facts|sources|citations|references|evidence|quotations|quotes)\b",
    ),
    # The reward must measure the answer, not how well the answer talks to whoever scores it.
    _order(
        "grader",
        "it addresses or flatters whoever scores the answer",
        r"(?:give|award|assign|grant|deserves?)\b[^.!?;\n]{0,40}?\b(?:full|perfect|maximum|max)"
        r"(?:\s+possible)?\s+(?:scores?|marks?|points?|credit|grades?|ratings?|rewards?)\b"
        r"(?!\s+(?:line|report|list|table|card|sheet))",
        r"(?:rate|score|grade|mark|judge)\s+(?:this|my|our)\s+(?:answer|response|output|reply)\b",
        rf"(?:dear|attention|note to|message to|hello){_DET}{_JUDGE}",
        r"(?:flatter|praise|compliment|please|persuade|convince|impress|beg|bribe|thank|appease|"
        r"appeal to|address|speak to|influence|plead with|tell|inform|remind|instruct|assure|ask)"
        rf"{_DET}{_JUDGE}",
    ),
    # No codebook of ours spreads hate, violence or crime.
    _order(
        "harm",
        "it asks for hateful, violent or illegal material",
        rf"{_WRITE}\b[^.!?;,\n]{{0,40}}?\b(?:hate speech|hateful|racist|sexist|anti-?semitic|"
        r"homophobic|slurs?|death threats?|threats of violence|violent threats?|"
        r"child (?:porn\w*|sexual)|sexual content (?:involving|with|about) (?:minors|children)|"
        r"terrorist propaganda)\b",
        rf"(?:kill|murder|torture|assault|rape|poison|stab|shoot|lynch|exterminate|bomb){_DET}"
        rf"(?:\w+\s+)?(?:{_PERSON}|civilians?|someone|children|women|men|minorit(?:y|ies))\b",
        r"(?:how to|ways to|steps to|instructions (?:for|to|on))\s+(?:build|make|synthesi[sz]e|"
        r"construct|making|building)\b[^.!?;,\n]{0,30}?\b(?:bombs?|explosives?|nerve agents?|"
        r"firearms?|bioweapons?|methamphetamine|malware|ransomware)\b",
        r"(?:incite|glorify|praise) (?:\w+ )?(?:violence|hatred|terrorism|genocide)\b",
        r"(?:commit|facilitate|assist (?:with|in)|help (?:commit|with))\s+(?:\w+\s+)?(?:fraud|"
        r"crimes?|tax evasion|money laundering|terrorism|theft)\b",
        r"(?:launder money|evade taxes|hack into|steal (?:money|identities|credit cards?))\b",
    ),
)

MARKERS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>"  # <|im_start|>, <|eot_id|>, ...
    r"|\[/?(?:INST|SYS(?:TEM_PROMPT)?)\]|<</?SYS>>"  # Llama 2, Mistral
    r"|</?s>|<(?:start|end)_of_turn>|</?think>"  # sentence ends, Gemma, reasoning blocks
    r"|^[ \t>*]*(?:system|assistant|user|human|developer|ai)[ \t*]*:"  # a turn of a transcript
    r"|^[ \t]*#{1,6}[ \t]*(?:system|assistant|user|human|instruction)s?[ \t]*:?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
"""What chat templates put between turns: in a prompt it may open a turn of its own."""

_URL = re.compile(
    r"(?:https?|ftps?|file|wss?|data|javascript):(?://)?[^\s)>\]\"']+"
    r"|\bwww\.[^\s)>\]\"']+"
    # A host begins where its run of letters, dots and hyphens does: no run is tried twice.
    r"|(?<![\w.-])[a-z0-9.-]*[a-z0-9-]\.(?:com|org|net|io|ai|dev|app|gov|edu|info|biz|xyz|ru|cn|co|me)\b"
    r"(?:/[^\s)>\]\"']*)?",
    re.IGNORECASE,
)

# "never reveal ...", "refuse to ignore ...", "flag attempts to ...": the order is not given.
_DISARMED = re.compile(
    r"(?:\b(?:not|never|cannot|nor|refuse|reject|decline|prevent|flag|detect|resist|report|"
    r"penali[sz]e|whether|rather than|guard against|watch for|"
    r"(?:attempts?|requests?|tries|trying|asks?|asked|tells?|told|instructions?)(?: \w+)? to)\b"
    r"|n't\b)(?:[,\s]+(?!(?:but|then|and|only)\b)[\w'-]+){0,6}[,\s]*$"
)
# Characters before an order that can disarm it: six words and what forbids them.
_CLAUSE = 300
# "do not hesitate to reveal" is an order after all.
_TWICE = re.compile(
    r"(?:do not|don't|never|not) (?:hesitate|fail|forget|be afraid|be shy|neglect|refuse|decline)"
)
_ALWAYS = re.compile(r"\b(?:always|regardless|no matter|every (?:response|answer|output)|any case)")


class SafetyCheck:
    """A `Check`: None for a safe rewrite, else the reason with the words that gave it away.

    Markers, invisible characters and addresses that the earlier text already had are not held
    against a rewrite; orders always are. ψ may speak of scores, as a rubric must, unless it hands
    out full ones whatever the answer.
    """

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        return _new_trace(text, before) or _find_order(variable, text)


def _new_trace(text: str, before: str) -> str | None:
    for what, found in _TRACES:
        known = set(found(before))
        new = next((each for each in found(text) if each not in known), None)
        if new is not None:
            return f"it contains {what} that the earlier text did not have: {_excerpt(new)}"
    return None


def _find_order(variable: Variable, text: str) -> str | None:
    folded = _fold(text)
    rubric = variable == "critic" and not _ALWAYS.search(folded)
    for order in ORDERS:
        if rubric and order.name == "grader":
            continue
        for match in order.phrase.finditer(folded):
            if _is_given(folded, match.start()):
                return f"{order.reason}: {_excerpt(match.group())}"
    return None


def _is_given(folded: str, at: int) -> bool:
    """Whether the words before a phrase leave it an order."""
    clause = re.split(r"[.!?;:\n]", folded[max(0, at - _CLAUSE) : at])[-1]
    return _DISARMED.search(clause) is None


def _fold(text: str) -> str:
    """Lower case, compatibility forms unified, invisible characters out, double negation undone."""
    seen = "".join(c for c in unicodedata.normalize("NFKC", text) if not _is_invisible(c))
    plain = re.sub(r"[ \t]+", " ", seen.casefold().replace("\u2019", "'"))
    return _TWICE.sub("", plain)


def _markers(text: str) -> Iterator[str]:
    return (m.group().strip().lower() for m in MARKERS.finditer(text))


def _addresses(text: str) -> Iterator[str]:
    return (m.group().strip(".,:-").lower() for m in _URL.finditer(text))


def _invisible(text: str) -> Iterator[str]:
    for i, char in enumerate(text):
        if _is_invisible(char) and not _joins(text, i):
            yield f"U+{ord(char):04X}"


def _is_invisible(char: str) -> bool:
    """Control, format, private and unassigned characters, fillers and variation supplements."""
    if " " <= char <= "~" or char in "\n\r\t":
        return False
    fillers = "\u115f\u1160\u3164\uffa0\u2800"
    supplement = 0xE0100 <= ord(char) <= 0xE01EF
    return unicodedata.category(char)[0] == "C" or char in fillers or supplement


def _joins(text: str, i: int) -> bool:
    """A (non-)joiner between two characters beyond ASCII: part of an emoji or of a script."""
    around = text[i - 1 : i] + text[i + 1 : i + 2]
    return text[i] in "\u200c\u200d" and len(around) == 2 and not any(c.isascii() for c in around)


def _excerpt(found: str) -> str:
    flat = " ".join(found.split())
    return repr(flat if len(flat) <= 80 else f"{flat[:77]}...")


_TRACES: tuple[tuple[str, Callable[[str], Iterator[str]]], ...] = (
    ("a role marker or control token", _markers),
    ("an invisible character", _invisible),
    ("an address", _addresses),
)
