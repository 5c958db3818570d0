"""A simulated world: what its executor cannot do unless told, and so what each input needs.

Built from a task's own data, gold answers included. `world` draws which skills the executor lacks;
an input needs those among its visible demands that it lacks, 0 to 8 of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import OrderReader
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.skills import Skills, read_skills
from promptcodebook.simulated.words import content_stems
from promptcodebook.tasks.constraints.task import constraints_of
from promptcodebook.types import Example

__all__ = ["Demand", "Problem", "World", "all_advice", "build_world", "oracle_prompt", "say"]

_LABEL = re.compile(r"^\W*[\w ]{1,40}:\**\s*")
_MOST = 8
"""Skills one input needs at the most."""
_STAGED = ("hotpotqa", "hover", "ifbench", "pupa")
"""Tasks that are programs of several stages."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A constraint of the input, and the skill it is about (None = one that nobody follows)."""

    key: str
    skill: int | None
    constraint: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Problem:
    """An input as the executor meets it. `shown` are the skills whose demand is visible in it,
    `needs` those that the executor of this world lacks; `words` are its content stems."""

    input: str
    shown: frozenset[int]
    needs: frozenset[int]
    words: frozenset[str]
    demands: tuple[Demand, ...]
    example: Example | None

    @property
    def gold(self) -> str | None:
        return self.example.target if self.example is not None else None


class World:
    """Skills, which of them are lacking, and the inputs known by heart."""

    def __init__(self, task: str, examples: Sequence[Example], settings: SimulatedSettings) -> None:
        self.constrained = any("constraints" in e.fields for e in examples) or task == "ifbench"
        self.name = task or "general"
        self.staged = task in _STAGED
        self.skills: Skills = read_skills("constraints" if self.constrained else "general")
        self.orders = OrderReader(self.skills)
        count = round(settings.lacking * len(self.skills))
        drawn = sorted(range(len(self.skills)), key=lambda k: keyed_int("lack", settings.world, k))
        self.lacking = frozenset(drawn[:count])
        self._world = settings.world
        self._known = {e.input.strip(): e for e in examples}
        self._openings: dict[str, list[str]] = {}
        for text in sorted(self._known, key=len, reverse=True):
            self._openings.setdefault(text.split("\n", 1)[0].strip(), []).append(text)
        self._problem = lru_cache(maxsize=4096)(self._read)

    def problem(self, text: str) -> Problem:
        """The input as a problem: known by heart, or judged by its visible features."""
        return self._problem(text.strip())

    def example(self, text: str) -> Example | None:
        """The example whose input this very text is."""
        return self._known.get(text.strip())

    def locate(self, text: str) -> str:
        """The first known input that stands in a longer text; '' if there is none."""
        for line in text.split("\n"):
            line = line.strip()
            tail = line.split(": ", 1)[-1]
            bare = _LABEL.sub("", line)
            for opening in dict.fromkeys((line, tail, tail.strip("\"'`"), bare)):
                for known in self._openings.get(opening, ()):
                    if known in text:
                        return known
        return ""

    def _read(self, text: str) -> Problem:
        example = self._known.get(text)
        shown = self.skills.shown_in(text)
        demands = tuple(self._demands(example))
        about = {d.skill for d in demands if d.skill is not None} or shown
        lacked = sorted(
            about & self.lacking, key=lambda k: keyed_int("needs", self._world, k, text)
        )
        return Problem(
            text, shown, frozenset(lacked[:_MOST]), content_stems(text), demands, example
        )

    def _demands(self, example: Example | None) -> Iterable[Demand]:
        if example is None:
            return
        for place, constraint in enumerate(constraints_of(example) or _instructions(example)):
            kind = str(constraint["kind"])
            yield Demand(f"{place}:{kind}", self.skills.place(kind), constraint)


def build_world(
    task: str, examples: Sequence[Example], settings: SimulatedSettings | None = None
) -> World:
    """The world of a task's data, or of anybody's: `task` is a benchmark's name or ''."""
    return World(task, examples, settings or SimulatedSettings())


# IFEval's ids that ask what one of our constraints asks, and where the number or words stand.
_SAME: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "punctuation:no_comma": ("no_commas", {}),
    "change_case:english_lowercase": ("lowercase", {}),
    "change_case:english_capital": ("uppercase", {}),
    "startend:quotation": ("quoted", {}),
    "startend:end_checker": ("end_with", {"text": "end_phrase"}),
    "detectable_format:title": ("title", {}),
    "detectable_format:json_format": ("json", {}),
    "detectable_format:number_bullet_lists": ("bullets", {"n": "num_bullets"}),
    "detectable_content:number_placeholders": ("placeholders", {"n": "num_placeholders"}),
    "combination:two_responses": ("two_versions", {}),
    "keywords:existence": ("include", {"words": "keywords"}),
    "keywords:forbidden_words": ("avoid", {"words": "forbidden_words"}),
}


def _instructions(example: Example) -> list[Mapping[str, object]]:
    """An ifbench example's constraints in our terms; what nobody follows keeps its id."""
    ids = example.fields.get("instruction_id_list") or example.fields.get("instruction_ids") or ()
    names = [str(i) for i in cast("Iterable[object]", ids)]
    given = list(cast("Iterable[Mapping[str, object] | None]", example.fields.get("kwargs") or ()))
    given += [None] * (len(names) - len(given))
    found: list[Mapping[str, object]] = []
    for name, values in zip(names, given, strict=False):
        kind, renamed = _SAME.get(name, (name, {}))
        found.append({"kind": kind, **{to: (values or {}).get(of) for to, of in renamed.items()}})
    return found


def say(skills: Skills, order: int, condition: int | None, phrase: int = 0) -> str:
    """Advice in words: an order, under the condition of a skill (None = for every input)."""
    row = skills[order]
    do = row.do[phrase % len(row.do)]
    return (
        f"{do[:1].upper()}{do[1:]}."
        if condition is None
        else (f"When {skills[condition].when}, {do}.")
    )


def oracle_prompt(world: World, example: Example) -> str:
    """For one input just the orders it needs: what the best possible prompt would say."""
    needs = sorted(world.problem(example.input).needs)
    return " ".join(say(world.skills, k, None) for k in needs)


def all_advice(world: World) -> str:
    """Every lacking skill's order under its own condition, in one prompt."""
    return "\n".join(say(world.skills, k, k) for k in sorted(world.lacking))
