"""A simulated world: what its executor cannot do without an order, and so what each input needs.

It is built from a task's own data, gold answers included. `world` draws which skills the executor
lacks; an input needs those among its visible demands, 0 to 8 of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import content_stems, read_skills
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.tasks.constraints.task import constraints_of
from promptcodebook.types import Example

_LABEL = re.compile(r"^\W*[\w ]{1,40}:\**\s*")
_MOST = 8  # skills one input needs at the most
_STAGED = ("hotpotqa", "hover", "ifbench", "pupa")  # tasks that are programs of several stages


@dataclass(frozen=True, slots=True)
class Demand:
    """A constraint of the input, and the skill it is about (None = one that no skill covers)."""

    key: str
    skill: int | None
    constraint: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Problem:
    """An input as the executor meets it. `shown` are the skills whose demand is visible in it,
    `needs` those that the executor of this world lacks; `words` are its content stems.
    Of an input that the world does not know, `gold` is None and there are no `fields`."""

    input: str
    shown: frozenset[int]
    needs: frozenset[int]
    words: frozenset[str]
    demands: tuple[Demand, ...]
    gold: str | None
    fields: Mapping[str, object]


class World:
    """Skills, which of them are lacking, and the inputs known by heart."""

    def __init__(
        self, task: str, examples: Sequence[Example], settings: SimulatedSettings | None = None
    ) -> None:
        """The world of a task's data, or of anybody's: `task` is a benchmark's name or ''."""
        settings = settings or SimulatedSettings()
        self.constrained = any("constraints" in e.fields for e in examples) or task == "ifbench"
        self.name = task or "general"
        self.staged = task in _STAGED
        self.skills = read_skills("constraints" if self.constrained else "general")
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

    def locate(self, text: str) -> str:
        """The known input that a text is, or else the first that it contains; '' if none does."""
        if text.strip() in self._known:
            return text.strip()
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
        drawn = sorted(about & self.lacking, key=lambda k: keyed_int("needs", self._world, k, text))
        needs = frozenset(drawn[:_MOST])
        gold = example.target if example is not None else None
        held: Mapping[str, object] = example.fields if example is not None else {}
        return Problem(text, shown, needs, content_stems(text), demands, gold, held)

    def _demands(self, example: Example | None) -> Iterable[Demand]:
        if example is None:
            return
        for place, constraint in enumerate(constraints_of(example) or _instructions(example)):
            kind = str(constraint["kind"])
            yield Demand(f"{place}:{kind}", self.skills.place(kind), constraint)


# IFEval's ids that ask what one of ours asks, and which argument holds the number or words.
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


def _instructions(example: Example) -> Iterable[Mapping[str, object]]:
    """An ifbench example's constraints in our terms; one that no skill covers keeps its id."""
    names = cast("Sequence[str]", example.fields.get("instruction_id_list") or ())
    given = cast("Sequence[Mapping[str, object]]", example.fields.get("kwargs") or ())
    for name, values in zip(names, given, strict=True):
        kind, renamed = _SAME.get(name, (name, {}))
        yield {"kind": kind, **{to: values.get(of) for to, of in renamed.items()}}


def oracle_prompt(world: World, example: Example) -> str:
    """For one input just the orders it needs: what the best possible prompt would say."""
    needs = sorted(world.problem(example.input).needs)
    return " ".join(world.skills.say(k, None) for k in needs)
