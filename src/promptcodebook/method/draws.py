"""Sample seeds keyed by (seed, step, example or variable, purpose), never taken from a stream."""

from __future__ import annotations

import random
from dataclasses import dataclass

from promptcodebook.keyed import keyed_int, keyed_random

__all__ = ["Draws"]


@dataclass(frozen=True, slots=True)
class Draws:
    """All randomness of one example at one step (or of one variable's rewrite)."""

    seed: int
    step: int
    subject: str

    def sample(self, purpose: str) -> int:
        """The sample seed of one model call."""
        return keyed_int(self.seed, self.step, self.subject, purpose)

    def generator(self, purpose: str) -> random.Random:
        return keyed_random(self.seed, self.step, self.subject, purpose)
