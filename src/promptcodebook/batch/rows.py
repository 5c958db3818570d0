"""The rows of a file, read as they are needed: JSON lines, CSV, TSV or Parquet.

`survey` reads all of it once before anything is paid for. It finds what is wrong down to the last
line, and identifies the file, its number of rows and its columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from promptcodebook.data.table import (
    Record,
    check_header,
    check_width,
    csv_records,
    delimiter_of,
    parse_object,
    plain,
)
from promptcodebook.errors import DataError, import_extra

Kind = Literal["jsonl", "csv", "tsv", "parquet"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
PARQUET_ROWS = 1024
"""Rows of a Parquet file that are in memory at once."""
_HEAD = 1 << 20
"""Characters of a CSV file by which its delimiter is found."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows: its columns in order of appearance, how many rows, and the SHA-256 (hex) of
    its bytes."""

    path: Path
    kind: Kind
    columns: tuple[str, ...]
    count: int
    mark: str

    def rows(self, after: int = 0, *, exact: bool = False) -> Iterator[Record]:
        """The rows behind the first `after`. Cells have CRLF as LF, as training data is read, where
        they are not to be `exact`. DataError."""
        return islice(_READERS[self.kind](self.path, exact), after, None)


def kind_of(path: Path) -> Kind:
    """By the file's ending. DataError for one that cannot be read row by row."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path}: rows are read from and written to .jsonl, .csv, .tsv or .parquet",
            hint="give it one of these endings, and the form that goes with it",
        )
    return kind


def survey(path: Path) -> Source:
    """Goes through the file once. DataError: it cannot be read, a row is not one, or it is empty;
    MissingExtra for Parquet without pyarrow."""
    kind = kind_of(path)
    if kind == "parquet":
        with _open_parquet(path) as file:
            columns = check_header(file.schema_arrow.names, str(path))
            count = int(file.metadata.num_rows)
    else:
        found, count = dict[str, None](), 0
        for row in _READERS[kind](path, False):
            found.update(dict.fromkeys(row.values))
            count += 1
        columns = tuple(found)
    if not count:
        raise DataError(f"{path} has no rows", hint="give it at least one")
    return Source(path, kind, columns, count, file_mark(path))


def file_mark(path: Path) -> str:
    """SHA-256 (hex) of the file's bytes. DataError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot read {path}: {error.strerror}", hint="check the path")


def _lines(path: Path, *, exact: bool = False) -> Iterator[tuple[int, str]]:
    """Each line with its number, without BOM, its line break kept: as LF, or as it is (`exact`)."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8",
                        hint=f"iconv -f WINDOWS-1252 -t UTF-8 {path}",
                    ) from None
                crlf = text.endswith("\r\n") and not exact
                yield number, f"{text[:-2]}\n" if crlf else text
    except OSError as error:
        raise _unreadable(path, error) from None


def _read_jsonl(path: Path, _exact: bool) -> Iterator[Record]:
    for number, line in _lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield Record(where, parse_object(line, where))


def _read_csv(path: Path, exact: bool, delimiter: str = "") -> Iterator[Record]:
    if not delimiter:
        head, length = list[str](), 0
        for _, line in _lines(path):
            head.append(line)
            if (length := length + len(line)) > _HEAD:
                break
        delimiter = delimiter_of("".join(head))
    lines = (line for _, line in _lines(path, exact=exact))
    header = tuple[str, ...]()
    for where, cells in csv_records(path, lines, delimiter, path.stat().st_size):
        if not header:
            header = check_header(cells, where)
            continue
        check_width(cells, header, where)
        pairs = zip(header, cells, strict=True)
        yield Record(where, {name: cell or None for name, cell in pairs})


def import_parquet() -> tuple[Any, Any]:
    """pyarrow and its Parquet part. MissingExtra."""
    names, what = ("pyarrow", "pyarrow.parquet"), "reading and writing Parquet"
    arrow, parquet = (import_extra(name, what, "parquet") for name in names)
    return arrow, parquet


def _open_parquet(path: Path) -> Any:
    arrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(
            f"cannot read {path} as Parquet: {error}", hint="check that the file is complete"
        ) from None


def _read_parquet(path: Path, _exact: bool) -> Iterator[Record]:
    arrow, _ = import_parquet()
    number = 0
    with _open_parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in cast("Sequence[Mapping[str, object]]", batch.to_pylist()):
                    number += 1
                    values = {name: plain(value) for name, value in row.items()}
                    yield Record(f"{path} row {number}", values)
        except (OSError, arrow.ArrowException) as error:
            raise DataError(
                f"cannot read {path} as Parquet after row {number}: {error}",
                hint="check that the file is complete",
            ) from None


_READERS = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "tsv": partial(_read_csv, delimiter="\t"),
    "parquet": _read_parquet,
}
