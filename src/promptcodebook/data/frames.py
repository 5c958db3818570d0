"""Rows from columnar sources: Parquet files, pandas frames, Hugging Face datasets.

None of these libraries is imported unless a file or an object of theirs is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from promptcodebook.data.table import Row, Table, checked_header, plain
from promptcodebook.errors import DataError, MissingExtra

__all__ = ["is_arrow_folder", "is_frame", "is_hf_dataset", "read_arrow_folder", "read_frame",
           "read_hf_dataset", "read_parquet"]  # fmt: skip


def read_parquet(path: Path) -> Table:
    """All rows of a Parquet file (extra: parquet)."""
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise MissingExtra(f"reading {path.name}", "parquet") from None
    try:
        table: Any = cast("Any", parquet).ParquetFile(path).read()
    except (OSError, cast("Any", arrow).ArrowException) as error:
        raise DataError(
            f"cannot read {path} as Parquet: {error}", hint="check that the file is complete"
        ) from None
    header = checked_header(table.column_names, str(path))
    return _table(path.name, header, table.to_pylist())


def is_frame(source: object) -> bool:
    """Is this a pandas DataFrame?"""
    return _is(source, "pandas", "DataFrame")


def read_frame(frame: Any, name: str) -> Table:
    """All rows of a pandas DataFrame; its NaN, NaT and NA are missing values."""
    header = checked_header(frame.columns, name)
    frame = frame.astype(object).where(frame.notna(), None)
    rows = frame.itertuples(index=False, name=None)
    return _table(name, header, (dict(zip(header, row, strict=True)) for row in rows))


def is_hf_dataset(source: object) -> bool:
    """Is this one split of a Hugging Face dataset (a Dataset, streaming or not)?"""
    return _is(source, "datasets", "Dataset") or _is(source, "datasets", "IterableDataset")


def read_hf_dataset(dataset: Any, name: str) -> Table:
    """All rows of a `datasets.Dataset`."""
    rows = cast("list[Mapping[str, object]]", list(dataset))
    header = dataset.column_names or list(rows[0] if rows else ())
    return _table(name, checked_header(header, name), rows)


def is_arrow_folder(path: Path) -> bool:
    """Was this folder written by `datasets`' save_to_disk?"""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_arrow_folder(path: Path) -> object:
    """The Dataset or DatasetDict that was saved in this folder (extra: datasets)."""
    try:
        import datasets  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise MissingExtra(f"reading the dataset folder {path.name}", "datasets") from None
    return cast("Any", datasets).load_from_disk(str(path))


def _is(source: object, package: str, name: str) -> bool:
    kinds = type(source).__mro__
    return any(k.__name__ == name and k.__module__.split(".")[0] == package for k in kinds)


def _table(name: str, header: tuple[str, ...], rows: Iterable[Mapping[str, object]]) -> Table:
    found = tuple(
        Row(f"{name} row {number}", {column: plain(row[column]) for column in header})
        for number, row in enumerate(rows, start=1)
    )
    return Table(name, header, found)
