"""An input as the simulated student meets it: what it asks for, and what each demand needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Demand", "Problem"]


@dataclass(frozen=True, slots=True)
class Demand:
    """Something a reply may get right or wrong. `topic` is the skill by which a report names it;
    `skills` are those that bring it out (several weigh equally)."""

    key: str
    topic: int
    skills: tuple[int, ...]
    constraint: Mapping[str, object] | None = None
    stage: str = ""
    """The kind of stage it is met at, where the task is a program of several."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An input as the student sees it: its demands, the general skills, and the gold if known."""

    input: str
    demands: tuple[Demand, ...]
    general: tuple[int, ...]
    gold: str | None = None
    known: bool = False

    @property
    def needed(self) -> frozenset[int]:
        return frozenset(s for d in self.demands for s in d.skills).union(self.general)
