"""1 iff the last number of the answer is the reference's, within a tolerance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from promptcodebook.errors import RewardError
from promptcodebook.tasks.rewards.text import quoted, target_of
from promptcodebook.types import Example, Score

__all__ = ["Numeric"]

_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.?|\.(?=\d))\d*(?:[eE][-+]?\d+)?"
)


@dataclass(frozen=True, slots=True)
class Numeric:
    """|found - reference| <= max(`tolerance`, `relative` * |reference|)."""

    tolerance: float = 1e-6
    relative: float = 0.0

    def __call__(self, example: Example, output: str) -> Score:
        target = target_of(example)
        wanted, found = _last(target), _last(output)
        if wanted is None:
            raise RewardError(
                f"the target {quoted(target, 60)} of example {example.id} holds no number",
                hint="correct the data, or use another reward",
            )
        if found is None:
            return Score(0.0, f"The answer holds no number; {wanted:g} was expected.")
        if abs(found - wanted) <= max(self.tolerance, self.relative * abs(wanted)):
            return Score(1.0, f"The answer {found:.12g} is right.")
        return Score(0.0, f"The last number of the answer is {found:.12g}; {wanted:.12g} was "
                          "expected.")  # fmt: skip


def _last(text: str) -> float | None:
    for number in reversed(_NUMBER.findall(text)):
        value = float(number.replace(",", "").replace("−", "-"))
        if math.isfinite(value):
            return value
    return None
