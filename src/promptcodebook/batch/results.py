"""What becomes of a row, and the file that comes of all: each row of IN with answer, route, error.

A result is kept as a line of JSON while the batch runs. At the end IN is read once more beside the
results, so that each column keeps its type and only results were ever stored.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from promptcodebook.batch.rows import PARQUET_ROWS, Source, import_parquet, kind_of, survey
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.paths import whole_file
from promptcodebook.sqlite import store_os_error
from promptcodebook.types import Rollout


@dataclass(frozen=True, slots=True)
class Result:
    """Of one row: the answer and the instincts that it was given by, or the error in its place."""

    answer: str | None = None
    route: tuple[int, ...] | None = None
    error: str | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> Result:
        """A pass that failed has its error alone, and the route where it came so far."""
        route = None if rollout.route is None else rollout.route.indices
        failure = rollout.failure
        if failure is None:
            return cls(rollout.output, route)
        return cls(None, route, f"{failure.kind} at {failure.stage}: {failure.message}")

    def line(self) -> bytes:
        """As it is kept: JSON, and a line break that says it is whole."""
        return _json(asdict(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Result:
        """What `line` wrote. ValueError, KeyError or TypeError for anything else."""
        tree = json.loads(line)
        route = tree["route"]
        return cls(tree["answer"], None if route is None else tuple(route), tree["error"])


@dataclass(frozen=True, slots=True)
class Added:
    """The columns that a batch adds to those of IN, `prefix` before each name."""

    prefix: str = ""

    @property
    def names(self) -> tuple[str, str, str]:
        return f"{self.prefix}answer", f"{self.prefix}route", f"{self.prefix}error"

    def require_free(self, source: Source) -> None:
        """Raises ConfigError where IN has a column of one of these names."""
        taken = [name for name in self.names if name in source.columns]
        if taken:
            raise ConfigError(
                f"{source.path} has a column {taken[0]!r}, and the output adds one of that name",
                hint="--prefix pco_ puts pco_ before the names of the added columns",
            )

    def around(self, result: Result) -> dict[str, object]:
        """A result as columns."""
        route = None if result.route is None else list(result.route)
        return dict(zip(self.names, (result.answer, route, result.error), strict=True))


def _json(value: object) -> bytes:
    # Half a surrogate pair is no UTF-8; its JSON escape is read back as it was.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def write_output(target: Path, source: Source, results: Iterable[Result], added: Added) -> None:
    """OUT, whole or not at all, in the form that its ending names. `results` has one for each row
    of IN. Raises DataError (its values do not fit into Parquet), StoreError or DiskFull."""
    kind = kind_of(target)
    try:
        with whole_file(target) as part:
            if kind == "parquet":
                _write_parquet(part, source, results, added)
                return
            rows = (
                {**record.values, **added.around(result)}
                for record, result in zip(source.rows(), results, strict=True)
            )
            if kind == "jsonl":
                with part.open("wb") as file:
                    file.writelines(_json(row) + b"\n" for row in rows)
                return
            header = (*source.columns, *added.names)
            cells = ([_cell(row.get(name)) for name in header] for row in rows)
            _write_csv(part, chain([list(header)], cells), "\t" if kind == "tsv" else ",")
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise store_os_error(error, target) from error


def _write_csv(part: Path, rows: Iterable[list[str]], delimiter: str) -> None:
    with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        plain, quoted = (
            csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        for cells in rows:
            # CR ends a row for most readers, and QUOTE_MINIMAL quotes LF alone.
            (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)


def _cell(value: object) -> str:
    """Text as it is, nothing as an empty cell, all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_parquet(part: Path, source: Source, results: Iterable[Result], added: Added) -> None:
    arrow, parquet = import_parquet()
    typed = source.kind == "parquet"
    types = (arrow.string(), arrow.list_(arrow.int64()), arrow.string())
    remaining, writer = iter(results), None
    try:
        for table in (_typed_tables if typed else _read_tables)(arrow, source):
            columns = [added.around(each) for each in islice(remaining, table.num_rows)]
            for name, kind in zip(added.names, types, strict=True):
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


def _typed_tables(arrow: Any, source: Source) -> Iterator[Any]:
    """IN in pieces, every column of the type that it has there."""
    _, parquet = import_parquet()
    with parquet.ParquetFile(source.path) as file:
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            yield arrow.Table.from_batches([batch])


def _read_tables(arrow: Any, source: Source) -> Iterator[Any]:
    """Rows of text in pieces, of types that fit all of them, which a first pass finds."""

    def tables(schema: Any) -> Iterator[Any]:
        rows = source.rows()
        while piece := list(islice(rows, PARQUET_ROWS)):
            clean = [
                {name: _utf8(record.values.get(name)) for name in source.columns}
                for record in piece
            ]
            yield arrow.Table.from_pylist(clean, schema=schema)

    schema = None
    try:
        for table in tables(None):
            known = [table.schema] if schema is None else [schema, table.schema]
            schema = arrow.unify_schemas(known, promote_options="permissive")
        yield from tables(schema)
    except arrow.ArrowException as error:
        raise DataError(
            f"a column of {source.path} has values of several kinds, which Parquet does not hold: "
            f"{error}",
            hint="name an OUT that ends in .jsonl; the same command finds what is answered",
        ) from None


def read_results(target: Path, source: Source, added: Added) -> Iterator[Result]:
    """The results in a finished OUT, which must have been made of this IN. DataError."""
    made = survey(target)
    missing = [name for name in added.names if name not in made.columns]
    if missing or made.count != source.count:
        what = f"has no column {missing[0]!r}" if missing else f"has {made.count} rows"
        raise DataError(
            f"{target} was not made of {source.path}, which has {source.count} rows: it {what}",
            hint="name the IN and the --prefix that it was made with",
        )
    for record, own in zip(made.rows(exact=True), source.rows(), strict=True):
        if made.kind == source.kind and any(
            record.values.get(name) != value for name, value in own.values.items()
        ):
            raise DataError(
                f"{record.where} is another row than {own.where}", hint="name the IN of that OUT"
            )
        answer, route, error = (record.values.get(name) for name in added.names)
        yield Result(_text(answer, error), _route(route, record.where), _text(error, ""))


def _text(value: object, error: object) -> str | None:
    """Where there is no error, an empty cell is an empty answer."""
    if value is None:
        return "" if error is None else None
    return str(value)


def _route(value: object, where: str) -> tuple[int, ...] | None:
    try:
        read = json.loads(value) if isinstance(value, str) else value
        return None if read is None else tuple(int(k) for k in cast("list[int]", read))
    except (ValueError, TypeError):
        raise DataError(
            f"{where}: {value!r} is not a route", hint="name an OUT that pco batch wrote"
        ) from None
