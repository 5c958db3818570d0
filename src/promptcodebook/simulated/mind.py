"""What every simulated role is handed: the world, the parameters, and this request's draws."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.simulated.chat import Draw
from promptcodebook.simulated.orders import Order
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import Understood
from promptcodebook.simulated.words import sentences
from promptcodebook.simulated.world import Problem, World, say

__all__ = ["Mind"]


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

    @property
    def problem(self) -> Problem:
        return self.world.problem(self.asked.input)

    def section(self, name: str) -> str:
        return self.asked.reading.sections.get(name, "")

    def happens(self, chance: float, *purpose: object) -> bool:
        return self.draw.unit(*purpose) < chance

    def pick(self, among: frozenset[int] | range, *purpose: object) -> int:
        """One of these, drawn for this request."""
        return sorted(among)[int(self.draw.unit("pick", *purpose) * len(among))]

    def orders(self, text: str) -> tuple[Order, ...]:
        """The orders in a text, whatever input they are for."""
        return self.world.orders.of(text)

    def given(self, text: str) -> frozenset[int]:
        """Skills that a text orders for the input at hand."""
        problem = self.problem
        return frozenset(
            o.skill for o in self.orders(text) if o.applies(problem.shown, problem.words)
        )

    def noted(self, text: str, opening: str) -> tuple[Order, ...]:
        """The orders in the sentences of a directive that open so: what rewrites have put there."""
        noted = [s for s in sentences(text) if opening in s.lower()]
        return tuple(order for s in noted for order in self.orders(s))

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
        return say(self.world.skills, order, condition, int(2 * self.draw.unit("way", *purpose)))

    def mislead(self, shown: frozenset[int], claimed: frozenset[int], *purpose: object) -> str:
        """Advice that is wrong here: an order against a demand of the input, or beside it."""
        skills = self.world.skills
        others = frozenset(range(len(skills))) - shown - claimed
        against = frozenset(k for k in others if skills[k].breaks & (shown | claimed))
        wrong = self.pick(against or others or frozenset(range(len(skills))), "wrong", *purpose)
        bare = not shown or self.happens(0.5, "bare", *purpose)
        condition = None if bare else self.pick(shown, "where", *purpose)
        return say(skills, wrong, condition, int(2 * self.draw.unit("way", *purpose)))
