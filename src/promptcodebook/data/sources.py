"""What people hand in -> tables: one without splits, or one for each split given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from promptcodebook.data.dataset import SPLITS, Split, split_name
from promptcodebook.data.files import read_csv, read_json, read_jsonl
from promptcodebook.data.frames import (
    is_arrow_folder,
    is_frame,
    is_hf_dataset,
    read_arrow_folder,
    read_frame,
    read_hf_dataset,
    read_parquet,
)
from promptcodebook.data.table import Row, Table, checked_header, plain
from promptcodebook.errors import DataError, did_you_mean

__all__ = ["read_source"]

_READERS: dict[str, Callable[[Path], Table]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": lambda path: read_csv(path, "\t"),
    ".parquet": read_parquet,
}


def read_source(source: object) -> Table | dict[Split, Table]:
    """Reads a path (file or folder), frame, dataset, list of dicts, or a mapping of splits to any.

    A folder holds train/val/test files. DataError for anything else, and for what cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str | os.PathLike[str]", source))
        if path.is_dir():
            return _read_folder(path)
        return _read_file(path)
    if isinstance(source, Mapping):
        return _read_splits(cast("Mapping[object, object]", source))
    return _read_object(source, "data")


def _read_file(path: Path) -> Table:
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"no file at {path}{did_you_mean(path.name, near)}", hint="check the path")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"cannot tell the format of {path} from its name", hint=f"use {', '.join(_READERS)}"
        )
    return reader(path)


def _read_folder(path: Path) -> Table | dict[Split, Table]:
    if is_arrow_folder(path):
        return read_source(read_arrow_folder(path))
    files = dict[Split, Path]()
    for file in sorted(path.iterdir()):
        if file.suffix.lower() in _READERS and file.stem.lower() in (*SPLITS, "validation"):
            split = split_name(file.stem)
            if split in files:
                raise DataError(
                    f"two files for the split {split!r} in {path}: "
                    f"{files[split].name}, {file.name}",
                    hint="name one of the files instead of the folder",
                )
            files[split] = file
    if not files:
        raise DataError(
            f"no train, val or test file in {path}", hint=f"name the data file in {path} itself"
        )
    return {split: _read_file(file) for split, file in files.items()}


def _read_splits(source: Mapping[object, object]) -> dict[Split, Table]:
    tables = dict[Split, Table]()
    for key, part in source.items():
        split = split_name(key, "the mapping of splits")
        if split in tables:
            raise DataError(f"the split {split!r} is given twice", hint="keep one of them")
        if isinstance(part, str | os.PathLike):
            tables[split] = _read_file(Path(cast("str | os.PathLike[str]", part)))
        else:
            tables[split] = _read_object(part, split)
    if not tables:
        raise DataError("the mapping of splits is empty", hint="give at least 'train'")
    return tables


def _read_object(source: object, name: str) -> Table:
    if is_frame(source):
        return read_frame(source, name)
    if is_hf_dataset(source):
        return read_hf_dataset(source, name)
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        return _read_records(cast("Sequence[object]", source), name)
    raise DataError(
        f"cannot read data from {type(source).__name__!r}",
        hint="hand in a path, a list of dicts, a pandas DataFrame or a datasets.Dataset",
    )


def _read_records(records: Sequence[object], name: str) -> Table:
    rows = list[Row]()
    for number, record in enumerate(records, start=1):
        where = f"{name}[{number - 1}]"
        if not isinstance(record, Mapping):
            raise DataError(
                f"{where} is {type(record).__name__!r}, not a dict",
                hint='write e.g. [{"input": "...", "target": "..."}]',
            )
        pairs = cast("Mapping[object, object]", record).items()
        values = {str(column): plain(value) for column, value in pairs}
        checked_header((column for column, _ in pairs), where)
        rows.append(Row(where, values))
    columns = dict.fromkeys(column for row in rows for column in row.values)
    return Table(name, tuple(columns), tuple(rows))
