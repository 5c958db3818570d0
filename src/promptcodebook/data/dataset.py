"""The dataset: examples in three splits, given or drawn, and the fingerprints of their texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.randomness import keyed_int, keyed_random
from promptcodebook.text import fold_text
from promptcodebook.types import Example
from promptcodebook.units import plural

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Fractions = tuple[float, float, float]
_ALIASES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run learns from, is validated on and is judged by. Ids are unique over all splits.

    `input` is the column or template that inputs were read from; a policy reads columns by it.
    """

    train: tuple[Example, ...]
    val: tuple[Example, ...]
    test: tuple[Example, ...]
    name: str = "data"
    input: str = "input"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(examples)} {name}" for name, examples in self.items())
        return f"Dataset({self.name!r}: {sizes})"

    def __len__(self) -> int:
        return len(self.train) + len(self.val) + len(self.test)

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of one split; DataError for an unknown name."""
        return {"train": self.train, "val": self.val, "test": self.test}[split_name(name)]

    def items(self) -> Iterator[tuple[Split, tuple[Example, ...]]]:
        """Split names with their examples, in the order train, val, test."""
        for name in SPLITS:
            yield name, self.split(name)

    def fingerprint(self) -> dict[str, str]:
        """Split name -> SHA-256 (hex) over its ids, inputs and targets, in their order."""
        return {name: _digest(examples) for name, examples in self.items()}


def _digest(examples: tuple[Example, ...]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        line = json.dumps([example.id, example.input, example.target], ensure_ascii=False)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def split_name(word: object, where: str = "") -> Split:
    """'validation' -> 'val' and the like. DataError with a did-you-mean for any other word."""
    text = str(word).strip().lower()
    if text not in _ALIASES:
        at = f"{where}: " if where else ""
        raise DataError(
            f"{at}unknown split {word!r}{did_you_mean(text, _ALIASES)}",
            hint=f"the splits are {', '.join(SPLITS)}",
        )
    return _ALIASES[text]


def check_fractions(fractions: Sequence[float]) -> Fractions:
    """Shares of train, val, test: three positive numbers that sum to 1, else DataError."""
    shares = tuple(float(share) for share in fractions)
    if len(shares) != 3 or not all(s > 0 for s in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(
            f"fractions must be three positive shares that sum to 1, not {tuple(fractions)}",
            hint="e.g. fractions=(0.5, 0.25, 0.25)",
        )
    return shares[0], shares[1], shares[2]


def complete_splits(
    given: Mapping[Split, tuple[Example, ...]], fractions: Fractions, seed: int, name: str
) -> dict[Split, tuple[Example, ...]]:
    """The given splits; those not given are drawn from train by their fractions."""
    for split, examples in given.items():
        if not examples:
            raise DataError(f"the split {split!r} of {name} is empty", hint="add examples to it")
    missing = [split for split in SPLITS if split not in given]
    if not missing:
        return dict(given)
    if "train" in missing:
        raise DataError(f"{name} has no train split", hint="give at least 'train'")
    share = dict(zip(SPLITS, fractions, strict=True))
    parts: dict[Split, float] = {s: share[s] for s in SPLITS if s == "train" or s in missing}
    return {**given, **draw_splits(given["train"], parts, seed, f"the train split of {name}")}


def draw_splits(
    examples: Iterable[Example], shares: Mapping[Split, float], seed: int, name: str
) -> dict[Split, tuple[Example, ...]]:
    """A seeded draw of the splits named in `shares`, which need not sum to 1.

    Each gets at least one example; shares count distinct inputs. DataError if there are too few.
    """
    groups = dict[str, list[Example]]()
    for example in examples:
        groups.setdefault(fold_text(example.input), []).append(example)
    if len(groups) < len(shares):
        raise DataError(
            f"{name} has {plural(len(groups), 'distinct input')}, too few for the {len(shares)} "
            f"splits {', '.join(shares)}",
            hint="add examples, or give each split its own file",
        )
    order = sorted(groups.values(), key=lambda g: keyed_int(seed, "split", min(e.id for e in g)))
    counts = _counts(len(order), shares)
    out, at = dict[Split, tuple[Example, ...]](), 0
    for split, count in counts.items():
        members = [e for group in order[at : at + count] for e in sorted(group, key=lambda e: e.id)]
        out[split] = tuple(members)
        at += count
    return out


def _counts(total: int, shares: Mapping[Split, float]) -> dict[Split, int]:
    """Whole numbers >= 1 near the shares that sum to `total`; the first split takes the rest."""
    whole = sum(shares.values())
    first, *others = shares
    counts: dict[Split, int] = {s: max(1, round(total * shares[s] / whole)) for s in others}
    while total - sum(counts.values()) < 1:
        largest = max(counts, key=lambda split: counts[split])
        counts[largest] -= 1
    rest: dict[Split, int] = {first: total - sum(counts.values())}
    return rest | counts


def sample(examples: Sequence[Example], count: int | None) -> tuple[Example, ...]:
    """At most `count` examples, in their order. Which ones follows from their ids alone, so that
    two policies meet the same ones."""
    if count is None or count >= len(examples):
        return tuple(examples)
    keys = {e.id: keyed_random("evaluation sample", e.id).random() for e in examples}
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return tuple(e for e in examples if e.id in chosen)
