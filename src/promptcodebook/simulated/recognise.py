"""What a request asks for, told from its words alone (never from a role, a tag or a hash).

The patterns look for a demand (a verb and its object) in the request's frame, where inputs,
replies and lists are already taken out; the tests hold several templates for each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from promptcodebook.calls import Message
from promptcodebook.simulated.chat import ChatRequest
from promptcodebook.simulated.reading import Reading, read
from promptcodebook.simulated.shape import Shape, asked_shape
from promptcodebook.simulated.stages import Staged, read_stage
from promptcodebook.simulated.world import World

__all__ = ["KINDS", "Kind", "Understood", "understand"]

Kind = Literal[
    "route",
    "compose",
    "critique",
    "critique_and_blame",
    "blame",
    "adversary",
    "improve",
    "split",
    "instincts",
    "judge",
    "compare",
    "leaks",
    "stage",
    "execute",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_ADVICE = (
    r"(?:instincts?|strateg(?:y|ies)|directives?|guidelines?|rules?|tips?|hints?|advice|entries)"
)
_COMPLAINT = re.compile(
    r"\b(cannot be used|can't be used|not valid|invalid|malformed|try again|once more|again)\b",
    re.IGNORECASE,
)
_NEW_TEXT = re.compile(
    r"\b(reply|respond|answer|return|output|provide|write|give|produce|propose|print|send)\b"
    r"[^.]{0,50}?\b(new|improved|revised|rewritten|updated|reworded|edited|amended)\b[^.]{0,20}?"
    r"\b(text|instructions?|prompt|version|directive|wording|variable|value|strategy|instinct)"
)
_REWORK = re.compile(
    r"\b(improve|rewrite|revise|refine|update|edit|amend|rework|reword|mend|adapt)\b"
    r"[^.]{0,120}?\b(text|instructions?|prompt|directive|instinct|strategy|criteria|guide|rubric|"
    r"variable|it|passage)\b"
)
_FEEDBACK = re.compile(
    r"\b(feedback|critique|gradients?|comments?|criticism|complaints?|lessons?)\b"
)
_RUBRIC_MISSED = re.compile(
    r"\b(rubric|criteria|critic|evaluator|reviewer|grader)\b[\s\S]{0,200}?\b(miss|missed|misses|"
    r"overlook(?:ed|s)?|invent(?:ed|s)?|blind|made up|hallucinat\w+|failed to (?:see|notice))\b"
    r"|\b(miss(?:ed)?|overlook(?:ed)?|invent(?:ed)?|blind)\b[\s\S]{0,120}?"
    r"\b(rubric|criteria|critic|evaluator|reviewer|grader)\b"
)
_BLAME = re.compile(
    r"\b(attribut\w+|partition\w*|assign\w*|blame\w*|credit|apportion\w*|lay|laid|sort\w*|split\w*|"
    r"divide\w*|responsible|allocat\w+|distribute\w*)\b"
)
_SELECT = re.compile(
    r"\b(select|choose|pick|decide on|decide which|name|shortlist|route)\b[\s\S]{0,140}?"
    rf"\b({_ADVICE}|ind(?:ex|ices|exes)|numbers?|items?)\b"
)
_COMPOSE = re.compile(
    r"\b(compose|combine|merge|weave|fuse|blend|turn|write|condense|produce|draft|work)\b"
    r"[\s\S]{0,140}?\b(prompt|instructions?|briefing)\b"
)
_CHOSEN = re.compile(rf"\b(?:selected|chosen|these|following|given|active)\b[^.]{{0,30}}?{_ADVICE}")
_SPLIT = re.compile(
    r"\b(split|break|take|pull|decompose|divide|separate|cut)\b[\s\S]{0,80}?\b(prompt|instructions?)\b"
    rf"[\s\S]{{0,160}}?\b({_ADVICE}|pieces|parts)\b"
)
_MANY_NEW = re.compile(
    r"\b(write|give|list|invent|propose|draft|come up with|produce|think of|suggest)\b[^.]{0,40}?"
    rf"\b(?:\d+|two|three|four|five|six|seven|eight|nine|ten|twelve|several)\b[^.]{{0,60}}?{_ADVICE}"
)
_JUDGE = re.compile(r"\b(critic|judge|grade|rate|evaluate|assess|score|mark|review)\b")
_COMPARES = re.compile(
    r"\b(?:response|answer|reply)\s+\W?a\b[\s\S]{0,80}?\b(?:as good|better|worse)\b"
    r"[\s\S]{0,80}?\b(?:response|answer|reply)?\s*\W?b\b"
)
_COUNTS_LEAKS = re.compile(
    r"\b(?:how many|count|number of|which)\b[\s\S]{0,120}?\b(?:pieces|units|items|pii)\b"
    r"[\s\S]{0,160}?\b(?:occur|appear|leak\w*|contain\w*|present|stand|found)\b"
)
_PLAIN_HELP = re.compile(r"please help with\b", re.IGNORECASE)
_PROMPTED = re.compile(rf"\b(prompt|{_ADVICE})\b")


@dataclass(frozen=True, slots=True)
class Understood:
    """A request with its kind, what was read in it, and the shape its reply must have."""

    request: ChatRequest
    kind: Kind
    reading: Reading
    shape: Shape
    input: str
    """The task input it is about; '' where it names none."""
    staged: Staged | None = None
    """The stage of a program that it is, if it is one."""
    sent: tuple[Message, ...] = ()
    """All messages, also those of an earlier try."""


def understand(request: ChatRequest, world: World) -> Understood:
    """The request read and its kind recognised."""
    return replace(_understood(_without_complaint(request), world), sent=request.messages)


def _understood(request: ChatRequest, world: World) -> Understood:
    user = request.user
    system = request.system
    known = user.strip() if world.example(user) is not None else world.locate(user)
    rest = user.replace(known, " ") if known else user
    reading = read(system, rest)
    only_input = bool(known) and not rest.strip()
    if only_input:
        shape = asked_shape(request, reading.system_frame)
        listed = any(len(b.entries) > 1 for b in reading.blocks)
        chosen = listed and _is_route(reading.system_frame, shape, reading)
        return Understood(request, "route" if chosen else "execute", reading, shape, known)
    shape = asked_shape(request, reading.frame)
    if world.staged:
        special = _special(request, reading, shape, known)
        if special is not None:
            return special
    kind = _kind(reading, shape)
    if not known:
        known = reading.sections.get("input", "" if kind not in ("route", "execute") else user)
    return Understood(request, kind, reading, shape, known.strip())


def _special(request: ChatRequest, reading: Reading, shape: Shape, known: str) -> Understood | None:
    """What only worlds of several stages know: judges of two answers and of leaks, and stages."""
    system = request.system.lower()
    judges: tuple[tuple[Kind, re.Pattern[str]], ...] = (
        ("compare", _COMPARES),
        ("leaks", _COUNTS_LEAKS),
    )
    for kind, asked in judges:
        if asked.search(system or reading.frame):
            return Understood(request, kind, reading, shape, known.strip())
    if _PLAIN_HELP.match(request.user) and not system:
        return Understood(request, "execute", reading, shape, request.user.strip())
    learning = {"reward", "prompt", "active", "codebook", "verdict"} & set(reading.sections)
    staged = None if learning else read_stage(request, known)
    if staged is None or shape.has("indices") or shape.has("score"):
        return None
    return Understood(request, "stage", reading, shape, known.strip(), staged)


def _without_complaint(request: ChatRequest) -> ChatRequest:
    """A re-ask read as the request it repeats."""
    turns = request.messages
    if len(turns) > 2 and turns[-2].role == "assistant" and _COMPLAINT.search(turns[-1].content):
        first = next(k for k, m in enumerate(turns) if m.role == "assistant")
        kept: tuple[Message, ...] = turns[:first]
        if kept:
            # The digest of the whole conversation stays: a second try is a new draw.
            return _with_messages(request, kept)
    return request


def _with_messages(request: ChatRequest, messages: tuple[Message, ...]) -> ChatRequest:
    shorter = replace(request, messages=messages)
    object.__setattr__(shorter, "digest", request.digest)
    return shorter


def _kind(reading: Reading, shape: Shape) -> Kind:
    for frame in (reading.system_frame, reading.frame):
        for kind, fits in _TESTS:
            if fits(frame, shape, reading):
                return kind
    return "execute"


_Test = Callable[[str, Shape, Reading], bool]


def _blames(shape: Shape) -> bool:
    return shape.has("instinct") and (shape.has("rendering") or shape.has("routing"))


def _is_both(_frame: str, shape: Shape, _reading: Reading) -> bool:
    return _blames(shape) and shape.has("score")


def _is_blame(frame: str, shape: Shape, _reading: Reading) -> bool:
    return _blames(shape) and _BLAME.search(frame) is not None


def _is_adversary(frame: str, shape: Shape, _reading: Reading) -> bool:
    return not shape.has("score") and shape.json and _RUBRIC_MISSED.search(frame) is not None


def _is_improve(frame: str, shape: Shape, _reading: Reading) -> bool:
    if shape.has("score") or shape.has("indices"):
        return False
    told = _FEEDBACK.search(frame) is not None
    return told and (_NEW_TEXT.search(frame) or _REWORK.search(frame)) is not None


def _is_route(frame: str, shape: Shape, reading: Reading) -> bool:
    if shape.has("score") or (_COMPOSE.search(frame) and not shape.has("indices")):
        return False
    listed = len(reading.codebook()) > 1
    return listed and _SELECT.search(frame) is not None


def _is_compose(frame: str, shape: Shape, reading: Reading) -> bool:
    chosen = bool(reading.active()) or _CHOSEN.search(frame) is not None
    return chosen and not shape.has("score") and _COMPOSE.search(frame) is not None


def _is_split(frame: str, _shape: Shape, _reading: Reading) -> bool:
    return _SPLIT.search(frame) is not None


def _is_instincts(frame: str, shape: Shape, reading: Reading) -> bool:
    bare = not reading.blocks and "input" not in reading.sections
    return bare and not shape.has("score") and _MANY_NEW.search(frame) is not None


def _is_critique(frame: str, shape: Shape, reading: Reading) -> bool:
    shown = "prompt" in reading.sections or "active" in reading.sections
    about = shown or _PROMPTED.search(frame) is not None
    return shape.has("score", "prose") and about and shown and _JUDGE.search(frame) is not None


def _is_judge(frame: str, shape: Shape, _reading: Reading) -> bool:
    return shape.has("score") and _JUDGE.search(frame) is not None


_TESTS: tuple[tuple[Kind, _Test], ...] = (
    ("critique_and_blame", _is_both),
    ("blame", _is_blame),
    ("critique", _is_critique),
    ("adversary", _is_adversary),
    ("improve", _is_improve),
    ("route", _is_route),
    ("split", _is_split),
    ("compose", _is_compose),
    ("instincts", _is_instincts),
    ("judge", _is_judge),
)
