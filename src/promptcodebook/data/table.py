"""A table: the records of one source, each with its place; and its columns as Examples. A template
such as '{title}\n{body}' is parsed once and filled in one pass: braces inside the data stay text.
'{{' and '}}' in a template mean single braces. '{?body}' may be empty: the text between it and the
column before is then left out too."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from json.encoder import encode_basestring
from typing import cast

from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import parse_json
from promptcodebook.calls import Message, read_message
from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.types import Example


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One record and its place, such as 'tickets.jsonl:12'."""

    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of one source.

    - `columns`: the union of their columns, in order of appearance.
    - `notes`: what was done to read them, in words.
    - `header`: whether the first line names the columns (None: the format has no such line).
    - `form`: the published form that they have ('' = none that we know).
    - `settings`: what that form sets: input, messages, target, id, split and reward."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[SourceRow, ...]
    notes: tuple[str, ...] = ()
    header: bool | None = None
    form: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


_MOST_ROWS = 100_000  # of a file that are kept: a run never asks for more
SAMPLE = "a sample of"  # how the note on it begins


def sample_rows(rows: Iterable[SourceRow]) -> tuple[list[SourceRow], tuple[str, ...]]:
    """The rows in their order, and a note where they are too many. Then they are a sample, drawn as
    the rows are read: no more than twice as many are ever held."""
    draw, kept, limit, count = keyed_random("rows"), list[tuple[float, SourceRow]](), 1.0, 0

    def cut() -> float:
        most = sorted(mark for mark, _ in kept)[_MOST_ROWS - 1]
        kept[:] = [pair for pair in kept if pair[0] <= most]
        return most

    for row in rows:
        count += 1
        if (mark := draw.random()) <= limit:
            kept.append((mark, row))
        if len(kept) == 2 * _MOST_ROWS:
            limit = cut()
    if count <= _MOST_ROWS:
        return [row for _, row in kept], ()
    cut()
    return [row for _, row in kept], (f"{SAMPLE} {len(kept):,} of {count:,} rows",)


class MissingColumn(DataError):
    """A column that is named is not there."""


def row_fault(where: str, what: str, hint: str) -> DataError:
    return DataError(f"{where}: {what}", hint=hint)


def check_header(names: Iterable[object], where: str) -> tuple[str, ...]:
    """Column names as text. Raises DataError when a column has no name or occurs twice."""
    header = tuple(str(name).strip() for name in names)
    if "" in header:
        position = header.index("") + 1
        raise row_fault(where, f"column {position} has no name", "name it in the first line")
    if twice := [repr(name) for name, count in Counter(header).items() if count > 1]:
        what = f"duplicate columns: {', '.join(twice)}"
        raise row_fault(where, what, "rename or delete one of each")
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


def table_of(
    name: str, rows: Sequence[SourceRow], empty: str = "", notes: tuple[str, ...] = ()
) -> Table:
    """The rows with the union of their columns. Raises DataError when there are none and `empty`
    names the source."""
    if empty and not rows:
        raise DataError(f"{empty} is empty", hint="add at least three examples")
    columns = dict.fromkeys(column for row in rows for column in row.values)
    return Table(name, tuple(columns), tuple(rows), notes)


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
    '{title}\\n{body}'; `messages`, a column of chat messages, replaces it. Rows that are equal in
    all `group` columns depend on one another."""

    input: str = "input"
    target: str | None = "target"
    messages: str | None = None
    id: str | None = None
    split: str | None = None
    group: tuple[str, ...] = ()


def read_examples(table: Table, columns: Columns, seen: dict[str, str]) -> tuple[Example, ...]:
    """A table's rows as Examples, in their order; DataError names the row and the column at fault.
    The tables of a dataset share `seen` (id -> place), which is filled in. Without an id column an
    id is the hash of input and target; repeats of it get '-2', '-3', ..."""
    template: InputTemplate | None = None
    wanted = [(name, getattr(columns, name)) for name in ("target", "messages", "id", "split")]
    wanted += [("group", name) for name in columns.group]
    if columns.messages is None:
        template = InputTemplate(("", ""), (columns.input,))
        if columns.input not in table.columns:
            template = parse_input_template(columns.input)
        wanted = [*(("input", name) for name in template.required or (columns.input,)), *wanted]
    for option, name in wanted:
        if name is not None and name not in table.columns:
            there = ", ".join(map(repr, table.columns)) or "none"
            what = f"{table.name} has no column {name!r}{did_you_mean(name, table.columns)}"
            or_none = ", or to none if there are no references" if option == "target" else ""
            where = f"(--{option} of pco data check; {option}= in Python)"
            hint = f"its columns are {there}: set data.{option} {where} to one{or_none}"
            raise MissingColumn(what, hint=hint)
    if ("input", columns.target) in wanted:
        what = f"{table.name}: the input contains the reference, column {columns.target!r}"
        raise DataError(what, hint="name another column as data.input (--input) or data.target")
    return tuple(_make_example(row, columns, template, seen) for row in table.rows)


def _make_example(
    row: SourceRow, columns: Columns, template: InputTemplate | None, seen: dict[str, str]
) -> Example:
    digest, messages = "", tuple[Message, ...]()
    if template is not None and template.literals != ("", ""):
        cells = {
            name: row.values.get(name) or ""
            if name in template.optional
            else _require_value(row, name)
            for name in template.columns
        }
        text = cache_text = template.render({name: cell_text(c) for name, c in cells.items()})
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
        raise row_fault(row.where, "the input is empty", "fill it in or delete the row")
    target = None if columns.target is None else row.values.get(columns.target)
    reference = None if target is None else cell_text(target)
    name = _example_id(row, columns.id, cache_text, reference, seen)
    seen[name] = row.where
    where = "" if columns.id else row.where
    cells = [row.values.get(column) for column in columns.group]
    group = ""
    if any(cell is not None for cell in cells):  # a digest: reports may not show what it holds
        group = hashlib.sha256(json.dumps(list(map(cell_text, cells))).encode()).hexdigest()[:12]
    return Example(name, text, reference, messages, row.values, digest, where, group)


def _require_value(row: SourceRow, column: str) -> object:
    value = row.values.get(column)
    if value is None:
        fault = "is null" if column in row.values else "is missing"
        raise row_fault(row.where, f"column {column!r} {fault}", "fill it in or delete the row")
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
        raise row_fault(row.where, what, "correct it, or leave the id column out")
    name = str(value).strip()
    if name in seen:
        hint = "make ids unique over all splits, or leave the id column out"
        raise row_fault(row.where, f"the id {name!r} is already used at {seen[name]}", hint)
    return name


def _read_chat(value: object, column: str, where: str) -> Example:
    """Chat messages in OpenAI's shape, or their JSON, as an Example that has only its input."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse_json(value)
    if not isinstance(value, list) or not value:
        hint = 'write a string, or e.g. [{"role": "user", "content": "..."}]'
        other = "not" if isinstance(value, str) else "neither text nor"
        raise row_fault(where, f"column {column!r} is {other} a list of chat messages", hint)
    try:
        messages = [read_message(each) for each in cast("list[object]", value)]
    except ValueError as error:
        hint = "roles are system, user, assistant, tool; content is text or a list of parts"
        raise row_fault(where, str(error), hint) from None
    if (last := messages[-1].role) not in ("user", "tool"):
        hint = "end it with a user message, and put the expected reply in the target column"
        raise row_fault(where, f"the chat ends with a message of role {last}", hint)
    text = "\n\n".join(f"{m.role}: {m.content}" for m in messages)
    bodies = [m.body for m in messages if m.body]
    digest = hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()[:12]
    text = text if messages[1:] else messages[0].content
    return Example("", text, messages=tuple(messages), digest=digest if bodies else "")


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """Alternating literal text and column names: literals[0] columns[0] literals[1] ... Those that
    are `optional` may be empty."""

    literals: tuple[str, ...]
    columns: tuple[str, ...]
    optional: frozenset[str] = frozenset()

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.optional)

    def render(self, values: Mapping[str, str]) -> str:
        """The text with each column's value put in its place unchanged."""
        text, begun = "", False
        for literal, column in zip(self.literals, self.columns, strict=False):
            if values[column] or column not in self.optional:
                gap = begun or column == self.columns[0]
                text += (literal if gap else literal.lstrip()) + values[column]
                begun = True
        return text + self.literals[-1]


def parse_input_template(text: str) -> InputTemplate:
    """Reads a template. Raises DataError when a brace has no partner."""
    literals, columns, literal, at = list[str](), list[str](), "", 0
    optional = set[str]()
    for match in _PIECE.finditer(text):
        literal += text[at : match.start()]
        at = match.end()
        if match[1] is not None:
            literals.append(literal)
            columns.append(match[1].removeprefix("?").strip())
            if match[1].startswith("?"):
                optional.add(columns[-1])
            literal = ""
        elif len(match[0]) == 2:
            literal += match[0][0]
        else:
            what = f"lone {match[0]!r} at character {match.start() + 1} of the template {text!r}"
            raise DataError(what, hint="write columns as {name}, and {{ or }} for a literal brace")
    return InputTemplate((*literals, literal + text[at:]), tuple(columns), frozenset(optional))
