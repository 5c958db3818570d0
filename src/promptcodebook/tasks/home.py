"""Where a benchmark's rows and texts come from, and how they are read and checked: the given
folder, the public copy, or our own examples, all in train.jsonl, val.jsonl and test.jsonl."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from promptcodebook.base.paths import cache_folder, read_text, sha256_of
from promptcodebook.data import SPLITS, Dataset, Split
from promptcodebook.data.files import jsonl_records
from promptcodebook.data.table import table_of
from promptcodebook.errors import DataError, TaskError
from promptcodebook.types import Example

# Beside a public copy: the SHA-256 of what was downloaded and of each file of the copy.
RECORD = "origin.json"
_CORRECT = "correct that line"
_LAYOUT = (
    "--data DIR, where DIR, or a folder in it named after the task, holds "
    "train.jsonl, val.jsonl and test.jsonl"
)


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of train/val/test.jsonl; `origin` says which of the three it is; `own` = ours."""

    folder: Path
    origin: str
    own: bool = False


class BenchmarkRow(BaseModel):
    """The fields that a benchmark's rows must have, with their types; others are left alone."""

    model_config = ConfigDict(strict=True, frozen=True)
    # What the rows call the example's input.
    input_column: ClassVar[str] = "input"


R = TypeVar("R", bound=BenchmarkRow)


def _filled(text: str, field: ValidationInfo) -> str:
    if not text.strip():
        raise DataError(f"the field {field.field_name!r} is empty", hint=_CORRECT)
    return text


# A text that is not blank, as the type of a row's field.
Filled = Annotated[str, AfterValidator(_filled)]


def default_data_cache() -> Path:
    """The folder `data` of the user's cache folder: where public copies are kept."""
    return cache_folder() / "data"


def read_seeds(folder: Path) -> tuple[str, ...]:
    """The instincts of `seeds.txt` in a task's folder, one a line."""
    lines = (folder / "seeds.txt").read_text("utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def read_texts(folder: Path, **facts: object) -> dict[str, Any]:
    """The texts of a `Task` by its own names, of seeds.txt and task.toml in its folder; the facts
    are put in its description."""
    texts = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    description = texts["description"].format(**facts)
    return {**texts, "seeds": read_seeds(folder), "description": description}


def home_of(package: Path, data_dir: Path | None = None) -> Home:
    """`data_dir` if given, else the public copy if it was fetched, else our own examples.

    `package` is the benchmark's folder of code: it has the benchmark's name, and holds `examples/`.
    """
    name = package.name
    for folder in () if data_dir is None else (data_dir / name, data_dir):
        missing = [s for s in SPLITS if not (folder / f"{s}.jsonl").is_file()]
        if not missing:
            return Home(folder, "your data folder")
        if len(missing) < len(SPLITS):
            lacks = folder / f"{missing[0]}.jsonl"
            raise TaskError(f"the task {name} needs {lacks}, which is missing", hint=_LAYOUT)
    if data_dir is not None:
        raise TaskError(f"neither {data_dir} nor {data_dir / name} has a train.jsonl", hint=_LAYOUT)
    copy = default_data_cache() / name
    kept = kept_record(copy).get("local", {})
    for file, digest in kept.items():
        path = copy / file
        if not path.is_file() or sha256_of(path) != digest:
            message = f"{path} has changed since it was fetched"
            raise TaskError(message, hint=f"pco data fetch {name}, or pass --data DIR")
    if kept:
        return Home(copy, "the public copy that was fetched")
    origin = (
        "a few examples of our own, shipped with the package, too few to measure anything; for "
        f"the benchmark's data give --data DIR, or type: pco data fetch {name}"
    )
    return Home(package / "examples", origin, own=True)


def kept_record(folder: Path) -> dict[str, dict[str, str]]:
    """The RECORD of a public copy; nothing where it, or one of the splits, is missing."""
    try:
        record = cast("dict[str, dict[str, str]]", json.loads(read_text(folder / RECORD)))
        complete = {f"{split}.jsonl" for split in SPLITS} <= set(record["local"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return record if complete else {}


def jsonl_splits(
    folder: Path, model: type[R], *, private: bool = False
) -> dict[Split, list[tuple[str, R]]]:
    """The rows of the folder's three splits, checked as `read_rows` does."""
    return {s: read_rows(folder / f"{s}.jsonl", model, private=private) for s in SPLITS}


def read_dataset(
    home: Home, name: str, model: type[R], example: Callable[[R], Example], *, private: bool = False
) -> Dataset:
    """The three splits, each row as an example. Raises DataError when an id occurs twice."""
    splits: dict[Split, tuple[Example, ...]] = {
        split: tuple(example(row) for _, row in rows)
        for split, rows in jsonl_splits(home.folder, model, private=private).items()
    }
    unique_ids(splits, private=private)
    return Dataset(**splits, name=name, input=model.input_column)


def read_rows(path: Path, model: type[R], *, private: bool = False) -> list[tuple[str, R]]:
    """The rows of a jsonl file, each with its place 'file:line'. Raises DataError with that place
    for a line that is not a JSON object, and as `check_row` raises it. With `private` no error
    quotes a column's name or a value that the file holds."""
    try:
        table = table_of(path.name, list(jsonl_records(path, utf8=True)), str(path))
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
    """The row as its model. Raises DataError with place and field of a fault; it quotes no
    value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    own = faults[0].get("ctx", {}).get("error")
    if isinstance(own, DataError):
        raise DataError(f"{where}: {own}", hint=own.hint)
    field = faults[0]["loc"][0]
    # A field that may be of several types has one error for each of them.
    message = dict.fromkeys(fault["msg"] for fault in faults if fault["loc"][0] == field)
    raise DataError(f"{where}: the field {field!r}: {' or '.join(message)}", hint=_CORRECT)


def unique_ids(splits: Mapping[Split, Sequence[Example]], *, private: bool = False) -> None:
    """Raises DataError when two examples share an id, over all splits."""
    seen = dict[str, Split]()
    for split, examples in splits.items():
        for example in examples:
            if example.id in seen:
                named = "an id" if private else f"the id {example.id!r}"
                message = f"{named} occurs twice, in {seen[example.id]} and in {split}"
                raise DataError(message, hint="give each row a unique id")
            seen[example.id] = split
