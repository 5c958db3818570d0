"""Files as people have them: records with their places. The bytes show compression and encoding,
and the ending of the name shows the format. Libraries read the formats; notes say what was done."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, cast

import zstandard

from promptcodebook.base.text import json_decoder, parse_json, shell
from promptcodebook.base.units import plural
from promptcodebook.data.forms import terms
from promptcodebook.data.table import (
    SourceRow,
    Table,
    check_header,
    plain,
    row_fault,
    sample_rows,
    table_of,
)
from promptcodebook.errors import DataError, import_extra

_HEAD = 1 << 20  # characters of a CSV file by which its delimiter and quotation marks are found
_FIRST = 200  # rows by which we see whether the first line names the columns
# Rows of a Parquet file that are in memory at once; and characters, where csv has a limit.
PARQUET_ROWS, _LONGEST_CELL = 1024, 2**31 - 1

# --- bytes and text

_GZIP, _ZSTANDARD, _UTF16 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", (b"\xff\xfe", b"\xfe\xff")
_SAMPLE = 1 << 16  # bytes of lines that are not ASCII by which an encoding is found


@contextmanager
def _reading(path: Path) -> Generator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"cannot read {path}: {reason}"
        what = f"no file at {path}" if isinstance(error, FileNotFoundError) else what
        raise DataError(what, hint=f"ls -l {shell(path.parent)} shows what is there") from None


def _open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed where it is gzip or Zstandard, whatever its name."""
    file = path.open("rb")
    magic = file.peek(4)[:4]
    if magic.startswith(_GZIP):
        file.close()
        return cast("IO[bytes]", gzip.open(path))
    if magic != _ZSTANDARD:
        return file
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return io.BufferedReader(cast("io.RawIOBase", reader))


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file, plain or compressed, and the encoding of its text."""

    path: Path
    encoding: str

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without BOM; their breaks are LF."""
        number = 0
        try:
            with (
                _reading(self.path),
                io.TextIOWrapper(_open_bytes(self.path), self.encoding, newline="\n") as file,
            ):
                for number, text in enumerate(file, start=1):
                    yield number, f"{text[:-2]}\n" if text.endswith("\r\n") else text
        except UnicodeDecodeError as error:
            what = f"not {error.encoding} text: {error.reason}"
            raise row_fault(f"{self.path}:{number + 1}", what, _by_hand(self.path)) from None

    def text(self) -> str:
        return "".join(line for _, line in self.lines())

    @property
    def notes(self) -> tuple[str, ...]:
        known = {"utf-8-sig": "", "utf-16": "UTF-16", **terms()["encodings"]}
        return (f"read as {name}",) if (name := known[self.encoding]) else ()


def _by_hand(path: Path, encoding: str = "WINDOWS-1252") -> str:
    return f"iconv -f {encoding} -t UTF-8 {path}"


def text_file(path: Path, *, utf8: bool = False) -> TextFile:
    """Finds the encoding: UTF-8, UTF-16 with its mark, or (unless it must be `utf8`) by the lines
    that are neither. Raises DataError when the file cannot be read, is no text, or is UTF-8 for the
    most part."""
    fault, odd, lines, valid = None, bytearray(), 0, 0
    with _reading(path), _open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and raw[:2] in _UTF16 and not utf8:
                return TextFile(path, "utf-16")
            if b"\0" in raw[:_SAMPLE]:
                encoding = "UTF-16LE" if raw.find(b"\0") % 2 else "UTF-16BE"
                what = f"zero bytes: {encoding} without a byte order mark, or not text at all"
                raise row_fault(f"{path}:{number}", what, _by_hand(path, encoding))
            if raw.isascii():
                continue
            try:
                raw.decode("utf-8-sig")
                valid += 1
            except UnicodeDecodeError as error:
                at, byte = error.start + 1, error.object[error.start]
                what = f"byte {at} of the line (0x{byte:02x}) is not UTF-8"
                fault = fault or row_fault(f"{path}:{number}", what, _by_hand(path))
                odd, lines = odd + raw, lines + 1
            if len(odd) > _SAMPLE:
                break
    if fault and (utf8 or valid >= lines):
        raise fault
    return TextFile(path, _encoding_of(bytes(odd), path) if odd else "utf-8-sig")


def _encoding_of(odd: bytes, path: Path) -> str:
    from charset_normalizer import from_bytes  # as slow to import as the rest of this file

    encodings: list[str] = list(terms()["encodings"])
    matches = from_bytes(odd, cp_isolation=encodings)
    best = matches.best()
    if best is None:
        what = f"{path} is not UTF-8, and no other known encoding fits it"
        raise DataError(what, hint=_by_hand(path, "ENCODING"))
    tied = {
        name
        for match in matches
        if (match.chaos, match.coherence) == (best.chaos, best.coherence)
        for name in match.could_be_from_charset
    }
    return next(name for name in encodings if name in tied)


def ending_of(path: Path) -> str:
    """The ending that a file without a usual one should have, by its first lines; '' = no idea."""
    first = "".join(line for _, line in islice(text_file(path).lines(), 2))
    if first.lstrip()[:1] in ("{", "["):
        return ".json"
    return ".tsv" if "\t" in first else ".csv" if _delimiter_of(first) else ""


def read_texts(folder: Path) -> Table:
    """Texts (.txt) in folders that are named by their labels."""
    paths = sorted(folder.glob("*/*.txt"))
    texts = ((path, text_file(path).text().strip()) for path in paths)
    rows = [SourceRow(str(p), {"text": text, "label": p.parent.name}) for p, text in texts]
    return table_of(folder.name, rows)


# --- JSON and YAML


def jsonl_records(path: Path, *, utf8: bool = False) -> Iterator[SourceRow]:
    """One JSON object a line; blank lines are skipped."""
    return _objects(text_file(path, utf8=utf8))


def _objects(file: TextFile) -> Iterator[SourceRow]:
    for number, line in file.lines():
        if line.strip():
            where = f"{file.path}:{number}"
            yield SourceRow(where, _require(_parse_json(line.rstrip("\n"), where), dict, where))


Tables = Table | dict[str, Table]
"""One table, or several by the names of their splits."""


def read_json(file: TextFile, header: bool | None, *, lines: bool = False) -> Tables:
    """An array of objects or of rows, one object that holds it, or one object a line, which
    `lines` expects."""
    where = str(file.path)
    first, second = islice(chain((t for _, t in file.lines() if t.strip()), ("", "")), 2)
    if not lines or first.startswith("["):
        try:
            lines = bool(second) and isinstance(parse_json(first, _JSON), dict)
        except ValueError:
            lines = False
    if lines:
        rows, notes = sample_rows(_objects(file))
        return table_of(file.path.name, rows, where, notes)
    return _tables_of(_parse_json(file.text().strip() or "[]", where), where, header)


def read_yaml(file: TextFile, header: bool | None) -> Tables:
    """As JSON, with each scalar as it is written: "no" is no false, nor 1.10 the number 1.1."""
    yaml = import_extra("yaml", "reading YAML", "files")
    try:
        tree = yaml.load(file.text(), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        what = f"cannot read {file.path} as YAML: {' '.join(str(error).split())}"
        raise DataError(what, hint="correct that line") from None
    return _tables_of(tree, str(file.path), header)


def _tables_of(tree: object, where: str, header: bool | None) -> Tables:
    name = Path(where).name
    if isinstance(tree, dict):
        held = cast("dict[str, object]", tree)
        splits = {k: v for k, v in held.items() if k.lower() in terms()["splits"]}
        if splits and all(isinstance(rows, list) for rows in splits.values()):
            tables = {k: _tables_of(rows, f"{where} {k}", header) for k, rows in splits.items()}
            return cast("dict[str, Table]", tables)
        tree = _rows_in(held, where)
    places = [(f"{where} record {n}", row) for n, row in enumerate(_require(tree, list, where), 1)]
    if places and all(isinstance(row, list) for _, row in places):
        return grid(name, where, places, header=header)
    rows = [SourceRow(at, _require(row, dict, at)) for at, row in places]
    if rows and all({"row_idx", "row"} <= row.values.keys() for row in rows):
        # As the viewer of Hugging Face returns them.
        rows = [SourceRow(row.where, _require(row.values["row"], dict, row.where)) for row in rows]
    return table_of(name, rows, where)


def _rows_in(held: dict[str, Any], where: str) -> object:
    """The rows that one object holds: the list of them, or a frame of pandas in one of the forms
    that `to_json` writes."""
    if "columns" in held and "data" in held:
        return [held["columns"], *held["data"]]
    lists = {k: cast("list[object]", v) for k, v in held.items() if isinstance(v, list) and v}
    found = [key for key, rows in lists.items() if isinstance(rows[0], dict | list)]
    named = [key for key in terms()["rows"] if key in found]
    if named or len(found) == 1:
        return held[(named or found)[0]]
    if found:
        what = f"several lists in one object: {', '.join(map(repr, found))}"
        raise row_fault(where, what, "keep only the examples, as an array of objects")
    if len(lists) == len(held) > 1:
        held = {name: dict(enumerate(values)) for name, values in lists.items()}
    if not held or not all(isinstance(value, dict) for value in held.values()):
        return held
    if len(held) == 1:
        return _rows_in(next(iter(held.values())), where)
    numbers = {key for cells in held.values() for key in cells}
    if all(str(key).isdecimal() for key in numbers):
        return [{k: v.get(n) for k, v in held.items()} for n in sorted(numbers, key=int)]
    return list(held.values()) if all(key.isdecimal() for key in held) else held


def _parse_json(text: str, where: str) -> object:
    try:
        return parse_json(text, _JSON)
    except json.JSONDecodeError as error:
        place = where if error.lineno == 1 else f"{where}:{error.lineno}"
        what = f"not valid JSON at character {error.colno}: {error.msg}"
        raise row_fault(place, what, "correct that line; a CSV file must end in .csv") from None
    except ValueError as error:
        raise row_fault(where, str(error), "correct that line") from None


def _unique_columns(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"duplicate columns: {', '.join(map(repr, twice))}")
    return record


_JSON = json_decoder(_unique_columns)


def _require(value: object, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        wanted, hint = "object", 'write e.g. {"input": "...", "target": "..."}'
        if kind is list:
            wanted, hint = "array of objects", "for one object per line use a .jsonl file"
        raise row_fault(where, f"expected a JSON {wanted}, found {_kind(value)}", hint)
    return value


def _kind(value: object) -> str:
    kinds = {"list": "an array", "str": "a string", "bool": "true or false", "dict": "an object"}
    return "null" if value is None else kinds.get(type(value).__name__, "a number")


# --- rows of cells: CSV and sheets

_Line = tuple[str, Sequence[object]]  # a row's place and its cells


def read_csv(file: TextFile, header: bool | None = True, *, delimiter: str = "") -> Table:
    """`header`: whether the first line names the columns; None = by its looks."""
    form = _csv_form(file, delimiter)
    table = grid(file.path.name, str(file.path), _csv_lines(file, *form), header=header)
    bare = ("quotation marks are read as plain text",) if form[1] == csv.QUOTE_NONE else ()
    return replace(table, notes=(*bare, *table.notes))


def csv_records(path: Path, delimiter: str = "") -> Iterator[SourceRow]:
    """The header line as a record without values, then one record each; an empty cell is a missing
    value. Without a `delimiter` the header tells it. Raises DataError for what is no CSV."""
    file = text_file(path)
    lines = _csv_lines(file, *_csv_form(file, delimiter))
    for where, cells in lines:
        names = _names_of(cells, where, header=True)
        yield SourceRow(where, dict.fromkeys(names))
        yield from _records(lines, names)


def _csv_form(file: TextFile, delimiter: str) -> tuple[str, Literal[0, 3]]:
    """The delimiter, and how it is quoted. In text with tabs marks may be text: a cell then has
    none that close it, or swallows lines, though every line has as many tabs."""
    csv.field_size_limit(_LONGEST_CELL)
    head, length = list[str](), 0
    for _, line in file.lines():
        head.append(line)
        if (length := length + len(line)) > _HEAD:
            break
    delimiter = delimiter or _delimiter_of("".join(head)) or ","
    if delimiter == "\t" and len({line.count("\t") for line in head if line.strip()}) == 1:
        try:
            rows = list(csv.reader(head, delimiter="\t", strict=True))
            bare = any("\n" in cell for row in rows for cell in row)
        except csv.Error:
            bare = True
        if bare:
            return delimiter, csv.QUOTE_NONE
    return delimiter, csv.QUOTE_MINIMAL


def _delimiter_of(text: str) -> str:
    """The mark that splits the header into the most columns, the first record likewise; '' = none
    does."""
    best, most = "", 1
    for mark in ",;\t|":
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
        try:
            widths = list(islice((len(cells) for cells in lines if cells), 2))
        except csv.Error:
            continue
        if widths and widths[0] > most and len(set(widths)) == 1:
            best, most = mark, widths[0]
    return best


def _csv_lines(file: TextFile, delimiter: str, quoting: Literal[0, 3]) -> Iterator[_Line]:
    lines = (line for _, line in file.lines())
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    while True:
        where = f"{file.path}:{reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            hint = "check the quotation marks around that line, or use a .jsonl file"
            what = f"not valid CSV: {error}"
            raise row_fault(f"{file.path}:{reader.line_num}", what, hint) from None
        if cells is None:
            return
        if cells:
            yield where, cells


def _names_of(cells: Sequence[object], where: str, *, header: bool) -> tuple[str, ...]:
    """Columns without a name are called by their number; empty ones at the end are none."""
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    width = max((number for number, text in enumerate(texts, 1) if text), default=0)
    named = [(header and text) or f"column {n}" for n, text in enumerate(texts[:width], 1)]
    return check_header(named, where)


def _records(lines: Iterable[_Line], names: tuple[str, ...]) -> Iterator[SourceRow]:
    for where, cells in lines:
        if len(cells) < len(names) or any(cell not in ("", None) for cell in cells[len(names) :]):
            there, named = plural(len(cells), "cell"), plural(len(names), "column")
            hint = "put double quotes around cells that contain the delimiter or a line break"
            hint = f"add the missing cells, or {hint}" if len(cells) < len(names) else hint
            raise row_fault(where, f"{there}, but the header names {named}", hint)
        values = (None if cell == "" else cell for cell in cells)
        yield SourceRow(where, dict(zip(names, values, strict=False)))


def grid(name: str, where: str, lines: Iterable[_Line], *, header: bool | None) -> Table:
    """Rows of cells as a table, empty rows left out. A column without a name is dropped where it is
    empty or counts the rows. `header`: as in `read_csv`."""
    filled = (line for line in lines if any(cell not in ("", None) for cell in line[1]))
    first = list(islice(filled, _FIRST))
    if not first:
        raise DataError(f"{where} is empty", hint="add at least three examples")
    named = not _is_data([cells for _, cells in first]) if header is None else header
    place, head = first[0]
    names = _names_of(head, place, header=named)
    rows, notes = sample_rows(_records(chain(first[named:], filled), names))
    notes = [*notes, *([] if named else [f"no header: its columns are {', '.join(names)}"])]
    for column in [n for n, cell in zip(names, head, strict=False) if named and _no_name(cell)]:
        cells = [row.values[column] for row in rows if row.values[column] is not None]
        counts = all(str(cell).isdecimal() for cell in cells) and len(set(cells)) == len(cells)
        if counts:
            names = tuple(each for each in names if each != column)
            rows = [SourceRow(r.where, {n: r.values[n] for n in names}) for r in rows]
        fate = "is dropped: it only numbers the rows" if counts else f"is called {column!r}"
        notes.append(f"a column without a name {fate}")
    return Table(name, names, tuple(rows), tuple(notes), header=named)


def _no_name(cell: object) -> bool:
    return re.fullmatch(r"\s*(Unnamed: \d+)?", str(cell or "")) is not None  # as pandas has it


def _is_data(rows: Sequence[Sequence[object]]) -> bool:
    """Whether the first row is an example like the others: a cell of it is a number or a label of
    its column. A whole row that comes again is a header all the same."""
    first, *others = ([str(cell or "").strip() for cell in cells] for cells in rows)
    if not others or first in others:
        return False
    columns = zip(first, *(other[: len(first)] for other in others), strict=False)
    is_number = re.compile(r"[-+]?[\d.,]*\d").fullmatch
    return any(
        cell in below or all(map(is_number, (cell, *below))) for cell, *below in columns if cell
    )


def read_sheets(path: Path, header: bool | None) -> Tables:
    """The first sheet of a workbook that holds anything, or those that are named as splits."""
    calamine = import_extra("python_calamine", "reading a workbook", "files")
    with _reading(path):
        try:
            book = calamine.CalamineWorkbook.from_path(str(path))
            sheets = {name: book.get_sheet_by_name(name).to_python() for name in book.sheet_names}
        except calamine.CalamineError as error:
            what = f"cannot read {path} as a workbook: {error}"
            raise DataError(what, hint="check that the file is complete") from None
    found = {name: rows for name, rows in sheets.items() if any(any(row) for row in rows)}
    if len(found) > 1 and all(name.lower() in terms()["splits"] for name in found):
        return {k: _sheet(k, f"{path} {k}", rows, header) for k, rows in found.items()}
    name, rows = next(iter(found.items()), ("", list[Any]()))
    table = _sheet(path.name, f"{path} {name}".strip(), rows, header)
    others = ", ".join(map(repr, list(found)[1:]))
    notes = (f"only the sheet {name!r} is read, not {others}",) if others else ()
    return replace(table, notes=(*notes, *table.notes))


def _sheet(name: str, where: str, rows: list[list[object]], header: bool | None) -> Table:
    cells = (
        # A sheet's numbers are all floats.
        [int(x) if isinstance(x, float) and x.is_integer() else plain(x) for x in row]
        for row in rows
    )
    lines = ((f"{where} row {number}", row) for number, row in enumerate(cells, 1))
    return grid(name, where, lines, header=header)


# --- Arrow and Parquet


def import_parquet() -> tuple[Any, Any]:
    """pyarrow and its Parquet part. Raises MissingExtra when it is not installed."""
    names, what = ("pyarrow", "pyarrow.parquet"), "reading and writing Parquet"
    arrow, parquet = (import_extra(name, what, "parquet") for name in names)
    return arrow, parquet


def open_parquet(path: Path) -> Any:
    arrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        what = f"cannot read {path} as Parquet: {error}"
        raise DataError(what, hint="check that the file is complete") from None


def parquet_columns(path: Path) -> tuple[str, ...]:
    with open_parquet(path) as file:
        return check_header(file.schema_arrow.names, str(path))


def parquet_records(path: Path) -> Iterator[SourceRow]:
    """The rows of a Parquet file (extra: parquet), of which PARQUET_ROWS are in memory."""
    arrow, _ = import_parquet()
    columns, number = parquet_columns(path), 0
    with open_parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    values = zip(columns, map(plain, row.values()), strict=True)
                    yield SourceRow(f"{path} row {number}", dict(values))
        except (OSError, arrow.ArrowException) as error:
            what = f"cannot read {path} as Parquet after row {number}: {error}"
            raise DataError(what, hint="check that the file is complete") from None


def read_parquet(path: Path) -> Table:
    rows, notes = sample_rows(parquet_records(path))
    return Table(path.name, parquet_columns(path), tuple(rows), notes)


def read_arrow(path: Path) -> Table:
    """An Arrow file or stream, as `datasets` and Feather write them (extra: parquet)."""
    arrow: Any = import_extra("pyarrow", "reading Arrow", "parquet")
    ipc: Any = import_extra("pyarrow.ipc", "reading Arrow", "parquet")
    try:
        with path.open("rb") as file:
            stream = file.read(6) != b"ARROW1"
            file.seek(0)
            table = (ipc.open_stream if stream else ipc.open_file)(file).read_all()
    except (OSError, arrow.ArrowException) as error:
        what = f"cannot read {path} as Arrow: {error}"
        raise DataError(what, hint="check that the file is complete") from None
    columns = check_header(table.column_names, str(path))
    places = ((f"{path} row {number}", row) for number, row in enumerate(table.to_pylist(), 1))
    records = (SourceRow(at, {name: plain(row[name]) for name in columns}) for at, row in places)
    rows, notes = sample_rows(records)
    return Table(path.name, columns, tuple(rows), notes)
