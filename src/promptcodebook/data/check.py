"""Whether a dataset is fit to learn from: inputs in two splits, repeats, gaps and lengths."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from promptcodebook.data.dataset import Dataset, Split
from promptcodebook.text import fold_text, quote
from promptcodebook.types import Example
from promptcodebook.units import plural

SHINGLE = 8
"""Words in a run that near-copies are recognised by."""
NEAR = 0.6
"""Jaccard similarity of shingle sets from which two inputs count as near-copies."""
_SHOWN = 5
_QUOTED = 60
_COMMON = 100  # a run in more inputs than this is boilerplate, and too many pairs to compare
_LOOKED_UP = 12
"""The fewest runs of an input that are looked up, where it has as many."""
_WORD = re.compile(r"\w+")
_SPACED = {code: " " for code in range(128) if not _WORD.match(chr(code))}


@dataclass(frozen=True, slots=True)
class Leak:
    """Two examples with the same (similarity 1) or nearly the same input; `splits` may be equal."""

    splits: tuple[Split, Split]
    ids: tuple[str, str]
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """Examples with the same input and different targets, each target once with the first id that
    has it: no prompt can satisfy them all."""

    ids: tuple[str, ...]
    targets: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.ids, self.targets, strict=True)
        said = [f"{id}: {quote(target, _QUOTED)}" for id, target in pairs]
        return ", ".join(said[:_SHOWN]) + (", ..." if len(said) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class DataCheck:
    """Columns, sizes and faults of data. `counts`, `missing_targets`, `lengths` go by split.

    `duplicates` holds the first example of an input with each of its repeats.
    """

    name: str
    counts: Mapping[str, int]
    columns: tuple[ColumnSummary, ...]
    duplicates: tuple[Leak, ...]
    overlaps: tuple[Leak, ...]
    near: tuple[Leak, ...]
    missing_targets: Mapping[str, int]
    lengths: Mapping[str, InputLengths]
    conflicts: tuple[Conflict, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing appears in two splits; duplicates and near-copies are warnings only."""
        return not self.overlaps

    def warnings(self) -> tuple[str, ...]:
        """What deserves a look, a sentence for each kind and split: how many, and the first few."""
        lines = list[str]()
        for split, missing in self.missing_targets.items():
            if 0 < missing < self.counts[split]:
                count = self.counts[split]
                lines.append(f"{missing} of {count} examples in {split} lack a target.")
        for split in self.counts:
            again = Counter(leak.ids[0] for leak in self.duplicates if leak.splits[0] == split)
            if again:
                firsts = [f"{id} ({n + 1} times)" for id, n in again.items()]
                lines.append(
                    f"{plural(again.total(), 'example')} in {split} have the same input "
                    f"as an earlier one: {', '.join(firsts[:_SHOWN])}{_more(firsts)}."
                )
        if self.conflicts:
            lines.append(
                f"{plural(len(self.conflicts), 'input')} with more than one target; no prompt can "
                f"satisfy all: {'; '.join(map(str, self.conflicts[:_SHOWN]))}"
                f"{_more(self.conflicts)}."
            )
        if self.near:
            shown = [
                f"{leak.ids[0]} ({leak.splits[0]}) and {leak.ids[1]} ({leak.splits[1]}), "
                f"{leak.similarity:.0%}"
                for leak in self.near[:_SHOWN]
            ]
            lines.append(
                f"{plural(len(self.near), 'pair')} of near-copies in different splits (shared "
                f"8-word runs): {'; '.join(shown)}{_more(self.near)}."
            )
        return tuple(lines)


def _more(things: Sized) -> str:
    return f"; and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column of the source: the types seen in it, and how many rows lack it."""

    name: str
    types: tuple[str, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class InputLengths:
    """Of a split's inputs in words."""

    shortest: int
    median: float
    longest: int


def examine(dataset: Dataset) -> DataCheck:
    """Looks a dataset over; changes and raises nothing."""
    splits, rows = dict(dataset.items()), _rows(dataset)
    again = _repeated(rows)
    return DataCheck(
        name=dataset.name,
        counts={split: len(examples) for split, examples in splits.items()},
        columns=_columns([row.example for row in rows]),
        duplicates=_duplicates(again),
        overlaps=tuple(_leaks(again)),
        near=tuple(_near_leaks(rows)),
        missing_targets={s: sum(e.target is None for e in es) for s, es in splits.items()},
        lengths={s: _lengths([r for r in rows if r.split == s]) for s, es in splits.items() if es},
        conflicts=tuple(_conflicts(again)),
    )


def _columns(examples: list[Example]) -> tuple[ColumnSummary, ...]:
    names = dict.fromkeys(name for example in examples for name in example.fields)
    summaries = list[ColumnSummary]()
    for name in names:
        counts = Counter(type(example.fields.get(name)) for example in examples)
        missing = counts.pop(type(None), 0)
        types = sorted({kind.__name__ for kind in counts})
        summaries.append(ColumnSummary(name, tuple(types), missing))
    return tuple(summaries)


@dataclass(frozen=True, slots=True)
class _Row:
    """An example, its split, and its input as inputs are compared."""

    split: Split
    example: Example
    folded: str


def _rows(dataset: Dataset) -> list[_Row]:
    return [
        _Row(split, example, fold_text(example.input))
        for split, examples in dataset.items()
        for example in examples
    ]


def _repeated(rows: Sequence[_Row]) -> list[_Row]:
    counts = Counter(row.folded for row in rows)
    return [row for row in rows if counts[row.folded] > 1]


def _duplicates(rows: Sequence[_Row]) -> tuple[Leak, ...]:
    repeats = list[Leak]()
    first = dict[tuple[Split, str], str]()
    for row in rows:
        before = first.setdefault((row.split, row.folded), row.example.id)
        if before != row.example.id:
            repeats.append(Leak((row.split, row.split), (before, row.example.id)))
    return tuple(repeats)


def _conflicts(rows: Sequence[_Row]) -> Iterator[Conflict]:
    """Targets count as different when they are so after folding, as inputs are compared."""
    homes = dict[str, dict[str, tuple[str, str]]]()
    for row in rows:
        example = row.example
        if (target := example.target) is not None:
            homes.setdefault(row.folded, {}).setdefault(fold_text(target), (example.id, target))
    for home in homes.values():
        if len(home) > 1:
            ids, targets = zip(*home.values(), strict=True)
            yield Conflict(ids, targets)


def _lengths(rows: Sequence[_Row]) -> InputLengths:
    """Folding leaves one blank between two words of an input, and makes and mends no word."""
    words = sorted(row.folded.count(" ") + bool(row.folded) for row in rows)
    middle = (words[(len(words) - 1) // 2] + words[len(words) // 2]) / 2
    return InputLengths(words[0], middle, words[-1])


def leaks(dataset: Dataset) -> list[Leak]:
    """Inputs that, folded, appear in more than one split: one example of each split is named."""
    return _leaks(_repeated(_rows(dataset)))


def _leaks(rows: Sequence[_Row]) -> list[Leak]:
    homes = dict[str, dict[Split, str]]()
    for row in rows:
        homes.setdefault(row.folded, {}).setdefault(row.split, row.example.id)
    pairs = (pair for home in homes.values() for pair in combinations(home.items(), 2))
    return [Leak((s, t), (a, b)) for (s, a), (t, b) in pairs]


def near_leaks(dataset: Dataset) -> list[Leak]:
    """Pairs in different splits, not equal, whose 8-word runs overlap by Jaccard >= NEAR.

    Of a long input only some runs are looked up, so that a pair may be missed: one in a thousand of
    those that just reach NEAR.
    """
    return _near_leaks(_rows(dataset))


def _near_leaks(rows: Sequence[_Row]) -> list[Leak]:
    shingles = lru_cache(maxsize=10_000)(_shingles)
    near = list[Leak]()
    groups = (group for group in _sharing(rows) if len(group) <= _COMMON)
    pairs = (pair for group in groups for pair in combinations(group, 2))
    for a, b in sorted({(a, b) for a, b in pairs if rows[a].split != rows[b].split}):
        one, two = rows[a], rows[b]
        if one.folded == two.folded:
            continue
        x, y = shingles(one.folded), shingles(two.folded)
        overlap = len(x & y) / len(x | y)
        if overlap >= NEAR:
            ids = one.example.id, two.example.id
            near.append(Leak((one.split, two.split), ids, overlap))
    return near


def _sharing(rows: Sequence[_Row]) -> Iterable[list[int]]:
    """Rows that have a run in common, for each such run that is looked up.

    Runs go by their hashes: two runs of one hash make one more pair to compare, and no more.
    """
    zeros, latest = _Zeros(), dict[int, int]()
    groups = dict[int, list[int]]()
    for number, row in enumerate(rows):
        runs = _looked_up(row.folded, zeros)
        for run in latest.keys() & runs:
            groups.setdefault(run, [latest[run]]).append(number)
        latest.update(dict.fromkeys(runs, number))
    return groups.values()


class _Zeros(dict[str, int]):
    """By word, the zeros at the end of its checksum: half of all words have one, a quarter two."""

    def __missing__(self, word: str) -> int:
        checksum = zlib.crc32(word.encode("utf-8", "surrogatepass")) or 1
        zeros = self[word] = (checksum & -checksum).bit_length() - 1
        return zeros


def _looked_up(folded: str, zeros: _Zeros) -> frozenset[int]:
    """Hashes of the runs of an input that are looked up; of one that is too short for one, of the
    whole. All of a short one; of one twice as long every second, by its first word, and so on.
    Whatever runs two inputs of like length share, they look up the same of them."""
    words = tuple(_words(folded))
    runs = len(words) - SHINGLE + 1
    if runs < 1:
        return frozenset({hash(words)} if words else ())
    least = (runs // _LOOKED_UP).bit_length() - 1
    places = (i for i in range(runs) if least <= 0 or zeros[words[i]] >= least)
    return frozenset([hash(words[i : i + SHINGLE]) for i in places])


def _words(folded: str) -> list[str]:
    """Runs of letters, digits and underscores; most texts are ASCII, for which this is faster."""
    return folded.translate(_SPACED).split() if folded.isascii() else _WORD.findall(folded)


def _shingles(folded: str) -> frozenset[str]:
    words = _words(folded)
    runs = range(max(1, len(words) - SHINGLE + 1) if words else 0)
    return frozenset(" ".join(words[i : i + SHINGLE]) for i in runs)
