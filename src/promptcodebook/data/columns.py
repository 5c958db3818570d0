"""Columns of a table -> Examples: which column is what, and an input built from several of them.

A template such as '{title}\\n{body}' is read once and filled in one pass: braces inside the data
are text, never a template. '{{' and '}}' in the template stand for single braces.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import cast

from promptcodebook.calls import Message
from promptcodebook.data.table import Record, Table
from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.types import Example

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns. `input` may be a template over several, such as '{title}\\n{body}'.

    `messages` names a column of chat messages and replaces `input`. None = there is no such column.
    """

    input: str = "input"
    target: str | None = "target"
    messages: str | None = None
    id: str | None = None
    split: str | None = None


def read_examples(table: Table, columns: Columns, seen: dict[str, str]) -> tuple[Example, ...]:
    """A table's rows as Examples, in their order; DataError names the row and the column at fault.

    `seen` (id -> place) is shared by the tables of a dataset and filled in, so that ids are unique
    over all of them. Without an id column an id is the hash of input and target; repeats of it get
    '-2', '-3', ...; a given id that repeats is a DataError.
    """
    template = _input_template(table, columns)
    for option in ("target", "messages", "id", "split"):
        name: str | None = getattr(columns, option)
        if name is not None:
            _require_column(name, table, option)
    return tuple(_make_example(row, columns, template, seen) for row in table.rows)


def _input_template(table: Table, columns: Columns) -> InputTemplate | None:
    if columns.messages is not None:
        return None
    if columns.input in table.columns:
        return InputTemplate(("", ""), (columns.input,))
    template = parse_input_template(columns.input)
    if not template.columns:
        _require_column(columns.input, table, "input")
    for name in template.columns:
        _require_column(name, table, "input")
    return template


def _require_column(name: str, table: Table, option: str) -> None:
    if name not in table.columns:
        there = ", ".join(map(repr, table.columns)) or "none"
        raise DataError(
            f"{table.name} has no column {name!r}{did_you_mean(name, table.columns)}",
            hint=f"its columns are {there}: set {option} to one of them"
            + (", or to none (target=None in Python)" if option == "target" else ""),
        )


def _make_example(
    row: Record, columns: Columns, template: InputTemplate | None, seen: dict[str, str]
) -> Example:
    messages = ()
    if template is None:
        messages = _read_messages(row, columns.messages or "")
        text = _transcript(messages)
    elif template.literals == ("", ""):
        text = _read_input(row, template.columns[0])
    else:
        text = template.render({n: _as_text(_require_value(row, n)) for n in template.columns})
    if not text.strip():
        raise DataError(f"{row.where}: the input is empty", hint="fill it in or delete the row")
    target = None if columns.target is None else row.values.get(columns.target)
    reference = None if target is None else _as_text(target)
    if columns.id is None:
        name = _content_id(text, reference, seen)
    else:
        name = _given_id(row, columns.id, seen)
    seen[name] = row.where
    return Example(name, text, reference, messages, row.values)


def _require_value(row: Record, column: str) -> object:
    value = row.values.get(column)
    if value is None:
        fault = "is null" if column in row.values else "is missing"
        raise DataError(
            f"{row.where}: column {column!r} {fault}", hint="fill it in or delete the row"
        )
    return value


def _read_input(row: Record, column: str) -> str:
    value = _require_value(row, column)
    if isinstance(value, str):
        return value
    kind = type(value).__name__
    chat = f'; for chat messages set messages to "{column}"' if isinstance(value, list) else ""
    raise DataError(
        f"{row.where}: column {column!r} holds {kind!r}, not text",
        hint=f"make it a string{chat}",
    )


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _given_id(row: Record, column: str, seen: Mapping[str, str]) -> str:
    value = _require_value(row, column)
    if isinstance(value, bool | float | list | dict) or not str(value).strip():
        raise DataError(
            f"{row.where}: the id {value!r} in column {column!r} is neither text nor "
            "a whole number",
            hint="correct it, or leave the id column out",
        )
    name = str(value).strip()
    if name in seen:
        raise DataError(
            f"{row.where}: the id {name!r} is used at {seen[name]} already",
            hint="make ids unique over all splits, or leave the id column out",
        )
    return name


def _content_id(text: str, target: str | None, seen: Mapping[str, str]) -> str:
    # The JSON of [text, target], by its parts: an encoder sets itself up anew for every row.
    reference = "null" if target is None else encode_basestring(target)
    content = f"[{encode_basestring(text)}, {reference}]"
    base = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name, again = base, 1
    while name in seen:
        again += 1
        name = f"{base}-{again}"
    return name


def _read_messages(row: Record, column: str) -> tuple[Message, ...]:
    value, where = _require_value(row, column), row.where
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{where}: column {column!r} is not a list of chat messages",
            hint='write e.g. [{"role": "user", "content": "..."}]',
        )
    messages = tuple(_read_message(part, where) for part in cast("Iterable[object]", value))
    if messages[-1].role != "user":
        raise DataError(
            f"{where}: the chat ends with a message of role {messages[-1].role}",
            hint="end it with a user message; the wanted reply belongs in the target column",
        )
    return messages


def _read_message(part: object, where: str) -> Message:
    fields = cast("Mapping[str, object]", part if isinstance(part, Mapping) else {})
    role, content = fields.get("role"), fields.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise DataError(
            f"{where}: a chat message must have a role and text content, not {str(fields)[:80]}",
            hint="roles are system, user and assistant; content is a string",
        )
    return Message(role, content)


def _transcript(messages: tuple[Message, ...]) -> str:
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"{m.role}: {m.content}" for m in messages)


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """Alternating literal text and column names: literals[0] columns[0] literals[1] ..."""

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    def render(self, values: Mapping[str, str]) -> str:
        """The text with each column's value put in its place as it stands."""
        parts = [self.literals[0]]
        for column, literal in zip(self.columns, self.literals[1:], strict=True):
            parts += [values[column], literal]
        return "".join(parts)


def parse_input_template(text: str) -> InputTemplate:
    """Reads a template; DataError for a brace without its partner."""
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
            raise DataError(
                f"lone {match[0]!r} at character {match.start() + 1} of the template {text!r}",
                hint="write columns as {name}, and {{ or }} for a brace itself",
            )
    return InputTemplate((*literals, literal + text[at:]), tuple(columns))
