"""Several rewards as one: their weighted mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from promptcodebook.errors import ConfigError
from promptcodebook.tasks.rewards.apply import apply_reward
from promptcodebook.types import Example, Reward, Score

__all__ = ["Part", "WeightedSum"]


@dataclass(frozen=True, slots=True)
class Part:
    """One reward of a sum: its name in the feedback, and its positive weight."""

    name: str
    reward: Reward
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """sum(w_i r_i) / sum(w_i), so that parts in [0, 1] give a reward in [0, 1]."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("a sum of rewards needs parts", hint='parts = [{kind = "exact"}]')
        for part in self.parts:
            if not (math.isfinite(part.weight) and part.weight > 0):
                raise ConfigError(
                    f"the weight of {part.name!r} must be positive, not {part.weight:g}",
                    hint="leave out a part that should not count",
                )

    async def __call__(self, example: Example, output: str) -> Score:
        value, said = 0.0, list[str]()
        whole = sum(part.weight for part in self.parts)
        for part in self.parts:
            score = await apply_reward(part.reward, example, output, (-math.inf, math.inf))
            share = part.weight / whole
            value += share * score.value
            said.append(f"{part.name} ({score.value:g}, weight {share:.0%}): {score.feedback}")
        return Score(value, "\n".join(said))
