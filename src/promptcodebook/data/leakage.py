"""Inputs that stand in two splits: what training sees must not be what judges it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from promptcodebook.data.dataset import Dataset, Split
from promptcodebook.types import Example

__all__ = ["NEAR", "SHINGLE", "Leak", "leaks", "near_leaks", "normalised"]

SHINGLE = 8
"""Words in a run that near-copies are recognised by."""
NEAR = 0.6
"""Jaccard similarity of shingle sets from which two inputs count as near-copies."""
_COMMON = 100  # a run in more inputs than this is boilerplate, and too many pairs to compare


@dataclass(frozen=True, slots=True)
class Leak:
    """Two examples with the same (similarity 1) or nearly the same input; `splits` may be equal."""

    splits: tuple[Split, Split]
    ids: tuple[str, str]
    similarity: float = 1.0


def normalised(text: str) -> str:
    """The text for comparison: Unicode NFC, case folded, white space collapsed; marks stay."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def leaks(dataset: Dataset) -> list[Leak]:
    """Inputs that, normalised, stand in more than one split: one example of each split is named."""
    homes = dict[str, dict[Split, str]]()
    for split, example in _all(dataset):
        homes.setdefault(normalised(example.input), {}).setdefault(split, example.id)
    pairs = (pair for home in homes.values() for pair in combinations(home.items(), 2))
    return [Leak((s, t), (a, b)) for (s, a), (t, b) in pairs]


def near_leaks(dataset: Dataset) -> list[Leak]:
    """Pairs in different splits, not equal, whose 8-word runs overlap by Jaccard >= NEAR."""
    rows = list(_all(dataset))
    shingles = [_shingles(example.input) for _, example in rows]
    holders = dict[str, list[int]]()
    for row, runs in enumerate(shingles):
        for run in runs:
            holders.setdefault(run, []).append(row)
    found = list[Leak]()
    for a, b in sorted(set(_pairs(holders.values()))):
        (split_a, one), (split_b, two) = rows[a], rows[b]
        if split_a == split_b or normalised(one.input) == normalised(two.input):
            continue
        overlap = len(shingles[a] & shingles[b]) / len(shingles[a] | shingles[b])
        if overlap >= NEAR:
            found.append(Leak((split_a, split_b), (one.id, two.id), overlap))
    return found


def _all(dataset: Dataset) -> Iterator[tuple[Split, Example]]:
    return ((split, example) for split, examples in dataset.items() for example in examples)


def _pairs(groups: Iterable[list[int]]) -> Iterator[tuple[int, int]]:
    for group in groups:
        if len(group) <= _COMMON:
            yield from combinations(group, 2)


def _shingles(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", normalised(text))
    if len(words) < SHINGLE:
        return frozenset({" ".join(words)}) if words else frozenset()
    return frozenset(" ".join(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1))
