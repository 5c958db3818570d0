"""What `pco data check` says about a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptcodebook.data.dataset import Dataset
from promptcodebook.data.leakage import Leak, leaks, near_leaks, normalised
from promptcodebook.types import Example

__all__ = ["ColumnFinding", "Findings", "Lengths", "examine"]


@dataclass(frozen=True, slots=True)
class ColumnFinding:
    """One column of the source: the types seen in it, and how many rows lack it."""

    name: str
    types: tuple[str, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a split's inputs in words."""

    shortest: int
    median: float
    longest: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Schema, sizes and faults of a dataset. `counts`, `missing_targets`, `lengths` go by split."""

    name: str
    counts: Mapping[str, int]
    columns: tuple[ColumnFinding, ...]
    duplicates: tuple[Leak, ...]
    overlaps: tuple[Leak, ...]
    near: tuple[Leak, ...]
    missing_targets: Mapping[str, int]
    lengths: Mapping[str, Lengths]

    @property
    def clean(self) -> bool:
        """Nothing stands in two splits; duplicates and near-copies are warnings only."""
        return not self.overlaps

    def warnings(self) -> tuple[str, ...]:
        """What deserves a look, one sentence each."""
        said = list[str]()
        for split, missing in self.missing_targets.items():
            if 0 < missing < self.counts[split]:
                said.append(f"{missing} of {self.counts[split]} examples in {split} lack a target.")
        for leak in self.duplicates:
            said.append(f"{leak.ids[0]} and {leak.ids[1]} in {leak.splits[0]} have the same input.")
        for leak in self.near:
            said.append(
                f"{leak.ids[0]} ({leak.splits[0]}) and {leak.ids[1]} ({leak.splits[1]}) are "
                f"near-copies ({leak.similarity:.0%} of their 8-word runs are shared)."
            )
        return tuple(said)


def examine(dataset: Dataset) -> Findings:
    """Looks a dataset over; changes and raises nothing."""
    splits = dict(dataset.items())
    return Findings(
        name=dataset.name,
        counts={split: len(examples) for split, examples in splits.items()},
        columns=_columns([e for examples in splits.values() for e in examples]),
        duplicates=_duplicates(dataset),
        overlaps=tuple(leaks(dataset)),
        near=tuple(near_leaks(dataset)),
        missing_targets={s: sum(e.target is None for e in es) for s, es in splits.items()},
        lengths={split: _lengths(examples) for split, examples in splits.items() if examples},
    )


def _columns(examples: list[Example]) -> tuple[ColumnFinding, ...]:
    names = dict.fromkeys(name for example in examples for name in example.fields)
    found = list[ColumnFinding]()
    for name in names:
        values = [example.fields.get(name) for example in examples]
        types = sorted({type(value).__name__ for value in values if value is not None})
        found.append(ColumnFinding(name, tuple(types), sum(v is None for v in values)))
    return tuple(found)


def _duplicates(dataset: Dataset) -> tuple[Leak, ...]:
    found = list[Leak]()
    for split, examples in dataset.items():
        first = dict[str, str]()
        for example in examples:
            before = first.setdefault(normalised(example.input), example.id)
            if before != example.id:
                found.append(Leak((split, split), (before, example.id)))
    return tuple(found)


def _lengths(examples: tuple[Example, ...]) -> Lengths:
    words = sorted(len(example.input.split()) for example in examples)
    middle = (words[(len(words) - 1) // 2] + words[len(words) // 2]) / 2
    return Lengths(words[0], middle, words[-1])
