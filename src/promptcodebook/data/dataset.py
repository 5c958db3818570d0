"""The dataset: examples in three splits, their fingerprints, and what is wrong with them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import nsmallest
from itertools import combinations, islice
from typing import Literal

from promptcodebook.base.randomness import keyed_int, keyed_random
from promptcodebook.base.text import fold_text, quote, runs_of, words_of
from promptcodebook.base.units import plural
from promptcodebook.data.table import SAMPLE
from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.types import Example

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_ALIASES: dict[str, Split] = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"val": "val", "valid": "val", "validation": "val", "dev": "val"},
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run learns from, is validated on and is judged by. Ids are unique over all splits.

    - `train`, `val`, `test`: the examples of each split, in order.
    - `name`: what messages and reports call the data ("data").
    - `input`: the column or template that inputs were read from; a policy reads columns by it.
    - `notes`: what was done to read them, in words.
    - `left_out`: rows that are in no split, as they have no reference (0)."""

    train: tuple[Example, ...]
    val: tuple[Example, ...]
    test: tuple[Example, ...]
    name: str = "data"
    input: str = "input"
    notes: tuple[str, ...] = ()
    left_out: int = 0

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(examples)} {name}" for name, examples in self.items())
        return f"Dataset({self.name!r}: {sizes})"

    def __len__(self) -> int:
        return len(self.train) + len(self.val) + len(self.test)

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of one split. Raises DataError when the name is unknown."""
        return dict(self.items())[split_name(name)]

    def items(self) -> Iterator[tuple[Split, tuple[Example, ...]]]:
        """Split names with their examples, in the order train, val, test."""
        yield from zip(SPLITS, (self.train, self.val, self.test), strict=True)

    @property
    def remark(self) -> str:
        """How many rows are left out, and whether they are a sample, in words; '' = neither."""
        verb = "is" if self.left_out == 1 else "are"
        what = f"{plural(self.left_out, 'row')} without a reference {verb} left out"
        samples = (note for note in self.notes if note.startswith(SAMPLE))
        return "; ".join((*samples, *([what] if self.left_out else ())))

    def with_references(self) -> Dataset:
        """Without the rows whose reference is missing or blank; `left_out` counts them. Raises
        DataError where a split has no other rows."""
        parts = dict[str, tuple[Example, ...]]()
        for split, examples in self.items():
            parts[split] = tuple(filter(has_reference, examples))
            if examples and not parts[split]:
                hint = "name the reference column, or use a reward that needs none, such as judge"
                raise DataError(f"no {split} row of {self.name} has a reference", hint=hint)
        return replace(self, **parts, left_out=len(self) - sum(map(len, parts.values())))

    def fingerprint(self) -> dict[str, str]:
        """Split name -> SHA-256 (hex) over its ids, whole inputs and targets, in their order."""
        marks: dict[str, str] = {}
        for name, examples in self.items():
            digest = hashlib.sha256()
            for example in examples:
                line = json.dumps(
                    [example.id, example.cache_text, example.target], ensure_ascii=False
                )
                digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
            marks[name] = digest.hexdigest()
        return marks


def split_name(word: object, where: str = "") -> Split:
    """'validation' -> 'val' and the like. Raises DataError with a did-you-mean for any other
    word."""
    text = str(word).strip().lower()
    if text not in _ALIASES:
        at = f"{where}: " if where else ""
        what = f"{at}unknown split {word!r}{did_you_mean(text, _ALIASES)}"
        raise DataError(what, hint=f"the splits are {', '.join(SPLITS)}")
    return _ALIASES[text]


def has_reference(example: Example) -> bool:
    return bool(example.target) and not str(example.target).isspace()


def complete_splits(
    given: Mapping[Split, tuple[Example, ...]],
    shares: Mapping[Split, float],
    seed: int,
    name: str,
    *,
    stratify: bool = False,
) -> dict[Split, tuple[Example, ...]]:
    """The given splits; those not given are drawn from train by their shares."""
    for split, examples in given.items():
        if not examples:
            raise DataError(f"the split {split!r} of {name} is empty", hint="add examples to it")
    missing = [split for split in SPLITS if split not in given]
    if not missing:
        return dict(given)
    if "train" in missing:
        raise DataError(f"{name} has no train split", hint="pass at least 'train'")
    parts: dict[Split, float] = {s: shares[s] for s in SPLITS if s == "train" or s in missing}
    title = f"the train split of {name}"
    return {**given, **draw_splits(given["train"], parts, seed, title, stratify=stratify)}


def draw_splits(
    examples: Iterable[Example],
    shares: Mapping[Split, float],
    seed: int,
    name: str,
    *,
    stratify: bool = False,
) -> dict[Split, tuple[Example, ...]]:
    """A seeded draw of the splits named in `shares`, which need not sum to 1. Each gets at least
    one example; shares count distinct inputs, and a group of the data as one. With `stratify` each
    target has its share in every split. Raises DataError when there are too few."""
    rows, known, pairs = tuple(examples), dict[str, int](), list[tuple[int, int]]()
    for number, example in enumerate(rows):
        keys = (fold_text(example.cache_text), example.group and f"\0{example.group}")
        pairs += [(known.setdefault(key, number), number) for key in filter(None, keys)]
    groups = dict[int, list[Example]]()
    for example, first_row in zip(rows, _joined(len(rows), pairs), strict=True):
        groups.setdefault(first_row, []).append(example)
    total = len(groups)
    if total < len(shares):
        few = f"too few for the {len(shares)} splits {', '.join(shares)}"
        what = f"{name} has {plural(total, 'distinct input')}, {few}"
        raise DataError(what, hint="add examples, or give each split its own file")
    whole = sum(shares.values())
    first, *others = shares
    counts: dict[Split, int] = {s: max(1, round(total * shares[s] / whole)) for s in others}
    while total - sum(counts.values()) < 1:
        counts[max(counts, key=lambda split: counts[split])] -= 1
    counts = {first: total - sum(counts.values()), **counts}
    order = sorted(groups.values(), key=lambda g: keyed_int(seed, "split", min(e.id for e in g)))
    if stratify:
        order = _by_target(order, [counts[split] for split in others])
    out, waiting = dict[Split, tuple[Example, ...]](), iter(order)
    for split, count in counts.items():
        drawn = islice(waiting, count)
        out[split] = tuple(e for group in drawn for e in sorted(group, key=lambda e: e.id))
    return out


def _by_target(
    groups: Sequence[Sequence[Example]], counts: Sequence[int]
) -> list[Sequence[Example]]:
    """The groups with those of the later splits behind, as many as `counts` says. A target has its
    share in each, rounded as Sainte-Laguë does; one in each split, if it has as many groups."""
    rest, drawn = list(groups), list[Sequence[Example]]()
    for later, count in zip(range(len(counts), 0, -1), counts, strict=True):
        places, seats = dict[str, list[int]](), list[tuple[int, float, int]]()
        for at, group in enumerate(rest):
            target = min(group, key=lambda example: example.id).target or ""
            places.setdefault(fold_text(target), []).append(at)
        for of_target in places.values():
            for k, at in enumerate(of_target):
                # First one of each; last those that the splits still to come need.
                turn = min(k, 1) if k < len(of_target) - later else 2
                seats.append((turn, (k + 0.5) / len(of_target), at))
        chosen = {at for *_, at in sorted(seats)[:count]}
        drawn += [group for at, group in enumerate(rest) if at in chosen]
        rest = [group for at, group in enumerate(rest) if at not in chosen]
    return [*rest, *drawn]


def sample(examples: Sequence[Example], count: int | None) -> tuple[Example, ...]:
    """At most `count` examples, in their order, with their groups; their ids say which, for all
    policies alike."""
    if count is None or count >= len(examples):
        return grouped(examples)
    keys = {e.id: keyed_random("evaluation sample", e.id).random() for e in examples}
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return grouped([e for e in examples if e.id in chosen])


def grouped(examples: Sequence[Example]) -> tuple[Example, ...]:
    """The examples as they are where the data name groups (`data.group`). Else equal and nearly
    equal inputs form groups, each with the id of its first example."""
    if any(e.group for e in examples):
        return tuple(examples)
    rows = [_SplitRow("test", e, fold_text(e.cache_text)) for e in examples]
    firsts = _joined(len(rows), _alike(rows))
    sizes = Counter(firsts)
    return tuple(
        replace(e, group=examples[first].id) if sizes[first] > 1 else e
        for e, first in zip(examples, firsts, strict=True)
    )


def independent(examples: Iterable[Example]) -> int:
    """How many groups the examples form, as `sample` and `grouped` give them."""
    return len({e.group or e.id for e in examples})


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """For each number below `count` the first that a chain of the pairs joins it with."""
    firsts = list(range(count))

    def first(number: int) -> int:
        while firsts[number] != number:
            firsts[number] = number = firsts[firsts[number]]
        return number

    for a, b in pairs:
        low, high = sorted((first(a), first(b)))
        firsts[high] = low
    return [first(number) for number in range(count)]


def _alike(rows: Sequence[_SplitRow]) -> Iterator[tuple[int, int]]:
    """Pairs of rows whose inputs are equal, or share most of their 8-word runs beside those that a
    third of the inputs have: what a template repeats makes no two inputs one."""
    known = dict[str, int]()
    for number, row in enumerate(rows):
        if (earlier := known.setdefault(row.folded, number)) != number:
            yield earlier, number
    distinct = [rows[number] for number in known.values()]
    if len(distinct) > _COMPARED:
        return
    runs = [_checksums(row.folded) for row in distinct]
    counts = Counter(run for each in runs for run in each)
    own = [frozenset(r for r in each if 3 * counts[r] <= len(distinct)) for each in runs]
    places = list(known.values())
    for group in (group for group in _sharing(distinct) if len(group) <= _COMMON):
        for a, b in combinations(group, 2):
            if own[a] and own[b] and len(own[a] & own[b]) / len(own[a] | own[b]) >= NEAR:
                yield places[a], places[b]


# Whether it is fit to learn from

SHINGLE = 8  # words in a run that near-copies are recognised by
NEAR = 0.6  # jaccard similarity of shingle sets from which two inputs count as near-copies
_SHOWN, _QUOTED = 5, 60
# Inputs that a run may be in, as more make it boilerplate; and runs that are looked up of one.
_COMMON, _LOOKED_UP = 100, 12
_COMPARED = 5000  # inputs up to which near-copies form groups; equal ones always do


@dataclass(frozen=True, slots=True)
class Leak:
    """Two examples with the same (similarity 1) or nearly the same input; `splits` may be equal.
    `ids` are their rows, or their ids where the data have such a column."""

    splits: tuple[Split, Split]
    ids: tuple[str, str]
    similarity: float = 1.0

    def __str__(self) -> str:
        (a, b), (in_a, in_b) = self.ids, self.splits
        return f"{a} ({in_a}) and {b} ({in_b})"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Examples with the same input and different targets, each target once with its first row."""

    ids: tuple[str, ...]
    targets: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.ids, self.targets, strict=True)
        shown = [f"{id}: {quote(target, _QUOTED)}" for id, target in pairs]
        return ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class DataCheck:
    """Sizes by split, and faults; `duplicates` = an input's first with each repeat.
    `independent` are the groups of validation and test, where they are fewer than the rows."""

    name: str
    counts: Mapping[str, int]
    duplicates: tuple[Leak, ...]
    overlaps: tuple[Leak, ...]
    near: tuple[Leak, ...]
    missing_targets: Mapping[str, int]
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    independent: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def clean(self) -> bool:
        """Nothing appears in two splits; duplicates and near-copies are warnings only."""
        return not self.overlaps

    def warnings(self) -> tuple[str, ...]:
        """What deserves a look, a sentence for each kind and split: how many, and the first few."""
        lines = [
            f"{missing} of {self.counts[split]} examples in {split} lack a target; a reward that "
            "compares answers with targets leaves them out."
            for split, missing in self.missing_targets.items()
            if 0 < missing < self.counts[split]
        ]
        lines += [
            f"Of the {self.counts[split]} examples in {split}, {count} are independent: rows in "
            "the same group, or with nearly identical inputs, count as one."
            for split, count in self.independent.items()
        ]
        for split in self.counts:
            again = Counter(leak.ids[0] for leak in self.duplicates if leak.splits[0] == split)
            if again:
                firsts = [f"{id} ({n + 1} times)" for id, n in again.items()]
                lines.append(
                    f"{plural(again.total(), 'example')} in {split} have the same input "
                    f"as an earlier example: {', '.join(firsts[:_SHOWN])}{_more(firsts)}."
                )
        if self.conflicts:
            lines.append(
                f"{plural(len(self.conflicts), 'input')} with more than one target; no prompt can "
                f"satisfy them all: {'; '.join(map(str, self.conflicts[:_SHOWN]))}"
                f"{_more(self.conflicts)}."
            )
        if self.near:
            shown = [f"{leak}, {leak.similarity:.0%}" for leak in self.near[:_SHOWN]]
            lines.append(
                f"{plural(len(self.near), 'pair')} of near-copies in different splits (% = "
                f"shared 8-word runs): {'; '.join(shown)}{_more(self.near)}."
            )
        return tuple(lines)


def _more(things: Sized) -> str:
    return f"; and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""


def examine(dataset: Dataset) -> DataCheck:
    """Looks a dataset over; changes and raises nothing."""
    splits, rows = dict(dataset.items()), _rows(dataset)
    again = _repeated(rows)
    judged = {split: grouped(splits[split]) for split in SPLITS[1:]}
    groups = {split: independent(part) for split, part in judged.items()}
    fewer = {s: count for s, count in groups.items() if count < len(judged[s])}
    return DataCheck(
        name=dataset.name,
        counts={split: len(examples) for split, examples in splits.items()},
        duplicates=tuple(_duplicates(again)),
        overlaps=tuple(_leaks(again)),
        near=tuple(_near_leaks(rows)),
        missing_targets={s: sum(not has_reference(e) for e in es) for s, es in splits.items()},
        conflicts=tuple(_conflicts(again)),
        notes=dataset.notes,
        independent=fewer,
    )


@dataclass(frozen=True, slots=True)
class _SplitRow:
    split: Split
    example: Example
    folded: str

    @property
    def name(self) -> str:
        return self.example.where or self.example.id


def _rows(dataset: Dataset) -> list[_SplitRow]:
    return [
        _SplitRow(split, e, fold_text(e.cache_text))
        for split, part in dataset.items()
        for e in part
    ]


def _repeated(rows: Sequence[_SplitRow]) -> list[list[_SplitRow]]:
    groups = dict[str, list[_SplitRow]]()
    for row in rows:
        groups.setdefault(row.folded, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def leaks(dataset: Dataset) -> list[Leak]:
    """Inputs that, folded, appear in more than one split: one example of each split is named."""
    return _leaks(_repeated(_rows(dataset)))


def _leaks(groups: Iterable[Sequence[_SplitRow]]) -> list[Leak]:
    homes = [_first_ids(group).items() for group in groups]
    pairs = (pair for home in homes for pair in combinations(home, 2))
    return [Leak((s, t), (a, b)) for (s, a), (t, b) in pairs]


def _duplicates(groups: Iterable[Sequence[_SplitRow]]) -> Iterator[Leak]:
    for group in groups:
        first = _first_ids(group)
        for row in group:
            if row.name != first[row.split]:
                yield Leak((row.split, row.split), (first[row.split], row.name))


def _first_ids(group: Iterable[_SplitRow]) -> dict[Split, str]:
    first = dict[Split, str]()
    for row in group:
        first.setdefault(row.split, row.name)
    return first


def _conflicts(groups: Iterable[Sequence[_SplitRow]]) -> Iterator[Conflict]:
    """Targets count as different when they are so after folding, as inputs are compared."""
    for group in groups:
        home = dict[str, tuple[str, str]]()
        for row in group:
            if (target := row.example.target) is not None:
                home.setdefault(fold_text(target), (row.name, target))
        if len(home) > 1:
            ids, targets = zip(*home.values(), strict=True)
            yield Conflict(ids, targets)


def _near_leaks(rows: Sequence[_SplitRow]) -> Iterator[Leak]:
    """Pairs in different splits, not equal, whose 8-word runs overlap by Jaccard >= NEAR. As only
    some runs of a long input are looked up, one pair in 10,000 that just reach it is missed."""

    checksums = lru_cache(maxsize=10_000)(_checksums)
    groups = (group for group in _sharing(rows) if len(group) <= _COMMON)
    pairs = (pair for group in groups for pair in combinations(group, 2))
    for a, b in sorted({(a, b) for a, b in pairs if rows[a].split != rows[b].split}):
        one, two = rows[a], rows[b]
        if one.folded == two.folded:
            continue
        x, y = checksums(one.folded), checksums(two.folded)
        overlap = len(x & y) / len(x | y)
        if overlap >= NEAR:
            yield Leak((one.split, two.split), (one.name, two.name), overlap)


def _sharing(rows: Sequence[_SplitRow]) -> Iterable[list[int]]:
    """Rows that have a run in common, for each run that is looked up: those with the smallest
    checksums, the same ones of like inputs (a bottom-k sketch). Two that share 60 % of their runs
    have one of twelve in common."""
    latest, groups = dict[int, int](), dict[int, list[int]]()
    for number, row in enumerate(rows):
        runs = nsmallest(_LOOKED_UP, _checksums(row.folded))
        for run in latest.keys() & runs:
            groups.setdefault(run, [latest[run]]).append(number)
        latest.update(dict.fromkeys(runs, number))
    return groups.values()


def _checksums(folded: str) -> frozenset[int]:
    """Of an input's 8-word runs, or of the whole where it is shorter."""
    words = tuple(words_of(folded))
    runs = runs_of(words, SHINGLE) or ([words] if words else [])
    return frozenset(zlib.crc32(" ".join(run).encode("utf-8", "surrogatepass")) for run in runs)
