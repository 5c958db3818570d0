"""Where a benchmark's rows come from, and how they are read and checked.

Rows come from the given folder, the public copy, or our own examples. Each is a folder with
train.jsonl, val.jsonl and test.jsonl, so all three are read alike. A benchmark declares its fields
as a `BenchmarkRow`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from promptcodebook.data import SPLITS, Dataset, Split
from promptcodebook.data.table import read_jsonl
from promptcodebook.errors import DataError, TaskError
from promptcodebook.paths import cache_folder
from promptcodebook.types import Example

RECORD = "origin.json"
"""Beside a public copy: the SHA-256 of what was downloaded and of each file of the copy."""
_LAYOUT = (
    "--data DIR, where DIR holds train.jsonl, val.jsonl and test.jsonl, "
    "or a folder of the task's name that does"
)


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of train/val/test.jsonl; `origin` says which of the three it is; `own` = ours."""

    folder: Path
    origin: str
    own: bool = False


class BenchmarkRow(BaseModel):
    """The fields that a benchmark's rows must have, with their types; others are left alone. A
    validator may raise DataError: the row's place is put before its message."""

    model_config = ConfigDict(strict=True, frozen=True)
    input_column: ClassVar[str] = "input"
    """What the rows call the example's input."""


R = TypeVar("R", bound=BenchmarkRow)


def default_data_cache() -> Path:
    """The folder `data` of the user's cache folder: where public copies are kept."""
    return cache_folder() / "data"


def read_seeds(folder: Path) -> tuple[str, ...]:
    """The instincts of `seeds.txt` in a task's folder, one a line."""
    lines = (folder / "seeds.txt").read_text("utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def home_of(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Home:
    """`data_dir` if given; else the public copy if it was fetched; else our own few examples.
    TaskError when the folder lacks a split, or when the public copy is not as it was fetched."""
    if data_dir is not None:
        return Home(folder_of(name, data_dir), "the data folder that was given")
    copy = (cache_dir or default_data_cache()) / name
    kept = kept_record(copy).get("local", {})
    for file, digest in kept.items():
        path = copy / file
        if not path.is_file() or sha256_of(path) != digest:
            raise TaskError(
                f"{path} is not as it was fetched",
                hint=f"pco data fetch {name}, or give --data DIR",
            )
    if kept:
        return Home(copy, "the public copy that was fetched")
    origin = (
        "a few examples of our own that ship with the package, too few to measure anything; for "
        f"the benchmark's data give --data DIR, or type: pco data fetch {name}"
    )
    return Home(Path(__file__).parent / name / "examples", origin, own=True)


def kept_record(folder: Path) -> dict[str, dict[str, str]]:
    """The RECORD of a public copy; nothing where it, or one of the splits, is missing."""
    try:
        record = cast("dict[str, dict[str, str]]", json.loads((folder / RECORD).read_text("utf-8")))
        complete = {f"{split}.jsonl" for split in SPLITS} <= set(record["local"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return record if complete else {}


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_of(name: str, data_dir: Path) -> Path:
    """`data_dir` or its folder `name`, whichever holds the splits; TaskError if one is missing."""
    for folder in (data_dir / name, data_dir):
        missing = [s for s in SPLITS if not (folder / f"{s}.jsonl").is_file()]
        if not missing:
            return folder
        if len(missing) < len(SPLITS):
            lacks = folder / f"{missing[0]}.jsonl"
            raise TaskError(f"the task {name} needs {lacks}, which is missing", hint=_LAYOUT)
    raise TaskError(f"no train.jsonl in {data_dir} nor in {data_dir / name}", hint=_LAYOUT)


def jsonl_splits(
    folder: Path, model: type[R], *, private: bool = False
) -> dict[Split, list[tuple[str, R]]]:
    """The rows of the folder's three splits, checked as `read_rows` does."""
    return {s: read_rows(folder / f"{s}.jsonl", model, private=private) for s in SPLITS}


def read_dataset(
    name: str, folder: Path, model: type[R], example: Callable[[R], Example]
) -> Dataset:
    """The folder's three splits, each row as an example. DataError for an id that occurs twice."""
    splits: dict[Split, tuple[Example, ...]] = {
        split: tuple(example(row) for _, row in rows)
        for split, rows in jsonl_splits(folder, model).items()
    }
    unique_ids(splits)
    return Dataset(**splits, name=name, input=model.input_column)


def read_rows(path: Path, model: type[R], *, private: bool = False) -> list[tuple[str, R]]:
    """The rows of a jsonl file, each with its place 'file:line'. DataError with that place for a
    line that is not a JSON object, and as `check_row` raises it. With `private` no error quotes a
    column's name or a value that the file holds."""
    try:
        table = read_jsonl(path)
    except DataError as error:
        if not private:
            raise
        # Say only where the fault of a private file is.
        head = str(error).removeprefix(str(path))
        line = head[1:].split(":", 1)[0] if head.startswith(":") else ""
        at = f"{path}:{line}" if line.isdigit() else str(path)
        what = "cannot be read as JSON lines of objects (its content is private: not shown)"
        raise DataError(f"{at}: {what}", hint=_CORRECT) from None
    return [(row.where, check_row(row.values, row.where, model)) for row in table.rows]


def check_row(values: Mapping[str, object], where: str, model: type[R]) -> R:
    """The row as its model; DataError naming place and field for one that is missing or of another
    type. No value is quoted, unless a validator of the model does."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    own = faults[0].get("ctx", {}).get("error")
    if isinstance(own, DataError):
        raise DataError(f"{where}: {own}", hint=own.hint)
    hint = "add it to that line" if faults[0]["type"] == "missing" else _CORRECT
    raise DataError(f"{where}: {_describe(faults)}", hint=hint)


def blank_fields(row: BaseModel, *names: str) -> None:
    """DataError for the first of these texts that is blank; for a row's validator."""
    for name in names:
        if not str(getattr(row, name)).strip():
            raise DataError(f"the field {name!r} is empty", hint=_CORRECT)


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


_CORRECT = "correct that line"
_KINDS: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_WANTED = {
    **{f"{kind.__name__}_type": words for kind, words in _KINDS.items()},
    **{"string_type": "a text", "int_from_float": "a whole number"},
}


def _describe(errors: Sequence[Any]) -> str:
    """pydantic's errors of the first wrong field, in our words."""
    first = errors[0]
    place = first["loc"]
    field = repr(str(place[0])) + "".join(f" (item {n + 1})" for n in place[1:] if type(n) is int)
    if first["type"] == "missing":
        return f"the field {field} is missing"
    # A field that may be of several types has one error for each of them.
    same = [e for e in errors if e["loc"][0] == place[0] and e["type"] in _WANTED]
    if not same:
        return f"the field {field}: {first['msg']}"
    wanted = " or ".join(dict.fromkeys(_WANTED[e["type"]] for e in same))
    kind = cast("type[object]", type(first["input"]))
    return f"the field {field} must be {wanted}, not {_KINDS.get(kind, kind.__name__)}"
