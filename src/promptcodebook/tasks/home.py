"""Where a benchmark's rows come from: the folder handed in, the public copy, or our own examples.

Each is a folder with train.jsonl, val.jsonl and test.jsonl, so that all three are read alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.data import SPLITS, Split
from promptcodebook.data.files import read_jsonl
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.public import Fetched, Source, checked_copy, public_rows
from promptcodebook.types import Example

__all__ = [
    "Fetched",
    "Home",
    "Source",
    "default_data_cache",
    "folder_of",
    "home_of",
    "jsonl_splits",
    "public_rows",
    "read_rows",
    "unique_ids",
]

_LAYOUT = (
    "DIR holds train.jsonl, val.jsonl and test.jsonl, or a folder of the task's name that does"
)


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of train/val/test.jsonl; `origin` says which of the three it is; `own` = ours."""

    folder: Path
    origin: str
    own: bool = False


def default_data_cache() -> Path:
    """promptcodebook/data below `$XDG_CACHE_HOME` or ~/.cache: where public copies are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "promptcodebook" / "data"


def home_of(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Home:
    """`data_dir` if given; else the public copy if it was fetched; else our own few examples.

    TaskError when the folder lacks a split, or when the public copy is not as it was fetched.
    """
    if data_dir is not None:
        return Home(folder_of(name, data_dir), "the data folder that was given")
    copy = checked_copy(name, cache_dir or default_data_cache())
    if copy is not None:
        return Home(copy, "the public copy that was fetched")
    folder = Path(__file__).parent / name / "examples"
    return Home(
        folder,
        "a few examples of our own that ship with the package, too few to measure anything; for "
        f"the benchmark's data give --data DIR, or type: pco data fetch {name}",
        own=True,
    )


def folder_of(name: str, data_dir: Path) -> Path:
    """`data_dir` or its folder `name`, whichever holds the splits; TaskError if one is missing."""
    hint = f"--data DIR, where {_LAYOUT}"
    candidates = (data_dir / name, data_dir)
    for folder in candidates:
        missing = [s for s in SPLITS if not (folder / f"{s}.jsonl").is_file()]
        if not missing:
            return folder
        if len(missing) < len(SPLITS):
            lacks = folder / f"{missing[0]}.jsonl"
            raise TaskError(f"the task {name} needs {lacks}, which is missing", hint=hint)
    raise TaskError(f"no train.jsonl in {data_dir} nor in {data_dir / name}", hint=hint)


def jsonl_splits(
    folder: Path, fields: Mapping[str, type | tuple[type, ...]], *, private: bool = False
) -> dict[Split, list[dict[str, object]]]:
    """The rows of the folder's three splits, checked as `read_rows` does."""
    return {s: read_rows(folder / f"{s}.jsonl", fields, private=private) for s in SPLITS}


def read_rows(
    path: Path,
    fields: Mapping[str, type | tuple[type, ...]] | None = None,
    *,
    private: bool = False,
) -> list[dict[str, object]]:
    """The rows of a jsonl file; each has `fields`, of those types, and "_where" = 'file:line'.

    DataError with file and line for a line that is no JSON object, a missing field, or a field of
    another type. With `private` no error quotes a column's name or a value that the file holds.
    """
    try:
        table = read_jsonl(path)
    except DataError as error:
        if not private:
            raise
        raise DataError(_place(error, path), hint="correct that line") from None
    rows = list[dict[str, object]]()
    for row in table.rows:
        for field, kind in (fields or {}).items():
            _check(row.values, field, kind, row.where)
        rows.append({**row.values, "_where": row.where})
    return rows


def unique_ids(splits: Mapping[Split, Sequence[Example]]) -> None:
    """DataError when two examples share an id, over all splits."""
    seen = dict[str, Split]()
    for split, examples in splits.items():
        for example in examples:
            if example.id in seen:
                raise DataError(
                    f"the id {example.id!r} occurs twice, in {seen[example.id]} and in {split}",
                    hint="give each row an id of its own",
                )
            seen[example.id] = split


def _check(
    values: Mapping[str, object], field: str, kind: type | tuple[type, ...], where: str
) -> None:
    if field not in values:
        raise DataError(f"{where}: the field {field!r} is missing", hint="add it to that line")
    value = values[field]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # JSON's true is no number, though Python's bool is an int.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(_NAMES.get(k, k.__name__) for k in kinds)
        found = _NAMES.get(type(value), type(value).__name__)
        raise DataError(
            f"{where}: the field {field!r} must be {wanted}, not {found}",
            hint="correct that line",
        )


_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _place(error: DataError, path: Path) -> str:
    """What may be said of a private file's fault: where it is, and that the line is unusable."""
    head = str(error).removeprefix(str(path))
    line = head[1:].split(":", 1)[0] if head.startswith(":") else ""
    at = f"{path}:{line}" if line.isdigit() else str(path)
    return f"{at}: cannot be read as JSON lines of objects (its content is private: not shown)"
