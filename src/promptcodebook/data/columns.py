"""Which column is what, and how a row becomes an Example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from promptcodebook.data.table import Row, Table
from promptcodebook.data.template import Template, parse_template
from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.types import Example, Message

__all__ = ["Columns", "read_examples"]


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
            _known(name, table, option)
    return tuple(_example(row, columns, template, seen) for row in table.rows)


def _input_template(table: Table, columns: Columns) -> Template | None:
    if columns.messages is not None:
        return None
    if columns.input in table.columns:
        return Template(("", ""), (columns.input,))
    template = parse_template(columns.input)
    if not template.columns:
        _known(columns.input, table, "input")
    for name in template.columns:
        _known(name, table, "input")
    return template


def _known(name: str, table: Table, option: str) -> None:
    if name not in table.columns:
        there = ", ".join(map(repr, table.columns)) or "none"
        raise DataError(
            f"{table.name} has no column {name!r}{did_you_mean(name, table.columns)}",
            hint=f"its columns are {there}: set {option} to one of them"
            + (", or say target=None" if option == "target" else ""),
        )


def _example(
    row: Row, columns: Columns, template: Template | None, seen: dict[str, str]
) -> Example:
    messages = ()
    if template is None:
        messages = _messages(row, columns.messages or "")
        text = _readable(messages)
    elif template.literals == ("", ""):
        text = _input_text(row, template.columns[0])
    else:
        text = template.render({n: _text(_present(row, n)) for n in template.columns})
    if not text.strip():
        raise DataError(f"{row.where}: the input is empty", hint="fill it in or delete the row")
    target = None if columns.target is None else row.values.get(columns.target)
    reference = None if target is None else _text(target)
    if columns.id is None:
        name = _content_id(text, reference, seen)
    else:
        name = _given_id(row, columns.id, seen)
    seen[name] = row.where
    return Example(name, text, reference, messages, row.values)


def _present(row: Row, column: str) -> object:
    value = row.values.get(column)
    if value is None:
        said = "is null" if column in row.values else "is missing"
        raise DataError(
            f"{row.where}: column {column!r} {said}", hint="fill it in or delete the row"
        )
    return value


def _input_text(row: Row, column: str) -> str:
    value = _present(row, column)
    if isinstance(value, str):
        return value
    found = type(value).__name__
    chat = f'; for chat messages say messages="{column}"' if isinstance(value, list) else ""
    raise DataError(
        f"{row.where}: column {column!r} holds {found!r}, not text",
        hint=f"make it a string{chat}",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _given_id(row: Row, column: str, seen: Mapping[str, str]) -> str:
    value = _present(row, column)
    if isinstance(value, bool | float | list | dict) or not str(value).strip():
        raise DataError(
            f"{row.where}: the id {value!r} in column {column!r} is no text or whole number",
            hint="correct it, or leave the id column out",
        )
    name = str(value).strip()
    if name in seen:
        raise DataError(
            f"{row.where}: the id {name!r} stands at {seen[name]} already",
            hint="make ids unique over all splits, or leave the id column out",
        )
    return name


def _content_id(text: str, target: str | None, seen: Mapping[str, str]) -> str:
    content = json.dumps([text, target], ensure_ascii=False)
    base = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name, again = base, 1
    while name in seen:
        again += 1
        name = f"{base}-{again}"
    return name


def _messages(row: Row, column: str) -> tuple[Message, ...]:
    value, where = _present(row, column), row.where
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{where}: column {column!r} is no list of chat messages",
            hint='write e.g. [{"role": "user", "content": "..."}]',
        )
    messages = tuple(_message(part, where) for part in cast("Iterable[object]", value))
    if messages[-1].role != "user":
        raise DataError(
            f"{where}: the chat ends with a message of the {messages[-1].role}",
            hint="end it with the user's; the reply wanted belongs in the target column",
        )
    return messages


def _message(part: object, where: str) -> Message:
    fields = cast("Mapping[str, object]", part if isinstance(part, Mapping) else {})
    role, content = fields.get("role"), fields.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise DataError(
            f"{where}: a chat message must have a role and text content, not {str(fields)[:80]}",
            hint="roles are system, user and assistant; content is a string",
        )
    return Message(role, content)


def _readable(messages: tuple[Message, ...]) -> str:
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"{m.role}: {m.content}" for m in messages)
