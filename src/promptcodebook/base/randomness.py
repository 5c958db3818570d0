"""Randomness keyed by its purpose, so that a draw does not depend on anything drawn before it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass


def keyed_int(*key: object) -> int:
    """A 63-bit integer decided by the key alone (str, int, float, bytes or None parts)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]) >> 1


def keyed_random(*key: object) -> random.Random:
    """A generator keyed by e.g. (seed, step, example id, purpose)."""
    return random.Random(keyed_int(*key))


@dataclass(frozen=True, slots=True)
class Draws:
    """All randomness of one example at one step (or of one variable's rewrite)."""

    seed: int
    step: int
    subject: str

    def sample(self, purpose: str) -> int:
        return keyed_int(self.seed, self.step, self.subject, purpose)

    def generator(self, purpose: str) -> random.Random:
        return keyed_random(self.seed, self.step, self.subject, purpose)


@dataclass(frozen=True, slots=True)
class Randomness:
    """All randomness of a run, from its one seed; every draw is keyed by what it is for."""

    seed: int

    def at(self, step: int, subject: str) -> Draws:
        return Draws(self.seed, step, subject)

    def runs(self, count: int) -> list[Randomness]:
        """Itself for a single run; else that of each of several sampled ones."""
        seeds = (self.integer("sampled run", run) for run in range(count))
        return [self] if count == 1 else [Randomness(seed) for seed in seeds]

    def integer(self, *purpose: object) -> int:
        return keyed_int(self.seed, *purpose)

    def generator(self, *purpose: object) -> random.Random:
        return keyed_random(self.seed, *purpose)
