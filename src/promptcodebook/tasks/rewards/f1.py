"""Overlap of the words of answer and reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from promptcodebook.tasks.rewards.text import normalise, quoted, target_of
from promptcodebook.types import Example, Score

__all__ = ["TokenF1"]


@dataclass(frozen=True, slots=True)
class TokenF1:
    """F1 of the multisets of normalised words, in [0, 1]."""

    def __call__(self, example: Example, output: str) -> Score:
        target = target_of(example)
        wanted, found = Counter(normalise(target).split()), Counter(normalise(output).split())
        common = (wanted & found).total()
        if not wanted and not found:
            return Score(1.0, "Answer and reference hold no words that count.")
        if not common:
            return Score(0.0, f"The answer shares no word with the reference {quoted(target)}.")
        precision, recall = common / found.total(), common / wanted.total()
        value = 2 * precision * recall / (precision + recall)
        said = f"Word overlap F1 {value:.2f} (precision {precision:.2f}, recall {recall:.2f})."
        if value < 1.0:
            said += f" The reference is {quoted(target)}."
        return Score(value, said + _differences(wanted, found))


def _differences(wanted: Counter[str], found: Counter[str]) -> str:
    missing, extra = list(wanted - found)[:8], list(found - wanted)[:8]
    said = f" Missing: {', '.join(missing)}." if missing else ""
    return said + (f" Not in the reference: {', '.join(extra)}." if extra else "")
