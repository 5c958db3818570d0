"""Rows as read from any source, each knowing where it came from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from promptcodebook.errors import DataError

__all__ = ["Row", "Table", "checked_header", "plain"]


@dataclass(frozen=True, slots=True)
class Row:
    """One record and its place, such as 'tickets.jsonl:12'."""

    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of one source; `columns` is the union of their columns, in order of appearance."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def checked_header(names: Iterable[object], where: str) -> tuple[str, ...]:
    """Column names as text. DataError for a nameless column or one that occurs twice."""
    header = tuple(str(name).strip() for name in names)
    for position, name in enumerate(header, start=1):
        if not name:
            raise DataError(
                f"{where}: column {position} has no name", hint="name it in the first line"
            )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(
            f"{where}: duplicate columns: {', '.join(map(repr, twice))}",
            hint="rename or delete one of each",
        )
    return header


def plain(value: object) -> object:
    """A value as JSON knows it: NumPy scalars and arrays unpacked, NaN as None, the rest as text.

    So what a frame, a Parquet file and a JSON line hold compares equal.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {str(key): plain(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Iterable[object]", value)]
    unpack = getattr(value, "tolist", None)  # NumPy scalars and arrays
    if callable(unpack):
        return plain(unpack())
    iso = getattr(value, "isoformat", None)  # dates and times
    return str(iso()) if callable(iso) else str(value)
