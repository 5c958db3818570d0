"""What every simulated role is handed: the world, the parameters, and this request's draws."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.simulated.chat import Draw
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import Understood
from promptcodebook.simulated.world import World

__all__ = ["Mind", "advice_clause", "advice_for"]


@dataclass(frozen=True, slots=True)
class Mind:
    """One request being answered."""

    asked: Understood
    world: World
    settings: SimulatedSettings
    draw: Draw

    @property
    def temperature(self) -> float:
        return self.asked.request.temperature


def advice_for(mind: Mind, skill: int, *purpose: object) -> str:
    """One of the ways of saying a skill's advice, drawn for this request."""
    phrases = mind.world.skills[skill].advice
    return phrases[int(mind.draw.unit("phrase", skill, *purpose) * len(phrases))]


def advice_clause(mind: Mind, sentence: str, skill: int) -> str:
    """The part of a sentence that says the advice: what follows its last colon, if that does."""
    tail = sentence.rsplit(": ", 1)[-1]
    if skill in mind.world.lexicon.cued(tail):
        sentence = tail
    return f"{sentence[:1].upper()}{sentence[1:]}".rstrip(" .") + "."
