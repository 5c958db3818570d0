"""Reading HoVer's claims: our layout of three files, or the official file with the paper's split.

A row holds uid, claim, label and gold_titles; without gold_titles the distinct titles of its
supporting_facts ([[title, sentence], ...]), which is what the official file has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from promptcodebook.data import SPLITS, Split
from promptcodebook.data.dataset import split_name
from promptcodebook.data.files import read_json
from promptcodebook.errors import DataError
from promptcodebook.tasks.home import read_rows
from promptcodebook.tasks.hover.score import parse_label
from promptcodebook.types import Example

__all__ = ["OFFICIAL", "paper_splits", "read_claim", "read_claims", "read_official", "read_spare"]

OFFICIAL = "hover_train_release_v1.1.json"
"""The official training claims, as their repository names the file."""

Row = dict[str, object]
_FIELDS = {"uid": str, "claim": str, "label": str}
_SIZES: dict[Split, int] = {"train": 150, "val": 300, "test": 300}


def read_claims(folder: Path) -> dict[Split, list[Example]]:
    """The claims of train.jsonl, val.jsonl and test.jsonl; DataError with file and line."""
    return {
        split: [read_claim(row) for row in read_rows(folder / f"{split}.jsonl", _FIELDS)]
        for split in SPLITS
    }


def read_spare(folder: Path) -> list[tuple[Split, Example]]:
    """Claims of claims_without_text.jsonl with their split; none where there is no such file."""
    path = folder / "claims_without_text.jsonl"
    if not path.is_file():
        return []
    spare = list[tuple[Split, Example]]()
    for row in read_rows(path, {**_FIELDS, "split": str}):
        spare.append((split_name(row["split"], str(row["_where"])), read_claim(row)))
    return spare


def read_official(path: Path) -> dict[Split, list[Example]]:
    """The official file (a JSON array), split as `paper_splits` does; DataError with the record."""
    table = read_json(path)
    rows = list[Row]()
    for row in table.rows:
        for field in _FIELDS:
            if not isinstance(row.values.get(field), str):
                raise DataError(
                    f"{row.where}: the field {field!r} is missing or no text",
                    hint="correct that record",
                )
        rows.append({**row.values, "_where": row.where})
    return paper_splits([read_claim(row) for row in rows])


def paper_splits(claims: Sequence[Example]) -> dict[Split, list[Example]]:
    """Those with exactly three gold pages, shuffled with seed 0; first 40 % test, next 40 % val,
    the rest train; each cut to 300, 300 and 150 by a sample with seed 1."""
    pool = [c for c in claims if len(cast("Sequence[str]", c.fields["gold_titles"])) == 3]
    # The protocol is stated in terms of Python's own generator, so it is followed with that.
    random.Random(0).shuffle(pool)
    first, second = len(pool) * 40 // 100, len(pool) * 80 // 100
    parts: dict[Split, list[Example]] = {
        "train": pool[second:],
        "val": pool[first:second],
        "test": pool[:first],
    }
    return {split: _at_most(part, _SIZES[split]) for split, part in parts.items()}


def read_claim(row: Row) -> Example:
    """One checked row as an Example; DataError naming the row's `_where`."""
    where, claim, uid = row["_where"], str(row["claim"]), str(row["uid"])
    if not claim.strip() or not uid.strip():
        raise DataError(f"{where}: the uid or the claim is empty", hint="fill it in")
    label = parse_label(str(row["label"]))
    if label is None:
        raise DataError(
            f"{where}: the label {row['label']!r} is neither SUPPORTED nor NOT_SUPPORTED",
            hint="correct that line",
        )
    fields = {name: value for name, value in row.items() if name != "_where"}
    return Example(uid, claim, label, fields={**fields, "gold_titles": _gold(row)})


def _gold(row: Row) -> list[str]:
    given = row.get("gold_titles")
    name = "gold_titles" if given is not None else "supporting_facts"
    if given is None:
        facts = row.get("supporting_facts")
        pairs = cast("list[object]", facts) if isinstance(facts, list) else []
        given = [cast("list[object]", p)[0] if isinstance(p, list) and p else None for p in pairs]
    titles = cast("list[object]", given) if isinstance(given, list) else []
    if not titles or not all(isinstance(t, str) and t.strip() for t in titles):
        raise DataError(
            f"{row['_where']}: {name} names no gold pages",
            hint='write "gold_titles": ["Title", ...], spelled as in corpus.jsonl',
        )
    return list(dict.fromkeys(cast("list[str]", titles)))


def _at_most(claims: list[Example], count: int) -> list[Example]:
    return claims if len(claims) <= count else random.Random(1).sample(claims, count)
