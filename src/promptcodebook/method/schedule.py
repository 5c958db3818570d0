"""Which examples make up which update: seeded passes over the training split, cut into batches.

`steps_per_epoch: all` makes an epoch a full pass (Algorithm 1); a number makes it that many
batches, which is what the token budget of Table 5 allows (method decision 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from promptcodebook.config import Update
from promptcodebook.randomness import Randomness
from promptcodebook.types import Example


@dataclass(frozen=True)
class Schedule:
    """The plan of a whole run, decided by the seed alone."""

    examples: Sequence[Example]
    update: Update
    randomness: Randomness

    @property
    def _per_pass(self) -> int:
        return math.ceil(len(self.examples) / self.update.batch_size)

    @property
    def _batches_per_epoch(self) -> int:
        given = self.update.steps_per_epoch
        return self._per_pass if given == "all" else given

    @property
    def batches(self) -> int:
        return self.update.epochs * self._batches_per_epoch if self.examples else 0

    def updates(self, start: int = 0) -> list[tuple[int, int, list[Example]]]:
        """(step, epoch, examples) of every update from `start` on.

        In `online` mode each example of a batch is an update of its own (Algorithm 1).
        """
        plan: list[tuple[int, list[Example]]] = []
        for number, batch in enumerate(islice(self._passes(), self.batches)):
            parts = [[e] for e in batch] if self.update.mode == "online" else [batch]
            plan.extend((number // self._batches_per_epoch, part) for part in parts)
        return [(step, *plan[step]) for step in range(start, len(plan))]

    def _passes(self) -> Iterator[list[Example]]:
        """Batches without end, each pass in a seeded order; the last of a pass may be short."""
        size = self.update.batch_size
        for turn in count():
            draw = self.randomness.generator(turn, "order")
            keys = [draw.random() for _ in self.examples]
            order = sorted(range(len(self.examples)), key=keys.__getitem__)
            for at in range(0, len(order), size):
                yield [self.examples[i] for i in order[at : at + size]]
