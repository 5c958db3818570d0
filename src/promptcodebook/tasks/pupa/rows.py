"""Reading PUPA's rows. They hold what real people wrote to a chatbot: no error quotes any of it."""

from __future__ import annotations

from pathlib import Path

from promptcodebook.data import Dataset
from promptcodebook.errors import DataError
from promptcodebook.tasks.home import jsonl_splits
from promptcodebook.types import Example

__all__ = ["read_dataset"]

_FIELDS = {"id": str, "user_query": str, "target_response": str, "pii_units": str}
_FILLED = ("id", "user_query", "target_response")
_FORM = "one JSON object a line with the texts id, user_query, target_response and pii_units"


def read_dataset(folder: Path) -> Dataset:
    """The three splits, repeats of an input kept as they fall (the public order has some).

    DataError with file, line and field, never with what stands there.
    """
    seen = set[str]()
    splits = {
        split: tuple(_example(row, seen) for row in rows)
        for split, rows in jsonl_splits(folder, _FIELDS, private=True).items()
    }
    return Dataset(splits["train"], splits["val"], splits["test"], "pupa", "user_query")


def _example(row: dict[str, object], seen: set[str]) -> Example:
    where = str(row["_where"])
    for name in _FILLED:
        if not str(row[name]).strip():
            raise DataError(f"{where}: the field {name!r} is empty", hint=_FORM)
    key = str(row["id"])
    if key in seen:
        raise DataError(f"{where}: the field 'id' is that of an earlier row", hint=_FORM)
    seen.add(key)
    return Example(
        id=key,
        input=str(row["user_query"]),
        target=str(row["target_response"]),
        fields={"pii_units": row["pii_units"], "category": str(row.get("category") or "")},
    )
