"""Rows from text files: jsonl, json, csv and tsv. Every fault names its file and line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import NoReturn, cast

from promptcodebook.data.table import Row, Table, checked_header
from promptcodebook.errors import DataError

__all__ = ["read_csv", "read_json", "read_jsonl"]


def read_jsonl(path: Path) -> Table:
    """One JSON object a line; blank lines are skipped."""
    rows = list[Row]()
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            rows.append(Row(where, _record(_parsed(line, where), where)))
    return _table(path, rows)


def read_json(path: Path) -> Table:
    """One JSON array of objects."""
    text = _text(path).strip()
    value = _parsed(text or "[]", str(path))
    if not isinstance(value, list):
        raise DataError(
            f"{path}: expected a JSON array of objects, found {_kind(value)}",
            hint="one object a line goes into a .jsonl file",
        )
    records = cast("list[object]", value)
    places = [f"{path} record {number}" for number in range(1, len(records) + 1)]
    pairs = zip(places, records, strict=True)
    return _table(path, [Row(where, _record(record, where)) for where, record in pairs])


def read_csv(path: Path, delimiter: str = ",") -> Table:
    """A header line, then one record each; an empty cell is a missing value."""
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header, rows, line = tuple[str, ...](), list[Row](), 1
    try:
        for cells in reader:
            where, line = f"{path}:{line}", reader.line_num + 1
            if not cells:
                continue
            if not header:
                header = checked_header(cells, where)
                continue
            _same_width(cells, header, where)
            values = {name: cell or None for name, cell in zip(header, cells, strict=True)}
            rows.append(Row(where, values))
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num}: not valid CSV: {error}",
            hint="check the quotation marks around that line, or use a .jsonl file",
        ) from None
    if not header:
        _empty(path)
    return Table(path.name, header, tuple(rows))


def _same_width(cells: list[str], header: tuple[str, ...], where: str) -> None:
    if len(cells) != len(header):
        raise DataError(
            f"{where}: {len(cells)} cells where the header names {len(header)} columns",
            hint="put cells that hold the delimiter or a line break in double quotes",
        )


def _text(path: Path) -> str:
    """The file as text without BOM or CR; DataError names the line of a bad byte."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="check the path") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}:1: UTF-16 text", hint=f"iconv -f UTF-16 -t UTF-8 {path}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise DataError(
            f"{path}:{line}: byte {column} of the line (0x{raw[error.start]:02x}) is not UTF-8",
            hint=f"iconv -f WINDOWS-1252 -t UTF-8 {path}",
        ) from None
    return text.replace("\r\n", "\n")


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = where if error.lineno == 1 else f"{where}:{error.lineno}"
        raise DataError(
            f"{place}: not valid JSON at character {error.colno}: {error.msg}",
            hint="correct that line",
        ) from None
    except (ValueError, RecursionError) as error:
        said = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise DataError(f"{where}: {said}", hint="correct that line") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"duplicate columns: {', '.join(map(repr, twice))}")
    return record


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; write null")


def _record(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: expected a JSON object, found {_kind(value)}",
            hint='write e.g. {"input": "...", "target": "..."}',
        )
    return cast("dict[str, object]", value)


def _kind(value: object) -> str:
    kinds = {"list": "an array", "str": "a string", "bool": "true or false", "dict": "an object"}
    return "null" if value is None else kinds.get(type(value).__name__, "a number")


def _table(path: Path, rows: list[Row]) -> Table:
    if not rows:
        _empty(path)
    columns = dict.fromkeys(name for row in rows for name in row.values)
    return Table(path.name, tuple(columns), tuple(rows))


def _empty(path: Path) -> NoReturn:
    raise DataError(f"{path} is empty", hint="give it at least three examples")
