"""A simulated world: which hidden skills an input needs, and what a reply looks like.

Built from a task's own data, gold answers included: a student who could know the answer and shows
it only when the prompt brings the skill out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.problem import Demand, Problem
from promptcodebook.simulated.skill import Lexicon, Skill
from promptcodebook.simulated.words import count_words, sentences
from promptcodebook.types import Example

__all__ = [
    "MOST_SKILLS",
    "Demands",
    "World",
    "Writer",
    "all_advice",
    "chances",
    "load",
    "oracle_prompt",
]

_LABEL = re.compile(r"^\W*[\w ]{1,40}:\**\s*")
MOST_SKILLS = 8
"""Skills one input needs at the most, general ones included."""


class Writer(Protocol):
    """Writes a reply in which exactly the demands with the given keys are met."""

    def __call__(self, problem: Problem, met: frozenset[str], variant: int) -> str: ...


class Demands(Protocol):
    """Which demands an input has; `fixed` are the skills of a homogeneous world, else ()."""

    @property
    def fixed(self) -> tuple[int, ...]: ...

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]: ...


class World:
    """Hidden skills, the inputs they serve, and the writer of replies.

    `staged`: the task is a program of several stages. `unfollowed` names the constraint ids that
    no reply of this world ever follows on purpose.
    """

    def __init__(
        self,
        name: str,
        skills: Sequence[Skill],
        examples: Sequence[Example],
        demands: Demands,
        writer: Writer,
    ) -> None:
        self.name = name
        self.staged = False
        self.unfollowed: tuple[str, ...] = ()
        self.skills = tuple(skills)
        self.lexicon = Lexicon(self.skills)
        self.writer = writer
        self._demands = demands
        self._same = bool(demands.fixed)
        self.general = tuple(k for k, s in enumerate(self.skills) if s.general)
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

    def knows(self, text: str) -> bool:
        """Whether this very text is an input of the world's data."""
        return text.strip() in self._known

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
        demands = self._demands(text, example)
        needed = {s for d in demands for s in d.skills}
        room = max(0, MOST_SKILLS - len(needed))
        # Most inputs need each general skill; which one does not is fixed by the input.
        general = [
            k
            for k in self.general
            if k not in needed and (self._same or keyed_int("general", k, text) % 10 < 8)
        ]
        gold = example.target if example is not None else None
        return Problem(text, demands, tuple(general[:room]), gold, example is not None)


def load(world: World, problem: Problem, prompt: str, settings: SimulatedSettings) -> float:
    """What dilutes a prompt: directives that bear on nothing the input needs, and length."""
    needed = problem.needed
    idle = sum(1 for s in sentences(prompt) if not needed & world.lexicon.cued(s))
    above = max(0, count_words(prompt) - settings.free_words)
    return idle + above / settings.words_per_load


def diluted(load: float, settings: SimulatedSettings) -> float:
    """What so much load takes off a demand's chance; it saturates at `dilution_most`."""
    most = settings.dilution_most
    return most * (1.0 - math.exp(-settings.dilution * load / most)) if most > 0.0 else 0.0


def chances(
    world: World,
    problem: Problem,
    prompt: str,
    settings: SimulatedSettings,
    weighed: str | None = None,
) -> dict[str, float]:
    """The chance that each demand is met under this prompt, by the demand's key.

    `weighed` is the part of the prompt whose load counts (None = all of it).
    """
    cued = world.lexicon.cued_in(prompt) - world.lexicon.against_in(prompt)
    heavy = prompt if weighed is None else weighed
    weight = diluted(load(world, problem, heavy, settings), settings)
    care = settings.care
    if problem.general:
        care *= len(cued.intersection(problem.general)) / len(problem.general)
    found: dict[str, float] = {}
    for demand in problem.demands:
        share = len(cued.intersection(demand.skills)) / max(1, len(demand.skills))
        base, gain = settings.base, settings.gain
        if demand.stage:
            base, gain = settings.stage_base, settings.stage_gain
        chance = base + gain * share + care - weight
        found[demand.key] = min(settings.ceiling, max(settings.floor, chance))
    return found


def oracle_prompt(world: World, example: Example) -> str:
    """For one input just the advice it needs: what the best possible prompt would say."""
    problem = world.problem(example.input)
    return " ".join(world.skills[k].advice[0] for k in sorted(problem.needed))


def all_advice(world: World) -> str:
    """The advice for every skill of the world in one prompt."""
    return "\n".join(skill.advice[0] for skill in world.skills)
