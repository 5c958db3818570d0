"""Published forms of data sets and of other tools' exports: how rows show that they have one, and
the columns and settings that follow. The forms lie in forms.toml."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from typing import Any, cast

from promptcodebook.base.text import parse_json, shipped_table
from promptcodebook.calls import read_message
from promptcodebook.data.table import SourceRow, Table, cell_text, row_fault
from promptcodebook.errors import DataError, did_you_mean

AUTO = "auto"  # as the name of a form: the one that the rows show
_LOOKED_AT = 20  # rows by which a form is recognised
_LETTERS = string.ascii_uppercase
_OWN_MARK = re.compile(r"\(?[A-Z]\s*[).:]\s*(?=\S)")  # "A) red"


def terms() -> Mapping[str, Any]:
    """What forms.toml holds."""
    return shipped_table(__file__, "forms.toml")


def recognise(rows: Sequence[SourceRow]) -> str:
    """The name of the form that the rows have; '' = none that we know."""
    trees = [_tree(row) for row in rows[:_LOOKED_AT]]
    known: Mapping[str, Any] = terms()["form"] if trees else {}
    fits = (name for name, f in known.items() if all(_search(f["when"], tree) for tree in trees))
    return next(fits, "")


def in_form(tables: Mapping[str, Table], name: str) -> dict[str, Table]:
    """The tables, by their splits, with the columns and settings of a form; AUTO = of the one that
    their rows show, if it finds references. Raises DataError when the form is unknown, and when
    choices and answers do not fit together."""
    auto = name == AUTO
    name = recognise(next(iter(tables.values())).rows) if auto else name
    known: Mapping[str, Any] = terms()["form"]
    if not name:
        return dict(tables)
    if name not in known:
        hint = f"the forms are {', '.join(known)}"
        raise DataError(f"unknown form {name!r}{did_you_mean(name, known)}", hint=hint)
    form: Mapping[str, Any] = {"unnest": (), "columns": {}, "settings": {}, "notes": ()} | known[
        name
    ]
    parts = {
        split: [inner for row in table.rows for inner in _unnested(row, form["unnest"])]
        for split, table in tables.items()
    }
    rows = [row for part in parts.values() for row in part]
    added = [_columns(row, form["columns"]) for row in rows]
    if "choices" in form["columns"]:
        added = _lettered(rows, added)
    settings = _settings(form["settings"], rows, added)
    rows = [SourceRow(r.where, {**r.values, **new}) for r, new in zip(rows, added, strict=True)]
    for key, least in {"target": 1, "id": len(rows), "split": 2}.items():
        cells = {str(row.values.get(settings.get(key, ""))) for row in rows} - {"None"}
        if len(cells) < least:  # an id must be each row's own, and splits several
            settings.pop(key, None)
    if auto and "target" not in settings:
        return dict(tables)
    columns, rest = tuple(dict.fromkeys(c for row in rows for c in row.values)), iter(rows)
    out = dict[str, Table]()
    for split, table in tables.items():
        part, notes = (
            tuple(islice(rest, len(parts[split]))),
            (*table.notes, f"form {name}", *form["notes"]),
        )
        out[split] = Table(table.name, columns, part, notes, table.header, name, settings)
    return out


def _settings(
    known: Mapping[str, str], rows: Sequence[SourceRow], added: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """A form's settings in the words of the rows: a column of theirs in place of an added one that
    is the same, and no part of a template that they all lack."""
    settings, there = dict(known), {name for row in rows for name in row.values}
    pairs = list(zip(rows, added, strict=True))
    for key, name in known.items():
        if name in added[0]:
            same = (c for c in rows[0].values if all(r.values.get(c) == n[name] for r, n in pairs))
            settings[key] = next(same, name)
    optional = re.compile(r"\s*\{\?(\w+)\}")
    kept = optional.sub(lambda match: match[0] if match[1] in there else "", settings["input"])
    settings["input"] = re.sub(r"\A\{(\w+)\}\Z", r"\1", kept.lstrip())
    return settings


def _unnested(row: SourceRow, path: Sequence[str]) -> Iterator[SourceRow]:
    if not path:
        yield row
        return
    around = {name: value for name, value in row.values.items() if name != path[0]}
    inner: Any
    for number, inner in enumerate(cast("Any", row.values.get(path[0])) or (), 1):
        deeper = SourceRow(f"{row.where} {path[0]} {number}", {**around, **inner})
        yield from _unnested(deeper, path[1:])


def _columns(row: SourceRow, columns: Mapping[str, str]) -> dict[str, object]:
    tree = _tree(row)
    found = {name: _search(expression, tree) for name, expression in columns.items()}
    return {name: None if value is False else value for name, value in found.items()}


def _tree(row: SourceRow) -> dict[str, object]:
    """A row's values, with the cells that hold JSON or a Python list unpacked."""
    return {name: _unpacked(value) for name, value in row.values.items()}


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

    known = dict[str, Any]()
    for function in (_pick, _omit, _under, _only, _prose, _chat, _words, _cut):
        anything = [{"types": list[str]()}] * (function.__code__.co_argcount - 1)
        known[f"_func{function.__name__}"] = cast("Any", functions.signature)(*anything)(function)
    own = type("Functions", (functions.Functions,), known)
    return jmespath.Options(custom_functions=own())


def _pick(_: object, tree: Mapping[str, object], names: Sequence[str]) -> object:
    return {k: v for k, v in tree.items() if any(fnmatchcase(k, name) for name in names)}


def _omit(_: object, tree: Mapping[str, object], names: Sequence[str]) -> object:
    return {k: v for k, v in tree.items() if not any(fnmatchcase(k, name) for name in names)}


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


# --- choices


_READINGS: Mapping[str, Callable[[str, Sequence[str], Sequence[str]], int]] = {
    "letter": lambda key, choices, marks: marks.index(key.strip(" ().").upper()),
    "text": lambda key, choices, marks: choices.index(key),
    "number from 0": lambda key, choices, marks: int(key),
    "number from 1": lambda key, choices, marks: int(key) - 1,
}


def _lettered(
    rows: Sequence[SourceRow], added: Sequence[Mapping[str, Any]]
) -> list[dict[str, object]]:
    """The added columns with `choices_text`, a line for each choice, and `letter`, that of the
    right one. `key` names it by its letter (or mark), text or number; all rows together show which.
    Raises DataError where none of these fits, or several that differ."""
    faults, texts = {reading: list[str]() for reading in _READINGS}, list[str]()
    found = {reading: list[str | None]() for reading in _READINGS}
    for row, new in zip(rows, added, strict=True):
        choices = [str(each).strip() for each in new["choices"] or ()]
        marks = [str(each).upper() for each in new.get("marks") or _LETTERS]
        key = "" if new["key"] is None else str(new["key"]).strip()
        for reading, place_of in _READINGS.items():
            place = -1
            with suppress(ValueError):
                place = place_of(key, choices, marks)
            known = key not in ("", "-1")  # as test splits have it
            if known and not 0 <= place < len(choices):
                faults[reading].append(f"{row.where}: the answer {key!r}")
            found[reading].append(_LETTERS[place] if known else None)
        lines = zip(_LETTERS, (_OWN_MARK.sub("", choice) for choice in choices), strict=False)
        texts.append("\n".join(f"{letter}) {choice}" for letter, choice in lines))
    fitting = {tuple(found[reading]): reading for reading in _READINGS if not faults[reading]}
    if not fitting:
        what = f"{min(faults.values(), key=len)[0]} matches no choice's letter, text or number"
        raise DataError(what, hint="correct it, or read the rows unchanged: --form ''")
    if len(fitting) > 1:
        what = f"the answers can be read as {' and as '.join(fitting.values())}"
        raise row_fault(rows[0].where, what, "write the letter of the right choice instead")
    kept = [{k: v for k, v in new.items() if k not in ("choices", "marks", "key")} for new in added]
    letters = zip(kept, texts, next(iter(fitting)), strict=True)
    return [{**new, "choices_text": text, "letter": letter} for new, text, letter in letters]
