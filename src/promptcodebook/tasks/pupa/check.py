"""No private piece of a training query in a rewrite: a policy is shared, the queries are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptcodebook.method.checks import normalised_words
from promptcodebook.tasks.pupa.judge import units_of
from promptcodebook.types import Example

__all__ = ["NoUnitCheck"]

_LEAST = 4
"""Characters from which a unit counts: shorter ones turn up in any text."""


class NoUnitCheck:
    """Refuses a text with a unit in it that the text before did not have; says whose, not which."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._owners: dict[str, str] = {}
        for example in examples:
            for unit in units_of(example):
                flat = " ".join(normalised_words(unit))
                if len(flat) >= _LEAST:
                    self._owners.setdefault(f" {flat} ", example.id)

    def __call__(self, variable: str, text: str, before: str, others: Sequence[str]) -> str | None:
        now, earlier = _padded(text), _padded(before)
        for unit, owner in self._owners.items():
            if unit in now and unit not in earlier:
                return f"it holds a private piece of training example {owner}"
        return None


def _padded(text: str) -> str:
    return f" {' '.join(normalised_words(text))} "
