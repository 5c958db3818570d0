"""Which examples make up which update: seeded passes over the training split, cut into batches.

`steps_per_epoch: all` makes an epoch a full pass (Algorithm 1); a number makes it that many
batches, which is what the token budget of Table 5 allows (method decision 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.config import Update
from promptcodebook.keyed import keyed_random
from promptcodebook.types import Example

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """The plan of a whole run; any step can be looked up without walking up to it."""

    examples: Sequence[Example]
    update: Update
    seed: int

    @property
    def _per_pass(self) -> int:
        return math.ceil(len(self.examples) / self.update.batch_size)

    @property
    def _batches_per_epoch(self) -> int:
        given = self.update.steps_per_epoch
        return self._per_pass if given == "all" else given

    @property
    def batches(self) -> int:
        return self.update.epochs * self._batches_per_epoch

    def batch(self, number: int) -> list[Example]:
        """The examples of one batch in seeded order; the last batch of a pass may be short."""
        turn, place = divmod(number, self._per_pass)
        draw = keyed_random(self.seed, turn, "order")
        keys = [draw.random() for _ in self.examples]
        order = sorted(range(len(self.examples)), key=keys.__getitem__)
        size = self.update.batch_size
        return [self.examples[i] for i in order[place * size : (place + 1) * size]]

    def updates(self, start: int = 0) -> list[tuple[int, int, list[Example]]]:
        """(step, epoch, examples) of every update from `start` on.

        In `online` mode each example of a batch is an update of its own (Algorithm 1).
        """
        plan: list[tuple[int, int, list[Example]]] = []
        step = 0
        for number in range(self.batches):
            epoch = number // self._batches_per_epoch
            batch = self.batch(number)
            parts = [[e] for e in batch] if self.update.mode == "online" else [batch]
            for part in parts:
                if step >= start:
                    plan.append((step, epoch, part))
                step += 1
        return plan
