"""Data as people hand it in -> a Dataset: files, folders, frames, lists, with splits or without."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from promptcodebook.data import table as tabular
from promptcodebook.data.dataset import (
    SPLITS,
    Dataset,
    Split,
    complete_splits,
    draw_splits,
    leaks,
    split_name,
)
from promptcodebook.errors import DataError, did_you_mean, import_extra
from promptcodebook.types import Example

if TYPE_CHECKING:
    from promptcodebook.config.schema import DataSettings

_READERS: dict[str, Callable[[Path], tabular.Table]] = {
    ".jsonl": tabular.read_jsonl,
    ".ndjson": tabular.read_jsonl,
    ".json": tabular.read_json,
    ".csv": tabular.read_csv,
    ".tsv": lambda path: tabular.read_csv(path, "\t"),
    ".parquet": tabular.read_parquet,
}


def load(
    source: object,
    *,
    input: str = "input",
    target: str | None = "target",
    messages: str | None = None,
    id: str | None = None,
    split: str | None = None,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    seed: int = 0,
    name: str | None = None,
    allow_overlap: bool = False,
    stratify: bool = False,
) -> Dataset:
    """Read data into train, val and test.

    - `source`: a path (jsonl, json, csv, tsv, parquet, or a folder of train/val/test files), a list
      of dicts, a pandas DataFrame, a Hugging Face Dataset or DatasetDict, or a mapping
      {"train": ..., "val": ..., "test": ...} of any of those.
    - `input`: a column, or a template over several such as '{title}\\n{body}' ('input').
    - `target`: the column of references ('target'). None: there are none.
    - `messages`: a column of chat messages in place of `input`. None: there is none.
    - `id`: a column that names each row. None: rows are named by their content.
    - `split`: a column that names each row's split. None: splits that are not given are drawn.
    - `fractions`: shares of train, val and test where they are drawn (0.5, 0.25, 0.25).
    - `seed`: the key of that draw (0).
    - `name`: what to call the data. None: the name of the file, or 'data'.
    - `allow_overlap`: whether an input may be in two splits (False).
    - `stratify`: whether each target has its share in every split that is drawn (False).

    Raises DataError, with what is wrong, where, and what to do, when the data cannot be used."""
    columns = tabular.Columns(input, target, messages or None, id or None, split or None)
    parts = tuple(float(share) for share in fractions)
    if len(parts) != 3 or not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-6:
        what = f"fractions must be three positive shares that sum to 1, not {tuple(fractions)}"
        raise DataError(what, hint="of train, val and test, such as fractions = [0.5, 0.25, 0.25]")
    shares: dict[Split, float] = dict(zip(SPLITS, parts, strict=True))
    tables = read_source(source)
    if isinstance(tables, tabular.Table):
        given, title = _from_one(tables, columns), tables.name
        name = name or Path(title).stem
    else:
        given = _from_splits(tables, columns)
        is_path = isinstance(source, str | os.PathLike)
        name = title = name or (Path(cast("str", source)).name if is_path else "data")
    if isinstance(given, tuple):
        splits = draw_splits(given, shares, seed, title, stratify=stratify)
    else:
        splits = complete_splits(given, shares, seed, title, stratify=stratify)
    dataset = Dataset(splits["train"], splits["val"], splits["test"], name, columns.input)
    if not allow_overlap and (overlaps := leaks(dataset)):
        shown = "; ".join(map(str, overlaps[:5]))
        more = f"; and {len(overlaps) - 5} more" if len(overlaps) > 5 else ""
        inputs = "1 input appears" if len(overlaps) == 1 else f"{len(overlaps)} inputs appear"
        hint = "remove them from one split, or let the splits be drawn"
        raise DataError(f"{name}: {inputs} in two splits: {shown}{more}", hint=hint)
    return dataset


def load_settings(settings: DataSettings, base: Path) -> Dataset:
    """The user's data as the configuration names it; relative paths start at `base`."""
    given = {split: getattr(settings, split) for split in SPLITS if getattr(settings, split)}
    if settings.path and given:
        hint = "keep data.path alone, or data.train, data.val and data.test"
        raise DataError(f"data.path and data.{next(iter(given))} are both set", hint=hint)
    if not settings.path and not given:
        raise DataError("no data is named", hint='write path = "data.jsonl" under [data]')
    source: object = base / settings.path
    if given:
        source = {split: base / str(path) for split, path in given.items()}
    names = {"input", "messages", "id", "split", "fractions", "stratify"}
    same = settings.model_dump(include=names)
    return load(source, **same, target=settings.target or None, seed=settings.split_seed)


def _from_one(
    table: tabular.Table, columns: tabular.Columns
) -> tuple[Example, ...] | dict[Split, tuple[Example, ...]]:
    if not table.rows:
        raise DataError(f"{table.name} is empty", hint="give it at least three examples")
    examples = tabular.read_examples(table, columns, {})
    if columns.split is None:
        return examples
    given = dict[Split, list[Example]]()
    for row, example in zip(table.rows, examples, strict=True):
        split = split_name(row.values.get(columns.split), row.where)
        given.setdefault(split, []).append(example)
    return {split: tuple(part) for split, part in given.items()}


def _from_splits(
    tables: Mapping[Split, tabular.Table], columns: tabular.Columns
) -> dict[Split, tuple[Example, ...]]:
    if columns.split is not None:
        what = f"split={columns.split!r} names a column, but the splits are separate sources"
        raise DataError(what, hint="leave split out")
    seen = dict[str, str]()
    # In this order, whatever that in the source, so that ids do not depend on it.
    given: dict[Split, tabular.Table] = {
        split: tables[split] for split in SPLITS if split in tables
    }
    return {s: tabular.read_examples(t, columns, seen) if t.rows else () for s, t in given.items()}


def read_source(source: object) -> tabular.Table | dict[Split, tabular.Table]:
    """Reads a path (a file, or a folder of train/val/test files), frame, dataset, list of dicts, or
    a mapping of splits to any. Raises DataError for anything else, and for what cannot be read."""
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str | os.PathLike[str]", source))
        return _read_folder(path) if path.is_dir() else _read_file(path)
    if isinstance(source, Mapping):
        return _read_splits(cast("Mapping[object, object]", source))
    return _read_object(source, "data")


def _read_file(path: Path) -> tabular.Table:
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"no file at {path}{did_you_mean(path.name, near)}", hint="check the path")
    if path.is_char_device():  # its rows would never end
        raise DataError(f"{path} is a device, not a file of rows", hint="name a file")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        what = f"cannot tell the format of {path} from its name"
        raise DataError(what, hint=f"use {', '.join(_READERS)}")
    return reader(path)


def _read_folder(path: Path) -> tabular.Table | dict[Split, tabular.Table]:
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        # Written by `save_to_disk` of a Dataset or a DatasetDict.
        datasets = import_extra("datasets", f"reading the dataset folder {path.name}", "datasets")
        return read_source(datasets.load_from_disk(str(path)))
    files = dict[Split, Path]()
    for file in sorted(path.iterdir()):
        if file.suffix.lower() in _READERS and file.stem.lower() in (*SPLITS, "validation"):
            split = split_name(file.stem)
            if split in files:
                both = f"{files[split].name}, {file.name}"
                what = f"two files for the split {split!r} in {path}: {both}"
                raise DataError(what, hint="name one of the files instead of the folder")
            files[split] = file
    if not files:
        what = f"no train, val or test file in {path}"
        raise DataError(what, hint=f"name the data file in {path} itself")
    return {split: _read_file(file) for split, file in files.items()}


def _read_splits(source: Mapping[object, object]) -> dict[Split, tabular.Table]:
    tables = dict[Split, tabular.Table]()
    for key, part in source.items():
        split = split_name(key, "the mapping of splits")
        if split in tables:
            raise DataError(f"the split {split!r} is given twice", hint="keep one of them")
        if isinstance(part, str | os.PathLike):
            tables[split] = _read_file(Path(cast("str | os.PathLike[str]", part)))
        else:
            tables[split] = _read_object(part, split)
    if not tables:
        raise DataError("the mapping of splits is empty", hint="give at least 'train'")
    return tables


def _read_object(source: object, name: str) -> tabular.Table:
    # Recognised by the names of their classes, so that neither library is imported.
    kinds = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(source).__mro__}
    if ("pandas", "DataFrame") in kinds:
        frame: Any = source
        header = tabular.check_header(frame.columns, name)
        frame = frame.astype(object).where(frame.notna(), None)  # NaN, NaT and NA are missing
        rows = frame.itertuples(index=False, name=None)
        return tabular.numbered(name, header, (dict(zip(header, row, strict=True)) for row in rows))
    if kinds & {("datasets", "Dataset"), ("datasets", "IterableDataset")}:
        dataset: Any = source
        found = cast("list[Mapping[str, object]]", list(dataset))
        header = tabular.check_header(dataset.column_names or list(found[0] if found else ()), name)
        return tabular.numbered(name, header, found)
    if not isinstance(source, Sequence) or isinstance(source, str | bytes):
        hint = "hand in a path, a list of dicts, a pandas DataFrame or a datasets.Dataset"
        raise DataError(f"cannot read data from {type(source).__name__!r}", hint=hint)
    records = list[tabular.SourceRow]()
    for number, record in enumerate(cast("Sequence[object]", source)):
        where = f"{name}[{number}]"
        if not isinstance(record, Mapping):
            hint = 'write e.g. [{"input": "...", "target": "..."}]'
            raise DataError(f"{where} is {type(record).__name__!r}, not a dict", hint=hint)
        pairs = cast("Mapping[object, object]", record).items()
        tabular.check_header((column for column, _ in pairs), where)
        records.append(
            tabular.SourceRow(where, {str(column): tabular.plain(value) for column, value in pairs})
        )
    return tabular.table_of(name, records)
