"""What a request asks for, recognised by its words alone, and what its role needs to answer it.

Roles, tags and hashes are never used. The patterns look for a demand (a verb and its object) in the
request's frame, from which inputs, replies and lists were removed. The tests hold several templates
for each kind. A role gets the world, the parameters, and this request's draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.answers import Staged, read_stage
from promptcodebook.simulated.orders import Order, says, sentences
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.request import ChatRequest, Reading, Shape, read, shape_of
from promptcodebook.simulated.world import Problem, World

Kind = Literal[
    "route", "compose", "critique", "critique_and_blame", "blame", "adversary", "improve", "split",
    "instincts", "judge", "compare", "leaks", "stage", "execute",
]  # fmt: skip


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
        clues = _Clues(reading.system_frame, shape_of(request, reading.system_frame), reading)
        listed = any(len(b.entries) > 1 for b in reading.blocks)
        kind = "route" if listed and _is_route(clues) else "execute"
        return Understood(request, kind, reading, clues.shape, known)
    shape = shape_of(request, reading.frame)
    special = _special(request, reading, shape, known) if world.staged else None
    if special is not None:
        return special
    kind = _kind(reading, shape)
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
    staged = None if learning else read_stage(request, known)
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


def _kind(reading: Reading, shape: Shape) -> Kind:
    for frame in (reading.system_frame, reading.frame):
        clues = _Clues(frame, shape, reading)
        for kind, fits in _TESTS.items():
            if fits(clues):
                return kind
    return "execute"


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

    def fill(self, values: Mapping[str, object], plain: str) -> str:
        """The reply in the shape asked for: `values` by the meaning of its keys, else `plain`."""
        return self.asked.shape.fill(values, plain)

    def keyed(self, *purpose: object) -> int:
        """A number decided by noise seed, sample and purpose: the same under any prompt."""
        return keyed_int(self.settings.noise_seed, self.asked.request.sample, *purpose)

    def unit(self, *purpose: object) -> float:
        """A number in [0, 1), decided by this request's content and the purpose."""
        return self.keyed(self.asked.request.digest, *purpose) / 2**63

    def happens(self, chance: float, *purpose: object) -> bool:
        return self.unit(*purpose) < chance

    def pick(self, among: frozenset[int] | range, *purpose: object) -> int:
        """One of these, drawn for this request."""
        return sorted(among)[int(self.unit("pick", *purpose) * len(among))]

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
        order = self.pick(claimed & shown or claimed, "claim", *purpose)
        condition = order if order in shown or not shown else self.pick(shown, "where", *purpose)
        return self.say(order, condition, *purpose)

    def mislead(self, shown: frozenset[int], claimed: frozenset[int], *purpose: object) -> str:
        """Advice that is wrong here: an order against a demand of the input, or beside it."""
        skills = self.world.skills
        others = frozenset(range(len(skills))) - shown - claimed
        against = frozenset(k for k in others if skills[k].breaks & (shown | claimed))
        wrong = self.pick(against or others or range(len(skills)), "wrong", *purpose)
        bare = not shown or self.happens(0.5, "bare", *purpose)
        return self.say(wrong, None if bare else self.pick(shown, "where", *purpose), *purpose)
