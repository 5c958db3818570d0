"""Examples in three splits, and the fingerprint that tells whether they changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.types import Example

__all__ = ["SPLITS", "Dataset", "Split", "split_name"]

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

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
