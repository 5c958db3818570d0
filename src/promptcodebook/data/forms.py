"""Published forms of data sets and of other tools' exports: how rows show that they have one, and
the columns and settings that follow. The forms lie in forms.toml."""

from __future__ import annotations

import ast
import re
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import resources
from itertools import islice
from typing import Any, cast

from promptcodebook.base.text import parse_json
from promptcodebook.calls import read_message
from promptcodebook.data.table import SourceRow, Table, cell_text, row_fault
from promptcodebook.errors import DataError, did_you_mean

AUTO = "auto"  # as the name of a form: the one that the rows show
_LOOKED_AT = 20  # rows by which a form is recognised
_LETTERS = string.ascii_uppercase
_OWN_MARK = re.compile(r"\(?[A-Z]\s*[).:]\s*(?=\S)")  # "A) red"


@cache
def terms() -> Mapping[str, Any]:
    """What forms.toml holds."""
    return tomllib.loads(
        resources.files("promptcodebook.data").joinpath("forms.toml").read_text("utf-8")
    )


@dataclass(frozen=True, slots=True)
class Form:
    """One form, as forms.toml explains it."""

    when: str
    unnest: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    note: str = ""


@cache
def forms() -> Mapping[str, Form]:
    """All forms by name, those that are recognised first at the front."""
    return {name: Form(**tree) for name, tree in terms()["form"].items()}


def recognise(rows: Sequence[SourceRow]) -> str:
    """The name of the form that the rows have; '' = none that we know."""
    trees = [_tree(row.values) for row in rows[:_LOOKED_AT]]
    fits = (name for name, f in forms().items() if all(_search(f.when, tree) for tree in trees))
    return next(fits, "") if trees else ""


def in_form(tables: Mapping[str, Table], name: str) -> dict[str, Table]:
    """The tables, by their splits, with the columns and settings of a form; AUTO = of the one that
    their rows show. Raises DataError when the form is unknown, and when choices and answers do not
    fit together."""
    name = recognise(next(iter(tables.values())).rows) if name == AUTO else name
    if not name:
        return dict(tables)
    form = forms().get(name)
    if form is None:
        hint = f"the forms are {', '.join(forms())}"
        raise DataError(f"unknown form {name!r}{did_you_mean(name, forms())}", hint=hint)
    parts = {
        split: [row for outer in table.rows for row in _unnested(outer, form.unnest)]
        for split, table in tables.items()
    }
    rows = [row for part in parts.values() for row in part]
    added = [_columns(row, form) for row in rows]
    if "choices" in form.columns:
        added = _lettered([SourceRow(row.where, new) for row, new in zip(rows, added, strict=True)])
    rows = [
        SourceRow(row.where, {**row.values, **new}) for row, new in zip(rows, added, strict=True)
    ]
    names = tuple(dict.fromkeys(column for row in rows for column in row.values))
    settings = dict(form.settings)
    for key in ("target", "id", "split"):
        cells = [row.values.get(settings.get(key, "")) for row in rows]
        kinds = len({str(cell) for cell in cells if cell is not None})
        if kinds < {"target": 1, "id": len(rows), "split": 2}[key]:
            settings.pop(key, None)
    remaining = iter(rows)
    return {
        split: replace(
            table,
            columns=names,
            rows=tuple(islice(remaining, len(parts[split]))),
            notes=(*table.notes, *filter(None, [form.note])),
            form=name,
            settings=settings,
        )
        for split, table in tables.items()
    }


def _unnested(row: SourceRow, path: Sequence[str]) -> Iterator[SourceRow]:
    if not path:
        yield row
        return
    around = {name: value for name, value in row.values.items() if name != path[0]}
    inner: Any
    for number, inner in enumerate(cast("Any", row.values.get(path[0])) or (), 1):
        deeper = SourceRow(f"{row.where} {path[0]} {number}", {**around, **inner})
        yield from _unnested(deeper, path[1:])


def _columns(row: SourceRow, form: Form) -> dict[str, object]:
    tree = _tree(row.values)
    found = {name: _search(expression, tree) for name, expression in form.columns.items()}
    return {name: None if value is False else value for name, value in found.items()}


def _tree(values: Mapping[str, object]) -> dict[str, object]:
    """A row with the cells that hold JSON, or a Python list, unpacked."""
    return {name: _unpacked(value) for name, value in values.items()}


def _unpacked(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        for parse in (parse_json, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return parse(value)
    return value


# --- expressions


def _search(expression: str, tree: object) -> Any:
    """What JMESPath finds; None also where a value is of another kind than the expression takes."""
    import jmespath  # most sources have no form
    from jmespath.exceptions import JMESPathError

    try:
        return jmespath.compile(expression).search(tree, options=_options())
    except (JMESPathError, TypeError, AttributeError, ValueError):
        return None


@cache
def _options() -> Any:
    """The functions that forms.toml lists, as the library wants them."""
    import jmespath
    from jmespath import functions

    class Functions(functions.Functions):
        pass

    own = {
        name: {"function": function, "signature": [{"types": list[str]()}] * count}
        for name, (function, count) in _FUNCTIONS.items()
    }
    Functions.FUNCTION_TABLE = {**functions.Functions.FUNCTION_TABLE, **own}
    return jmespath.Options(custom_functions=Functions())


def _picked(_: object, tree: Mapping[str, object], names: Sequence[str], wanted: bool) -> object:
    return {k: v for k, v in tree.items() if any(fnmatchcase(k, n) for n in names) is wanted}


def _under(_: object, tree: Mapping[str, object], heads: Sequence[str]) -> object:
    return {k.removeprefix(h): v for h in heads for k, v in tree.items() if k.startswith(h)}


def _only(_: object, value: object) -> Any:
    tree = cast("dict[str, object]", value := _unpacked(value))
    if isinstance(value, dict):
        for key in ("messages", "content", *(tree if len(tree) == 1 else ())):
            if tree.get(key) is not None:
                return _only(_, tree[key])
    return tree


def _prose(_: object, value: object) -> object:
    if not isinstance(tree := _only(_, value), dict):
        return tree
    parts = cast("dict[str, object]", tree).items()
    return "\n".join(f"{name}: {cell_text(part)}" for name, part in parts)


def _chat(_: object, messages: Sequence[Mapping[str, Any]]) -> object:
    roles: Mapping[str, str] = terms()["roles"]
    known = (m if "role" in m else {"role": m["from"], "content": m["value"]} for m in messages)
    return [{**each, "role": roles.get(each["role"], each["role"])} for each in known]


def _words(_: object, message: object) -> object:
    return read_message(message).content


def _cut(_: object, text: str, pattern: str) -> object:
    match = re.search(pattern, text, re.DOTALL)
    return match and match[1]


# By name, with the number of their arguments; the first is the library's.
_FUNCTIONS: Mapping[str, tuple[Callable[..., object], int]] = {
    "pick": (partial(_picked, wanted=True), 2),
    "omit": (partial(_picked, wanted=False), 2),
    "under": (_under, 2),
    "only": (_only, 1),
    "prose": (_prose, 1),
    "chat": (_chat, 1),
    "words": (_words, 1),
    "cut": (_cut, 2),
}


# --- choices


_READINGS: Mapping[str, Callable[[str, Sequence[str], Sequence[str]], int]] = {
    "letter": lambda key, choices, marks: marks.index(key.strip(" ().").upper()),
    "text": lambda key, choices, marks: choices.index(key),
    "number from 0": lambda key, choices, marks: int(key),
    "number from 1": lambda key, choices, marks: int(key) - 1,
}


def _lettered(rows: Sequence[SourceRow]) -> list[dict[str, object]]:
    """The rows' other columns, with `choices_text`, a line for each choice, and `letter`, that of
    the right one. `key` names it by its letter (or mark), text or number; all rows together show
    which. Raises DataError where none of these fits, or several that differ."""
    faults = {reading: list[str]() for reading in _READINGS}
    found = {reading: list[str | None]() for reading in _READINGS}
    texts = list[str]()
    for row in rows:
        choices = [str(each).strip() for each in cast("Any", row.values["choices"]) or ()]
        marks = [str(each).upper() for each in cast("Any", row.values.get("marks")) or _LETTERS]
        key = str("" if (cell := row.values["key"]) is None else cell).strip()
        for reading, place_of in _READINGS.items():
            place = -1
            with suppress(ValueError):
                place = place_of(key, choices, marks)
            unknown = key in ("", "-1")  # as test splits have it
            if not (unknown or 0 <= place < len(choices)):
                faults[reading].append(f"{row.where}: the answer {key!r}")
            found[reading].append(None if unknown else _LETTERS[place])
        lines = zip(_LETTERS, (_OWN_MARK.sub("", choice) for choice in choices), strict=False)
        texts.append("\n".join(f"{letter}) {choice}" for letter, choice in lines))
    fitting = {tuple(found[reading]): reading for reading in _READINGS if not faults[reading]}
    if not fitting:
        what = f"{min(faults.values(), key=len)[0]} is no choice by its letter, text or number"
        raise DataError(what, hint="correct it, or read the rows as they are: --form ''")
    if len(fitting) > 1:
        what = f"the answers can be read as {' and as '.join(fitting.values())}"
        raise row_fault(rows[0].where, what, "write the letter of the right choice instead")
    return [
        {k: v for k, v in row.values.items() if k not in ("choices", "marks", "key")}
        | {"choices_text": text, "letter": letter}
        for row, text, letter in zip(rows, texts, next(iter(fitting)), strict=True)
    ]
