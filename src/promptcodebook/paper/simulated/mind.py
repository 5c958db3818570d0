"""How the simulated model reads a request, in process and over HTTP alike. It reads headings by
their meaning, and so understands templates that we did not write. Data is taken out of the `frame`;
what is asked is recognised by the frame's words alone, never by roles or tags."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeVar, cast

from promptcodebook.base.randomness import keyed_int
from promptcodebook.calls import Message, Request
from promptcodebook.paper.simulated.orders import (
    Instruction,
    matches,
    meaning,
    patterns,
    says,
    sentences,
)
from promptcodebook.paper.simulated.world import KnownInput, SimulatedSettings, World

_SEEDS = 2**31  # seeds over HTTP are 31-bit integers
# Sections that may themselves hold paragraphs with orders in them.
_FREE_TEXT = ("input", "prompt", "response", "text")
_LISTED = ("active", "codebook")


@dataclass(frozen=True, slots=True)
class RecognisedRequest:
    """A chat completion request: no role, no tag, nothing an endpoint would not see."""

    messages: tuple[Message, ...]
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    schema: Mapping[str, object] | None = None  # the JSON schema asked for, if any
    json_mode: bool = False
    digest: bytes = field(default=b"", compare=False)  # of the messages as they came

    def __post_init__(self) -> None:
        if self.digest:
            return
        seen = hashlib.sha256()
        for m in self.messages:
            seen.update(f"{m.role}\x1f{len(m.content)}\x1f{m.content}".encode(errors="replace"))
        object.__setattr__(self, "digest", seen.digest()[:16])

    @property
    def sample(self) -> int | None:
        """The sample seed; None at temperature 0, where every sample is the same."""
        return None if self.temperature <= 0.0 else (self.seed or 0) % _SEEDS

    @property
    def system(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "system")

    @property
    def user(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "user")


def from_request(request: Request) -> RecognisedRequest:
    """What an endpoint would receive of a Request: its role and model stay behind."""
    sampling = request.sampling
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return RecognisedRequest(
        messages=request.messages,
        temperature=0.0 if request.greedy else temperature,
        max_tokens=sampling.max_tokens,
        seed=request.sample % _SEEDS,
        schema=None if request.schema is None else request.schema.body,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Whether JSON is wanted; its keys in order, each with its JSON schema type ('' = not told)."""

    json: bool
    keys: Mapping[str, str] = field(default_factory=dict[str, str])

    def meant(self, *meanings: str) -> str:
        """The first key of one of these meanings; '' if there is none."""
        return next((k for k in self.keys if _key_meaning(k) in meanings), "")

    def has(self, *meanings: str) -> bool:
        """Whether a key of each of these meanings is asked for."""
        return all(map(self.meant, meanings))

    def fill(self, values: Mapping[str, object], plain: str = "") -> str:
        """A reply of this shape; `values` by meaning. `plain` when no JSON is asked for."""
        if not self.json:
            return plain
        tree = {key: values[_key_meaning(key)] for key in self.keys if _key_meaning(key) in values}
        return json.dumps(tree or dict(values), ensure_ascii=False)


def _key_meaning(key: str) -> str:
    return meaning("keys", key.lower().strip().replace(" ", "_").replace("-", "_"))


def shape_of(request: RecognisedRequest, frame: str) -> Shape:
    """The shape asked for by the request's schema, else by its words."""
    if request.schema is None:
        return _shape_of_words(frame, request.json_mode)
    properties = cast("Mapping[str, Mapping[str, object]]", request.schema.get("properties") or {})
    return Shape(True, {key: str(node.get("type", "")) for key, node in properties.items()})


@lru_cache(maxsize=512)
def _shape_of_words(frame: str, json_mode: bool) -> Shape:
    if not json_mode and not says("json", frame):
        return Shape(False)
    nested = {key for inner in matches("inner", frame) for key in matches("key", inner)}
    names = [k for k in matches("key", frame) if k not in nested]
    names = names or matches("named", frame) or matches("key_listed", frame)
    opened = {key.strip(): mark for key, mark in matches("opened", frame)}
    types = {"{": "object", "[": "array"}
    return Shape(True, {k.strip(): types.get(opened.get(k.strip(), ""), "") for k in names})


@dataclass(frozen=True, slots=True)
class ListedItem:
    """One line of a numbered list, with the success rate shown beside it (None = none)."""

    index: int
    text: str
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class NumberedList:
    """A numbered list, and what the line above it means."""

    name: str
    entries: tuple[ListedItem, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is asked (lower case) by the system message and in all, sections by meaning, lists."""

    system_frame: str
    frame: str
    sections: Mapping[str, str]
    blocks: tuple[NumberedList, ...]

    def codebook(self) -> tuple[ListedItem, ...]:
        """The numbered list to choose from: the longest one of the right name, else the longest."""
        named = [b.entries for b in self.blocks if b.name == "codebook"]
        named = named or [b.entries for b in self.blocks if b.name != "ask"]
        return max(named, key=len, default=())

    def active(self) -> tuple[ListedItem, ...]:
        """The instincts that were chosen, where the request shows them."""
        return next((b.entries for b in self.blocks if b.name == "active"), ())


def read(system: str, user: str) -> Reading:
    """A request read; `user` without the inputs that the model knows."""
    rest, system_blocks = _read_system(system)
    text, blocks = _lists(user)
    sections, frame = _sections(text)
    for block in blocks:
        if block.name in _LISTED:
            # What is left below a list that was taken out does not belong to it.
            frame += f"\n{sections.get(block.name, '')}"
            sections[block.name] = "\n".join(e.text for e in block.entries)
    asked = f"{rest}\n{frame}".lower()
    return Reading(rest.lower(), asked, sections, (*system_blocks, *blocks))


def _meaning(label: str) -> str:
    label = " ".join(label.lower().replace("_", " ").strip(" :*#").split())
    return meaning("meanings", label) if len(label) <= 120 else ""


def _lists(text: str) -> tuple[str, list[NumberedList]]:
    """The text without fences and the lists (of rising numbers) that a caption calls for; lists."""
    kept: list[str] = []
    blocks: list[NumberedList] = []
    entries: dict[ListedItem, str] = {}
    for line in [*patterns("marks")["fence"].sub(" ", text).split("\n"), ""]:
        match = says("item", line)
        entry = _entry(match) if match is not None else None
        if entries and (entry is None or entry.index <= max(e.index for e in entries)):
            name = _meaning(next((k for k in reversed(kept) if k.strip()), ""))
            if len(entries) > 1 or name in _LISTED:
                blocks.append(NumberedList(name, tuple(entries)))
            if len(entries) < 2 or name not in _LISTED:
                kept.extend(entries.values())
            entries = {}
        if entry is None:
            kept.append(line)
        else:
            entries[entry] = line
    return "\n".join(kept), blocks


_read_system = lru_cache(maxsize=512)(_lists)


def _entry(match: re.Match[str]) -> ListedItem:
    index = int(match[1] or match[2] or match[3])
    text = match[4].strip()
    tail = says("rate", text) if text[-1] in ")]}%" else None
    if tail is None or tail.start() == 0:
        return ListedItem(index, text)
    number, text = tail[1].replace(" ", ""), text[: tail.start()].rstrip()
    percent = 100 if number.endswith("%") else 1
    return ListedItem(index, text, float(number.rstrip("%")) / percent if number else None)


def _sections(text: str) -> tuple[dict[str, str], str]:
    """Sections by meaning, under the first style of headings that opens one; the text outside."""
    lines = text.split("\n")
    headings = ((s, s.match(line)) for line in lines for s in patterns("headings").values())
    style = next((s for s, match in headings if match is not None and _meaning(match[1])), None)
    if style is None:
        return {}, text
    found: dict[str, list[str]] = {}
    frame: list[str] = []
    current, last = frame, ""
    for line in lines:
        match = style.match(line)
        name = _meaning(match[1]) if match is not None else ""
        if match is None or not name:
            current.append(line)
            continue
        frame.append(match[1])
        last = name
        current = frame if name == "ask" else found.setdefault(name, [])
        current += filter(None, [match[2]])
    sections = {name: "\n".join(held).strip() for name, held in found.items()}
    for name, content in sections.items():
        # What is asked after the data, without a heading of its own, belongs to the frame.
        cut = says("ask", content) if name == last or name not in _FREE_TEXT else None
        if cut is not None:
            frame.append(content[cut.start() :])
            sections[name] = content[: cut.start()].strip()
        elif name == last:
            # So does the last paragraph, beside others or where the data were taken out already.
            *held, asked = re.split(r"\n\s*\n", content)
            if held or not "".join(found[name][:1]).strip():
                frame.append(asked)
                if name != "input":  # an unknown one may well end in a paragraph of its own
                    sections[name] = "\n\n".join(held)
    return sections, "\n".join(frame)


def fenced(text: str) -> list[str]:
    return [inside.strip() for inside in matches("fence", text)]


RequestKind = Literal[
    "route", "compose", "critique", "critique_and_blame", "blame", "adversary", "improve", "split",
    "instincts", "judge", "compare", "leaks", "stage", "execute",
]  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Understood:
    """A request with its kind, what was read in it, the shape of its reply, the task input it is
    about ('' = none), and the stage of a program that it is, if it is one."""

    request: RecognisedRequest
    kind: RequestKind
    reading: Reading
    shape: Shape
    input: str
    staged: Staged | None = None


def understand(request: RecognisedRequest, world: World) -> Understood:
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
        routes = _is_route(_Clues(reading.system_frame, shape, reading))
        return Understood(request, "route" if routes else "execute", reading, shape, known)
    shape = shape_of(request, reading.frame)
    if world.staged and (special := _special(request, reading, shape, known)) is not None:
        return special
    clues = [_Clues(frame, shape, reading) for frame in (reading.system_frame, reading.frame)]
    kinds: list[RequestKind] = [k for c in clues for k, fits in _TESTS.items() if fits(c)]
    kind: RequestKind = kinds[0] if kinds else "execute"
    if not known:
        known = reading.sections.get("input", "" if kind not in ("route", "execute") else user)
    return Understood(request, kind, reading, shape, known.strip())


def _special(
    request: RecognisedRequest, reading: Reading, shape: Shape, known: str
) -> Understood | None:
    """What only worlds of several stages know: judges of two answers and of leaks, and stages."""
    system = request.system.lower()
    judges: Mapping[RequestKind, str] = {"compare": "compares", "leaks": "counts_leaks"}
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
        return self.has("instinct") and bool(self.shape.meant("rendering", "routing"))


def _is_route(clues: _Clues) -> bool:
    if clues.has("score") or (clues.says("compose") and not clues.has("indices")):
        return False
    return len(clues.reading.codebook()) > 1 and clues.says("select")


_TESTS: Mapping[RequestKind, Callable[[_Clues], object]] = {
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


_THOUGHTS = "Looking at what is given and at what is asked, this follows."


@dataclass(frozen=True, slots=True)
class Staged:
    """A stage as read. `weighed`: the system words that count, without order and form."""

    kind: str
    fields: Mapping[str, str]
    outputs: tuple[str, ...]
    json: bool
    weighed: str

    @property
    def evidence(self) -> str:
        """What the request shows beside the question: passages, context, summaries."""
        return "\n\n".join(v for k, v in self.fields.items() if says("held", k))

    @property
    def hop(self) -> int:
        """Which retrieval it is about: one more than the summaries shown."""
        return 1 + sum(1 for k in self.fields if re.search(r"summar|context|note", k))

    @property
    def outside(self) -> str | None:
        """What a model outside answered, where that is shown."""
        return next((v for k, v in self.fields.items() if says("outside", k)), None)

    def reply(self, answer: str) -> str:
        """The reply in the form asked for."""
        if not self.outputs:
            return answer
        values = dict.fromkeys(self.outputs, _THOUGHTS) | {self.outputs[-1]: answer}
        if self.json:
            return json.dumps(values, ensure_ascii=False)
        return "\n\n".join(f"{name}: {value}" for name, value in values.items())


def _read_stage(request: RecognisedRequest, known: str) -> Staged | None:
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
    properties = (request.schema or {}).get("properties")
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
    def name(label: str) -> str:
        return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")

    if found := {name(tag): text.strip() for tag, text in matches("tagged", user)}:
        return found
    hashed, labelled = (list(patterns("marks")[n].finditer(user)) for n in ("hashed", "labelled"))
    marks = hashed or labelled
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
    def problem(self) -> KnownInput:
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

    def orders(self, text: str) -> tuple[Instruction, ...]:
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
        """Advice on what a report calls wrong: the order by the claim, the condition by the input.
        With probability `capacity` both are right, where the texts allow it."""
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
