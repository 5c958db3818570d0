"""A table: the records of one source, each with its place; and its columns as Examples. A template
such as '{title}\n{body}' is parsed once and filled in one pass: braces inside the data stay text.
'{{' and '}}' in a template mean single braces."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.text import json_decoder, parse_json
from promptcodebook.calls import Message, read_message
from promptcodebook.errors import DataError, did_you_mean, import_extra
from promptcodebook.types import Example

_HEAD = 1 << 20  # characters of a CSV file by which its delimiter is found
# Rows of a Parquet file that are in memory at once; and characters, where csv has a limit.
PARQUET_ROWS, _LONGEST_CELL = 1024, 2**31 - 1


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One record and its place, such as 'tickets.jsonl:12'."""

    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of one source; `columns` is the union of their columns, in order of appearance."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[SourceRow, ...]


def _fault(where: str, what: str, hint: str) -> DataError:
    return DataError(f"{where}: {what}", hint=hint)


def check_header(names: Iterable[object], where: str) -> tuple[str, ...]:
    """Column names as text. Raises DataError when a column has no name or occurs twice."""
    header = tuple(str(name).strip() for name in names)
    if "" in header:
        position = header.index("") + 1
        raise _fault(where, f"column {position} has no name", "name it in the first line")
    if twice := [repr(name) for name, count in Counter(header).items() if count > 1]:
        raise _fault(
            where, f"duplicate columns: {', '.join(twice)}", "rename or delete one of each"
        )
    return header


def plain(value: object) -> object:
    """A value as JSON knows it: NumPy scalars and arrays unpacked, NaN as None, the rest as text.
    So what a frame, a Parquet file and a JSON line hold compares equal."""
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


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without BOM; their breaks are LF. Raises DataError when the file cannot be
    read or is not UTF-8."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise _fault(f"{path}:1", "UTF-16 text", f"iconv -f UTF-16 -t UTF-8 {path}")
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    at, byte = error.start + 1, error.object[error.start]
                    what = f"byte {at} of the line (0x{byte:02x}) is not UTF-8"
                    hint = f"iconv -f WINDOWS-1252 -t UTF-8 {path}"
                    raise _fault(f"{path}:{number}", what, hint) from None
                yield number, f"{text[:-2]}\n" if text.endswith("\r\n") else text
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="check the path") from None


def jsonl_records(path: Path) -> Iterator[SourceRow]:
    """One JSON object a line; blank lines are skipped."""
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield SourceRow(where, _require_object(_parse_json(line.rstrip("\n"), where), where))


def read_jsonl(path: Path) -> Table:
    return table_of(path.name, list(jsonl_records(path)), str(path))


def read_json(path: Path) -> Table:
    """One JSON array of objects."""
    text = "".join(line for _, line in read_lines(path)).strip()
    value = _parse_json(text or "[]", str(path))
    if not isinstance(value, list):
        what = f"expected a JSON array of objects, found {_kind(value)}"
        raise _fault(str(path), what, "for one object per line use a .jsonl file")
    places = ((f"{path} record {n}", row) for n, row in enumerate(cast("list[object]", value), 1))
    rows = [SourceRow(at, _require_object(row, at)) for at, row in places]
    return table_of(path.name, rows, str(path))


def read_csv(path: Path, delimiter: str = "") -> Table:
    records = list(csv_records(path, delimiter))
    if not records:
        return table_of(path.name, records, str(path))
    return Table(path.name, tuple(records[0].values), tuple(records[1:]))


def csv_records(path: Path, delimiter: str = "") -> Iterator[SourceRow]:
    """The header line as a record without values, then one record each; an empty cell is a missing
    value. Without a `delimiter` the header tells it. Raises DataError for what is no CSV."""
    csv.field_size_limit(_LONGEST_CELL)
    head, length = list[str](), 0
    for _, line in read_lines(path):
        head.append(line)
        if (length := length + len(line)) > _HEAD:
            break
    lines = (line for _, line in read_lines(path))
    delimiter = delimiter or _delimiter_of("".join(head))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = tuple[str, ...]()
    while True:
        where = f"{path}:{reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            hint = "check the quotation marks around that line, or use a .jsonl file"
            raise _fault(f"{path}:{reader.line_num}", f"not valid CSV: {error}", hint) from None
        if cells is None:
            return
        if not header:
            header = check_header(cells, where) if cells else ()
            cells = [""] * len(header)
        if cells and len(cells) != len(header):
            what = f"{len(cells)} cells where the header names {len(header)} columns"
            hint = "put cells that hold the delimiter or a line break in double quotes"
            raise _fault(where, what, hint)
        if cells:
            yield SourceRow(where, {name: c or None for name, c in zip(header, cells, strict=True)})


def _delimiter_of(text: str) -> str:
    """The mark that splits the header into the most columns, the first record likewise; a comma
    where none does, so that errors name the usual form."""
    best, most = ",", 1
    for mark in ",;\t|":
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
        try:
            widths = list(islice((len(cells) for cells in lines if cells), 2))
        except csv.Error:
            continue
        if widths and widths[0] > most and len(set(widths)) == 1:
            best, most = mark, widths[0]
    return best


def _parse_json(text: str, where: str) -> object:
    try:
        return parse_json(text, _JSON)
    except json.JSONDecodeError as error:
        place = where if error.lineno == 1 else f"{where}:{error.lineno}"
        what = f"not valid JSON at character {error.colno}: {error.msg}"
        raise _fault(place, what, "correct that line") from None
    except ValueError as error:
        raise _fault(where, str(error), "correct that line") from None


def _unique_columns(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"duplicate columns: {', '.join(map(repr, twice))}")
    return record


_JSON = json_decoder(_unique_columns)


def _require_object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        hint = 'write e.g. {"input": "...", "target": "..."}'
        raise _fault(where, f"expected a JSON object, found {_kind(value)}", hint)
    return cast("dict[str, object]", value)


def _kind(value: object) -> str:
    kinds = {"list": "an array", "str": "a string", "bool": "true or false", "dict": "an object"}
    return "null" if value is None else kinds.get(type(value).__name__, "a number")


def table_of(name: str, rows: Sequence[SourceRow], empty: str = "") -> Table:
    """The rows with the union of their columns. Raises DataError when there are none and `empty`
    names the source."""
    if empty and not rows:
        raise DataError(f"{empty} is empty", hint="give it at least three examples")
    columns = dict.fromkeys(column for row in rows for column in row.values)
    return Table(name, tuple(columns), tuple(rows))


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
    return Table(path.name, parquet_columns(path), tuple(parquet_records(path)))


def numbered(name: str, header: tuple[str, ...], rows: Iterable[Mapping[str, object]]) -> Table:
    """A table of rows that have no place of their own but their number."""
    records = tuple(
        SourceRow(f"{name} row {number}", {column: plain(row[column]) for column in header})
        for number, row in enumerate(rows, start=1)
    )
    return Table(name, header, records)


_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns, None = there is none. `input` may be a template over several, such as
    '{title}\\n{body}'; `messages`, a column of chat messages, replaces it."""

    input: str = "input"
    target: str | None = "target"
    messages: str | None = None
    id: str | None = None
    split: str | None = None


def read_examples(table: Table, columns: Columns, seen: dict[str, str]) -> tuple[Example, ...]:
    """A table's rows as Examples, in their order; DataError names the row and the column at fault.
    The tables of a dataset share `seen` (id -> place), which is filled in. Without an id column an
    id is the hash of input and target; repeats of it get '-2', '-3', ..."""
    template: InputTemplate | None = None
    wanted = [(name, getattr(columns, name)) for name in ("target", "messages", "id", "split")]
    if columns.messages is None:
        template = InputTemplate(("", ""), (columns.input,))
        if columns.input not in table.columns:
            template = parse_input_template(columns.input)
        wanted = [*(("input", name) for name in template.columns or (columns.input,)), *wanted]
    for option, name in wanted:
        if name is not None and name not in table.columns:
            there = ", ".join(map(repr, table.columns)) or "none"
            raise DataError(
                f"{table.name} has no column {name!r}{did_you_mean(name, table.columns)}",
                hint=f"its columns are {there}: set data.{option} ({option}= in Python) to one"
                + (" or, without references, to none (None)" if option == "target" else ""),
            )
    return tuple(_make_example(row, columns, template, seen) for row in table.rows)


def _make_example(
    row: SourceRow, columns: Columns, template: InputTemplate | None, seen: dict[str, str]
) -> Example:
    digest, messages = "", tuple[Message, ...]()
    if template is not None and template.literals != ("", ""):
        text = cache_text = template.render(
            {n: cell_text(_require_value(row, n)) for n in template.columns}
        )
    else:
        column = (columns.messages or "") if template is None else template.columns[0]
        cell = _require_value(row, column)
        if template is not None and isinstance(cell, str):
            text = cache_text = cell
        else:
            chat = _read_chat(cell, column, row.where)
            text, cache_text = chat.input, chat.cache_text
            messages, digest = chat.messages, chat.digest
    if not text.strip():
        raise _fault(row.where, "the input is empty", "fill it in or delete the row")
    target = None if columns.target is None else row.values.get(columns.target)
    reference = None if target is None else cell_text(target)
    name = _example_id(row, columns.id, cache_text, reference, seen)
    seen[name] = row.where
    where = "" if columns.id else row.where
    return Example(name, text, reference, messages, row.values, digest, where)


def _require_value(row: SourceRow, column: str) -> object:
    value = row.values.get(column)
    if value is None:
        fault = "is null" if column in row.values else "is missing"
        raise _fault(row.where, f"column {column!r} {fault}", "fill it in or delete the row")
    return value


def cell_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _example_id(
    row: SourceRow, column: str | None, text: str, target: str | None, seen: Mapping[str, str]
) -> str:
    """What the column says, else the hash of the content: the JSON of input and target."""
    if column is None:
        # By its parts: an encoder would be set up again for every row.
        reference = "null" if target is None else encode_basestring(target)
        identity = f"[{encode_basestring(text)}, {reference}]".encode("utf-8", "surrogatepass")
        base = hashlib.sha256(identity).hexdigest()[:12]
        if base not in seen:
            return base
        return next(name for again in count(2) if (name := f"{base}-{again}") not in seen)
    value = _require_value(row, column)
    if isinstance(value, bool | float | list | dict) or not str(value).strip():
        what = f"the id {value!r} in column {column!r} is neither text nor a whole number"
        raise _fault(row.where, what, "correct it, or leave the id column out")
    name = str(value).strip()
    if name in seen:
        hint = "make ids unique over all splits, or leave the id column out"
        raise _fault(row.where, f"the id {name!r} is used at {seen[name]} already", hint)
    return name


def _read_chat(value: object, column: str, where: str) -> Example:
    """Chat messages in OpenAI's shape, or their JSON, as an Example that has only its input."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse_json(value)
    if not isinstance(value, list) or not value:
        hint = 'write a text, or e.g. [{"role": "user", "content": "..."}]'
        other = "not" if isinstance(value, str) else "neither text nor"
        raise _fault(where, f"column {column!r} is {other} a list of chat messages", hint)
    try:
        messages = [read_message(each) for each in cast("list[object]", value)]
    except ValueError as error:
        hint = "roles are system, user, assistant, tool; content is text or a list of parts"
        raise _fault(where, str(error), hint) from None
    if (last := messages[-1].role) not in ("user", "tool"):
        hint = "end it with a user message; the wanted reply belongs in the target column"
        raise _fault(where, f"the chat ends with a message of role {last}", hint)
    text = "\n\n".join(f"{m.role}: {m.content}" for m in messages)
    bodies = [m.body for m in messages if m.body]
    digest = hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()[:12]
    text = text if messages[1:] else messages[0].content
    return Example("", text, messages=tuple(messages), digest=digest if bodies else "")


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """Alternating literal text and column names: literals[0] columns[0] literals[1] ..."""

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    def render(self, values: Mapping[str, str]) -> str:
        """The text with each column's value put in its place unchanged."""
        pairs = zip(self.columns, self.literals[1:], strict=True)
        return self.literals[0] + "".join(values[column] + literal for column, literal in pairs)


def parse_input_template(text: str) -> InputTemplate:
    """Reads a template. Raises DataError when a brace has no partner."""
    literals, columns, literal, at = list[str](), list[str](), "", 0
    for match in _PIECE.finditer(text):
        literal += text[at : match.start()]
        at = match.end()
        if match[1] is not None:
            literals.append(literal)
            columns.append(match[1].strip())
            literal = ""
        elif len(match[0]) == 2:
            literal += match[0][0]
        else:
            what = f"lone {match[0]!r} at character {match.start() + 1} of the template {text!r}"
            raise DataError(what, hint="write columns as {name}, and {{ or }} for a brace itself")
    return InputTemplate((*literals, literal + text[at:]), tuple(columns))
