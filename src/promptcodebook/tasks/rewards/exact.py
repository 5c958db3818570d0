"""1 iff the answer is the reference, character by character."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.tasks.rewards.text import quoted, target_of
from promptcodebook.types import Example, Score

__all__ = ["Exact"]


@dataclass(frozen=True, slots=True)
class Exact:
    """Equality after white space at both ends is dropped."""

    def __call__(self, example: Example, output: str) -> Score:
        target = target_of(example).strip()
        if output.strip() == target:
            return Score(1.0, "The answer equals the reference.")
        if output.strip().casefold() == target.casefold():
            return Score(0.0, f"The answer differs from {quoted(target)} in upper and lower case.")
        if target and target in output:
            return Score(
                0.0,
                f"The answer contains {quoted(target)} but must be exactly that and nothing more.",
            )
        return Score(0.0, f"The answer is {quoted(output)}; exactly {quoted(target)} was expected.")
