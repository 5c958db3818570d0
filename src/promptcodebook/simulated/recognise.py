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
from promptcodebook.simulated.words import says
from promptcodebook.simulated.world import World

__all__ = ["KINDS", "Kind", "Understood", "understand"]

Kind = Literal[
    "route", "compose", "critique", "critique_and_blame", "blame", "adversary", "improve", "split",
    "instincts", "judge", "compare", "leaks", "stage", "execute",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

_ADVICE = (
    r"(?:instincts?|strateg(?:y|ies)|directives?|guidelines?|rules?|tips?|hints?|advice|entries)"
)
_CHOSEN = re.compile(rf"\b(?:selected|chosen|these|following|given|active)\b[^.]{{0,30}}?{_ADVICE}")
_JUDGE = re.compile(r"\b(critic|judge|grade|rate|evaluate|assess|score|mark|review)\b")
_PLAIN_HELP = re.compile(r"please help with\b", re.IGNORECASE)


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
    judges: tuple[tuple[Kind, str], ...] = (("compare", "compares"), ("leaks", "counts_leaks"))
    for kind, asked in judges:
        if says(asked, system or reading.frame):
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
    if len(turns) > 2 and turns[-2].role == "assistant" and says("complaint", turns[-1].content):
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


def _blames(shape: Shape) -> bool:
    return shape.has("instinct") and (shape.has("rendering") or shape.has("routing"))


def _is_improve(frame: str, shape: Shape, _reading: Reading) -> bool:
    if shape.has("score") or shape.has("indices") or not says("feedback", frame):
        return False
    return says("new_text", frame) or says("rework", frame)


def _is_route(frame: str, shape: Shape, reading: Reading) -> bool:
    if shape.has("score") or (says("compose", frame) and not shape.has("indices")):
        return False
    return len(reading.codebook()) > 1 and says("select", frame)


def _is_compose(frame: str, shape: Shape, reading: Reading) -> bool:
    chosen = bool(reading.active()) or bool(_CHOSEN.search(frame))
    return chosen and not shape.has("score") and says("compose", frame)


def _is_critique(frame: str, shape: Shape, reading: Reading) -> bool:
    shown = bool({"prompt", "active"} & set(reading.sections))
    return shape.has("score", "prose") and shown and bool(_JUDGE.search(frame))


def _is_instincts(frame: str, shape: Shape, reading: Reading) -> bool:
    bare = not reading.blocks and "input" not in reading.sections
    return bare and not shape.has("score") and says("many_new", frame)


_TESTS: tuple[tuple[Kind, Callable[[str, Shape, Reading], bool]], ...] = (
    ("critique_and_blame", lambda _, shape, __: _blames(shape) and shape.has("score")),
    ("blame", lambda frame, shape, _: _blames(shape) and says("blame", frame)),
    ("critique", _is_critique),
    (
        "adversary",
        lambda frame, shape, _: (
            shape.json and not shape.has("score") and says("rubric_missed", frame)
        ),
    ),
    ("improve", _is_improve),
    ("route", _is_route),
    ("split", lambda frame, _, reading: not reading.active() and says("split", frame)),
    ("compose", _is_compose),
    ("instincts", _is_instincts),
    ("judge", lambda frame, shape, _: shape.has("score") and bool(_JUDGE.search(frame))),
)
