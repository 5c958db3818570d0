"""What a request asks for, recognised by its words alone, and what its role needs to answer it.

Roles, tags and hashes are never used. The patterns look for a demand (a verb and its object) in the
request's frame, from which inputs, replies and lists were removed. The tests hold several templates
for each kind. Which stage of a program a request is follows from the parts that its last paragraph
wants, or the verbs of its order, and its labelled texts. A role gets the world, the parameters, and
this request's draws.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import Order, meaning, patterns, says, sentences
from promptcodebook.simulated.request import ChatRequest, Reading, Shape, read, shape_of
from promptcodebook.simulated.world import Problem, SimulatedSettings, World

Kind = Literal[
    "route", "compose", "critique", "critique_and_blame", "blame", "adversary", "improve", "split",
    "instincts", "judge", "compare", "leaks", "stage", "execute",
]  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Understood:
    """A request with its kind, what was read in it, the shape its reply must have, the task input
    it is about ('' where it names none), and the stage of a program that it is, if it is one."""

    request: ChatRequest
    kind: Kind
    reading: Reading
    shape: Shape
    input: str
    staged: Staged | None = None


def understand(request: ChatRequest, world: World) -> Understood:
    """The request read and its kind recognised; one asked again as the request it repeats."""
    turns = request.messages
    if len(turns) > 2 and turns[-2].role == "assistant" and says("complaint", turns[-1].content):
        first = next(k for k, m in enumerate(turns) if m.role == "assistant")
        # The digest of the whole conversation stays: a second try is a new draw.
        request = replace(request, messages=turns[:first] or turns)
    system, user = request.system, request.user
    known = world.locate(user)
    rest = user.replace(known, " ") if known else user
    reading = read(system, rest)
    if known and not rest.strip():
        shape = shape_of(request, reading.system_frame)
        bare: Kind = "execute"
        if _is_route(_Clues(reading.system_frame, shape, reading)):
            bare = "route"
        return Understood(request, bare, reading, shape, known)
    shape = shape_of(request, reading.frame)
    if world.staged and (special := _special(request, reading, shape, known)) is not None:
        return special
    frames = (reading.system_frame, reading.frame)
    clues = [_Clues(frame, shape, reading) for frame in frames]
    kinds: list[Kind] = [k for c in clues for k, fits in _TESTS.items() if fits(c)]
    kind: Kind = kinds[0] if kinds else "execute"
    if not known:
        known = reading.sections.get("input", "" if kind not in ("route", "execute") else user)
    return Understood(request, kind, reading, shape, known.strip())


def _special(request: ChatRequest, reading: Reading, shape: Shape, known: str) -> Understood | None:
    """What only worlds of several stages know: judges of two answers and of leaks, and stages."""
    system = request.system.lower()
    judges: Mapping[Kind, str] = {"compare": "compares", "leaks": "counts_leaks"}
    for kind, asked in judges.items():
        if says(asked, system or reading.frame):
            return Understood(request, kind, reading, shape, known.strip())
    if says("plain_help", request.user) and not system:
        return Understood(request, "execute", reading, shape, request.user.strip())
    learning = {"reward", "prompt", "active", "codebook", "verdict"} & set(reading.sections)
    staged = None if learning else _read_stage(request, known)
    if staged is None or shape.has("indices") or shape.has("score"):
        return None
    return Understood(request, "stage", reading, shape, known.strip(), staged)


@dataclass(frozen=True, slots=True)
class _Clues:
    """What identifies a kind: the frame of system or user, the reply's shape, and the rest."""

    frame: str
    shape: Shape
    reading: Reading

    def says(self, name: str) -> bool:
        return says(name, self.frame) is not None

    def has(self, *meanings: str) -> bool:
        return self.shape.has(*meanings)

    @property
    def blames(self) -> bool:
        return self.has("instinct") and (self.has("rendering") or self.has("routing"))


def _is_route(clues: _Clues) -> bool:
    if clues.has("score") or (clues.says("compose") and not clues.has("indices")):
        return False
    return len(clues.reading.codebook()) > 1 and clues.says("select")


_TESTS: Mapping[Kind, Callable[[_Clues], object]] = {
    "critique_and_blame": lambda c: c.blames and c.has("score"),
    "blame": lambda c: c.blames and c.says("blame"),
    "critique": lambda c: (
        c.has("score", "prose")
        and {"prompt", "active"}.intersection(c.reading.sections)
        and c.says("judges")
    ),
    "adversary": lambda c: c.shape.json and not c.has("score") and c.says("rubric_missed"),
    "improve": lambda c: (
        not (c.has("score") or c.has("indices"))
        and c.says("feedback")
        and (c.says("new_text") or c.says("rework"))
    ),
    "route": _is_route,
    "split": lambda c: not c.reading.active() and c.says("split"),
    "compose": lambda c: (
        (c.reading.active() or c.says("chosen")) and not c.has("score") and c.says("compose")
    ),
    "instincts": lambda c: (
        not (c.reading.blocks or "input" in c.reading.sections or c.has("score"))
        and c.says("many_new")
    ),
    "judge": lambda c: c.has("score") and c.says("judges"),
}


_TAGGED = re.compile(r"<([A-Za-z][\w -]{1,40})>\n?(.*?)\n?</\1>", re.DOTALL)
_HASHED = re.compile(r"^\[\[ ## ([\w -]{2,40}) ## \]\]\s*$", re.MULTILINE)
_HELD = re.compile(r"passage|context|summar|note|document|evidence|snippet")
_OUTSIDE = re.compile(r"(llm|model|related|outside|external).*(response|reply|answer)")
_THOUGHTS = "Looking at what is given and at what is asked, this follows."


@dataclass(frozen=True, slots=True)
class Staged:
    """A stage as read: its kind (a name among the tables of stages and outputs in `wording.toml`,
    or revise or respond), the fields by name, and the outputs asked for, in order. `weighed` is the
    part of the system message whose words count: all but the stage's own order and form, which are
    the same under every prompt."""

    kind: str
    fields: Mapping[str, str]
    outputs: tuple[str, ...]
    json: bool
    weighed: str

    @property
    def evidence(self) -> str:
        """What the request shows beside the question: passages, context, summaries."""
        return "\n\n".join(v for k, v in self.fields.items() if _HELD.search(k))

    @property
    def hop(self) -> int:
        """Which retrieval it is about: one more than the summaries shown."""
        return 1 + sum(1 for k in self.fields if re.search(r"summar|context|note", k))

    @property
    def outside(self) -> str | None:
        """What a model outside answered, where that is shown."""
        return next((v for k, v in self.fields.items() if _OUTSIDE.search(k)), None)

    def reply(self, said: str) -> str:
        """The reply in the form asked for."""
        if not self.outputs:
            return said
        values = {name: _THOUGHTS for name in self.outputs[:-1]} | {self.outputs[-1]: said}
        if self.json:
            return json.dumps(values, ensure_ascii=False)
        return "\n\n".join(f"{name}: {value}" for name, value in values.items())


def _read_stage(request: ChatRequest, known: str) -> Staged | None:
    """The stage that a request is, or None. `known` is the task input found in it."""
    fields = _labelled(request.user)
    if not known or not fields:
        return None
    # The order comes last: anything before it may be any prompt.
    last = max(request.user.rfind(text) + len(text) if text else 0 for text in fields.values())
    tail = re.sub(r"</[\w -]+>", " ", request.user[last:])
    asked = f"{request.system}\n\n{tail}"
    lines = [says("part", line.strip()) for line in asked.split("\n")]
    outputs = tuple(dict.fromkeys(part[1].strip() for part in lines if part))
    as_json = bool(outputs) and says("json", asked[-600:]) is not None
    properties = None if request.schema is None else request.schema.get("properties")
    if isinstance(properties, Mapping):
        outputs, as_json = tuple(cast("Mapping[str, object]", properties)), True
    parts = _paragraphs(request.system)
    if outputs and parts and says("part", parts[-1].split("\n")[-1].strip()):
        parts = parts[:-1]
    weighed = "\n\n".join(parts[:-1] if len(parts) > 1 else parts)
    staged = Staged("", fields, outputs, as_json, weighed)
    kind = _stage_kind(staged, asked)
    return replace(staged, kind=kind) if kind else None


def _paragraphs(text: str) -> list[str]:
    return [p for p in re.split(r"\n\s*\n", text) if p.strip()]


def _labelled(user: str) -> Mapping[str, str]:
    """The texts of a request by their labels, in the first of three forms that it has."""

    def name(label: str) -> str:
        return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")

    if found := {name(m[1]): m[2].strip() for m in _TAGGED.finditer(user)}:
        return found
    marks = list(_HASHED.finditer(user)) or list(patterns("said")["labelled"].finditer(user))
    ends = [mark.start() for mark in marks[1:]] + [len(user)]
    return {name(m[1]): user[m.end() : end].strip() for m, end in zip(marks, ends, strict=False)}


def _stage_kind(staged: Staged, asked: str) -> str:
    # The paragraph that orders is the last one that is not the form of the reply.
    parts = _paragraphs(asked)
    plain = [p for p in parts if not any(says("part", line.strip()) for line in p.split("\n"))]
    order = (plain[-1] if plain else asked).lower()
    kind = meaning("outputs", staged.outputs[-1].lower()) if staged.outputs else ""
    kind = kind or meaning("stages", order)
    if staged.outside is not None and (kind in ("answer", "write") or not staged.outputs):
        return "respond"
    if kind == "write" and any(re.match(r"response|draft|reply|answer", k) for k in staged.fields):
        return "revise"
    if kind == "answer" and re.search(r"\bnot[_ ]supported\b", order):
        return "verify"
    return kind


@dataclass(frozen=True, slots=True)
class Mind:
    """One request being answered."""

    asked: Understood
    world: World
    settings: SimulatedSettings

    @property
    def problem(self) -> Problem:
        return self.world.problem(self.asked.input)

    def section(self, *names: str) -> str:
        """The first of these sections that the request has anything in."""
        return next(filter(None, map(self.asked.reading.sections.get, names)), "")

    def keyed(self, *purpose: object) -> int:
        """A number decided by noise seed, sample and purpose: the same under any prompt."""
        return keyed_int(self.settings.noise_seed, self.asked.request.sample, *purpose)

    def unit(self, *purpose: object) -> float:
        """A number in [0, 1), decided by this request's content and the purpose."""
        return self.keyed(self.asked.request.digest, *purpose) / 2**63

    def happens(self, chance: float, *purpose: object) -> bool:
        return self.unit(*purpose) < chance

    def pick(self, among: Sequence[T], *purpose: object) -> T:
        """One of these, drawn for this request."""
        return among[int(self.unit("pick", *purpose) * len(among))]

    def orders(self, text: str) -> tuple[Order, ...]:
        """The orders in a text, whatever input they are for."""
        return self.world.skills.orders(text)

    def ordered(self, text: str) -> frozenset[int]:
        """The skills that those orders are about."""
        return frozenset(o.skill for o in self.orders(text))

    def given(self, text: str) -> frozenset[int]:
        """Skills that a text orders for the input at hand."""
        problem = self.problem
        applying = (o for o in self.orders(text) if o.applies(problem.shown, problem.words))
        return frozenset(o.skill for o in applying)

    def noted(self, text: str, opening: str) -> tuple[int, ...]:
        """Skills ordered in the sentences of a directive that open so, where rewrites put them."""
        noted = [s for s in sentences(text) if opening in s.lower()]
        return tuple(order.skill for s in noted for order in self.orders(s))

    def say(self, order: int, condition: int | None, *purpose: object) -> str:
        """Advice in one of its wordings."""
        return self.world.skills.say(order, condition, int(2 * self.unit("way", *purpose)))

    def advise(self, claimed: frozenset[int], *purpose: object) -> str:
        """Advice on something that a report calls wrong, as far as its reader understands it.

        The order is read off the claim, the condition off the input. With probability `capacity`
        both come out right, where the texts allow it; else the advice is wrong for this input.
        """
        shown = self.problem.shown
        if not self.happens(self.settings.capacity, "capacity", *purpose):
            return self.mislead(shown, claimed, *purpose)
        order = self.pick(sorted(claimed & shown or claimed), "claim", *purpose)
        condition = order
        if shown and order not in shown:
            condition = self.pick(sorted(shown), "where", *purpose)
        return self.say(order, condition, *purpose)

    def mislead(self, shown: frozenset[int], claimed: frozenset[int], *purpose: object) -> str:
        """Advice that is wrong here: an order against a demand of the input, or beside it."""
        skills = self.world.skills
        others = frozenset(range(len(skills))) - shown - claimed
        against = frozenset(k for k in others if skills[k].breaks & (shown | claimed))
        wrong = self.pick(sorted(against or others or range(len(skills))), "wrong", *purpose)
        bare = not shown or self.happens(0.5, "bare", *purpose)
        condition = None if bare else self.pick(sorted(shown), "where", *purpose)
        return self.say(wrong, condition, *purpose)
