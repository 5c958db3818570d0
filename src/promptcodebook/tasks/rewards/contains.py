"""1 iff the reference occurs in the answer."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.tasks.rewards.text import quoted, target_of
from promptcodebook.types import Example, Score

__all__ = ["Contains"]


@dataclass(frozen=True, slots=True)
class Contains:
    """A search for the reference, or for a fixed `text` instead; white space is collapsed."""

    text: str | None = None
    ignore_case: bool = True

    def __call__(self, example: Example, output: str) -> Score:
        wanted = self.text if self.text is not None else target_of(example)
        if self._folded(wanted) in self._folded(output):
            return Score(1.0, f"The answer contains {quoted(wanted)}.")
        return Score(0.0, f"The answer does not contain {quoted(wanted)}.")

    def _folded(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
