"""1 iff answer and reference agree once case, punctuation, articles and spacing are set aside."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.tasks.rewards.text import normalise, quoted, target_of
from promptcodebook.types import Example, Score

__all__ = ["Normalised"]


@dataclass(frozen=True, slots=True)
class Normalised:
    """Equality of the normalised texts; a reference that normalises to nothing is taken raw."""

    def __call__(self, example: Example, output: str) -> Score:
        target = target_of(example)
        wanted, found = normalise(target), normalise(output)
        if not wanted:
            wanted, found = target.strip(), output.strip()
        if wanted == found:
            return Score(1.0, "The answer matches the reference.")
        if wanted in found:
            return Score(
                0.0, f"The answer contains {quoted(target)} but says more; give only that."
            )
        return Score(0.0, f"The answer is {quoted(output)}; {quoted(target)} was expected.")
