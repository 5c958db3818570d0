"""The rows of a batch: IN, what becomes of a row, and OUT: each row with answer, route and error.
`survey` reads all of IN before anything is paid for. At the end IN is read once more beside the
results, so that each column keeps its type and only results were ever stored."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, cast, get_args

from promptcodebook.base.paths import sha256_of, whole_file
from promptcodebook.base.sqlite import on_disk
from promptcodebook.base.text import shell
from promptcodebook.data import files
from promptcodebook.data.table import SourceRow
from promptcodebook.errors import DataError
from promptcodebook.types import Rollout

FileKind = Literal["jsonl", "csv", "tsv", "parquet"]
_KINDS = cast(
    "dict[str, FileKind]", {f".{k}": k for k in get_args(FileKind)} | {".ndjson": "jsonl"}
)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows: its columns in order of appearance; `mark` is the SHA-256 of its bytes."""

    path: Path
    kind: FileKind
    columns: tuple[str, ...]
    count: int
    mark: str

    def rows(self, after: int = 0) -> Iterator[SourceRow]:
        """The rows behind the first `after`. Raises DataError when one cannot be read."""
        return islice(_records(self.path, self.kind), after, None)


def _records(path: Path, kind: FileKind) -> Iterator[SourceRow]:
    if kind in ("jsonl", "parquet"):
        return files.jsonl_records(path) if kind == "jsonl" else files.parquet_records(path)
    cells = files.csv_records(path, "\t" if kind == "tsv" else "")
    return islice(cells, 1, None)  # behind the header


def kind_of(path: Path) -> FileKind:
    """By the file's ending. Raises DataError for one that cannot be read row by row."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        message = f"{path}: rows are read from and written to .jsonl, .csv, .tsv or .parquet"
        raise DataError(message, hint="use one of these endings, with the matching format")
    return kind


def survey(path: Path) -> RowFile:
    """Reads the file once. Raises DataError where it cannot be read or is empty, and
    MissingExtra for parquet without its reader."""
    kind = kind_of(path)
    if kind == "parquet":
        columns = files.parquet_columns(path)
        with files.open_parquet(path) as file:
            count = int(file.metadata.num_rows)
    else:
        found, count = dict[str, None](), 0
        for row in _records(path, kind):
            found.update(dict.fromkeys(row.values))
            count += 1
        columns = tuple(found)
    if not count:
        raise DataError(f"{path} has no rows", hint="add at least one row")
    return RowFile(path, kind, columns, count, file_mark(path))


def file_mark(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        hint = f"ls -l {shell(path.parent)}"
        raise DataError(f"cannot read {path}: {error.strerror}", hint=hint) from None


@dataclass(frozen=True, slots=True)
class RowResult:
    """Of one row: the answer and the instincts that it was given by, or the error in its place."""

    answer: str | None = None
    route: tuple[int, ...] | None = None
    error: str | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> RowResult:
        route = None if rollout.route is None else rollout.route.indices
        failure = rollout.failure
        if failure is None:
            return cls(rollout.said, route)
        return cls(None, route, f"{failure.kind} at {failure.stage}: {failure.message}")

    def line(self) -> bytes:
        """As it is kept: JSON, and a line break that says it is whole."""
        return _json(asdict(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> RowResult:
        """What `line` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        tree = json.loads(line)
        route = tree["route"]
        return cls(tree["answer"], None if route is None else tuple(route), tree["error"])


def added_names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}answer", f"{prefix}route", f"{prefix}error"


def _added(result: RowResult, prefix: str) -> dict[str, object]:
    route = None if result.route is None else list(result.route)
    return dict(zip(added_names(prefix), (result.answer, route, result.error), strict=True))


def _json(value: object) -> bytes:
    # Half a surrogate pair is no UTF-8; its JSON escape is read back as it was.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def write_output(target: Path, source: RowFile, results: Iterable[RowResult], prefix: str) -> None:
    """OUT, whole or not at all, in the form that its ending names. `results` has one for each row
    of IN. Raises DataError, StoreError or DiskFull."""
    kind = kind_of(target)
    with on_disk(target), whole_file(target) as part:
        if kind == "parquet":
            _write_parquet(part, source, results, prefix)
            return
        pairs = zip(source.rows(), results, strict=True)
        rows = ({**record.values, **_added(result, prefix)} for record, result in pairs)
        if kind == "jsonl":
            with part.open("wb") as file:
                file.writelines(_json(row) + b"\n" for row in rows)
            return
        header, delimiter = [*source.columns, *added_names(prefix)], "\t" if kind == "tsv" else ","
        lines = ([_cell(row.get(name)) for name in header] for row in rows)
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            plain, quoted = (
                csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
                for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
            )
            for cells in chain([header], lines):
                # CR ends a row for most readers, and QUOTE_MINIMAL quotes LF alone.
                (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_parquet(part: Path, source: RowFile, results: Iterable[RowResult], prefix: str) -> None:
    """IN, which is Parquet too, in pieces with its types."""
    arrow, parquet = files.import_parquet()
    types = (arrow.string(), arrow.list_(arrow.int64()), arrow.string())
    remaining, writer = iter(results), None
    try:
        with files.open_parquet(source.path) as file:
            for batch in file.iter_batches(batch_size=files.PARQUET_ROWS):
                table = arrow.Table.from_batches([batch])
                columns = [_added(each, prefix) for each in islice(remaining, table.num_rows)]
                for name, kind in zip(added_names(prefix), types, strict=True):
                    cells = [_utf8(column[name]) for column in columns]
                    table = table.append_column(arrow.field(name, kind), arrow.array(cells, kind))
                writer = writer or parquet.ParquetWriter(part, table.schema)
                writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _utf8(value: object) -> object:
    """Parquet's text is UTF-8, half a surrogate pair written out."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
