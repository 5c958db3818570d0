"""What a session tells whoever watches it; the terminal view and plain lines are two watchers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from promptcodebook.types import Evaluation, Role, Step, Usage

__all__ = ["Began", "Event", "Listener", "Note", "Phase", "Spent", "Stepped", "Validated", "silent"]


@dataclass(frozen=True, slots=True)
class Began:
    """The run is set up: its id, folder, models by role, and how many steps are planned."""

    run_id: str
    path: str
    steps: int
    first: int
    size: int
    models: Mapping[Role, str]
    simulated: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run that takes a while: done of total units."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One update is done and stored."""

    step: Step
    seconds: float


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation is done; `best` is whether it beats all before it.

    `finalist`: at the end of the run, on the whole split, to choose what is kept.
    """

    step: int
    evaluation: Evaluation
    best: bool
    finalist: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage by role and incidents by name so far."""

    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should read."""

    text: str


Event = Began | Phase | Stepped | Validated | Spent | Note


class Listener(Protocol):
    """Hears every event, in order, on the session's own loop: it must not block."""

    def __call__(self, event: Event) -> None: ...


def silent(event: Event) -> None:
    """Hears nothing."""
