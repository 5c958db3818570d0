"""Data as people hand it in -> a Dataset: files, folders, frames, lists, with splits or without."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from promptcodebook.base.text import shell
from promptcodebook.data import files, forms
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

_TEXTS: dict[str, Callable[[files.TextFile, bool | None], files.Tables]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), partial(files.read_json, lines=True)),
    ".json": files.read_json,
    ".csv": files.read_csv,
    ".tsv": partial(files.read_csv, delimiter="\t"),
    **dict.fromkeys((".yaml", ".yml"), files.read_yaml),
}
_BINARIES: dict[str, Callable[[Path, bool | None], files.Tables]] = {
    ".parquet": lambda path, _: files.read_parquet(path),
    **dict.fromkeys((".arrow", ".feather"), lambda path, _: files.read_arrow(path)),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), files.read_sheets),
}
_ENDINGS = (*_TEXTS, *_BINARIES)


def load(
    source: object,
    *,
    input: str = "input",
    target: str | None = "target",
    messages: str | None = None,
    id: str | None = None,
    split: str | None = None,
    group: str | Sequence[str] = (),
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    seed: int = 0,
    name: str | None = None,
    allow_overlap: bool = False,
    stratify: bool = False,
    form: str = "",
    header: bool = True,
) -> Dataset:
    """Read data into train, val and test.

    - `source`: a path (jsonl, json, yaml, csv, tsv, xlsx, parquet, arrow, as it is or as gz or zst;
      or a folder of train/val/test files, or of texts in folders named by their labels), a list of
      dicts, a pandas DataFrame, a Hugging Face Dataset or DatasetDict, or a mapping
      {"train": ..., "val": ..., "test": ...} of any of those.
    - `input`: a column, or a template over several such as '{title}\\n{body}' ('input').
    - `target`: the column of references ('target'). None: there are none.
    - `messages`: a column of chat messages in place of `input`. None: there is none.
    - `id`: a column that names each row. None: rows are named by their content.
    - `split`: a column that names each row's split. None: splits that are not given are drawn.
    - `group`: columns by which rows depend on one another, such as 'conversation': no split parts a
      group, and intervals count groups. (): equal and nearly equal inputs form groups.
    - `fractions`: shares of train, val and test where they are drawn (0.5, 0.25, 0.25).
    - `seed`: the key of that draw (0).
    - `name`: what to call the data. None: the name of the file, or 'data'.
    - `allow_overlap`: whether an input may be in two splits (False).
    - `stratify`: whether each target has its share in every split that is drawn (False).
    - `form`: a published form of the rows, such as 'squad'; it names the columns that are left at
      their defaults. 'auto': the one that the rows show. '': they are read as they are.
    - `header`: whether the first line of a CSV file or a sheet names the columns (True).

    Raises DataError, with what is wrong, where, and what to do, when the data cannot be used."""
    parts = tuple(float(share) for share in fractions)
    if len(parts) != 3 or not all(part > 0 for part in parts) or abs(sum(parts) - 1) > 1e-6:
        what = f"fractions must be three positive shares that sum to 1, not {tuple(fractions)}"
        raise DataError(what, hint="of train, val and test, such as fractions = [0.5, 0.25, 0.25]")
    shares: dict[Split, float] = dict(zip(SPLITS, parts, strict=True))
    tables = read_source(source, form=form, header=header)
    groups = (group,) if isinstance(group, str) and group else tuple(group)
    named = tabular.Columns(input, target, messages or None, id or None, split or None, groups)
    first = first_table(tables)
    columns = _columns_of(first, named)
    try:
        if isinstance(tables, tabular.Table):
            given, title = _from_one(tables, columns), tables.name
            name = name or _bare(title).stem
        else:
            given = _from_splits(tables, columns)
            is_path = isinstance(source, str | os.PathLike)
            name = title = name or (Path(cast("str", source)).name if is_path else "data")
    except tabular.MissingColumn as error:
        error.hint += _advice(cast("object", source), form)
        raise
    if isinstance(given, tuple):
        splits = draw_splits(given, shares, seed, title, stratify=stratify)
    else:
        splits = complete_splits(given, shares, seed, title, stratify=stratify)
    dataset = Dataset(
        splits["train"], splits["val"], splits["test"], name, columns.input, first.notes
    )
    if not allow_overlap and (overlaps := leaks(dataset)):
        shown = "; ".join(map(str, overlaps[:5]))
        more = f"; and {len(overlaps) - 5} more" if len(overlaps) > 5 else ""
        inputs = "1 input appears" if len(overlaps) == 1 else f"{len(overlaps)} inputs appear"
        hint = "remove them from one split, or let pco draw the splits"
        raise DataError(f"{name}: {inputs} in two splits: {shown}{more}", hint=hint)
    homes = {e.group: split for split, examples in dataset.items() for e in examples if e.group}
    for split, examples in () if allow_overlap else dataset.items():
        if parted := next((e for e in examples if homes.get(e.group, split) != split), None):
            where = parted.where or parted.id
            what = f"{name}: the group of {where} ({split}) is also in {homes[parted.group]}"
            raise DataError(what, hint="put each group in one split, or let pco draw the splits")
    return dataset


def load_settings(settings: DataSettings, base: Path) -> Dataset:
    """The user's data as the configuration names it; relative paths start at `base`."""
    given = {split: getattr(settings, split) for split in SPLITS if getattr(settings, split)}
    if settings.path and given:
        hint = "keep only data.path, or data.train, data.val and data.test"
        raise DataError(f"data.path and data.{next(iter(given))} are both set", hint=hint)
    if not settings.path and not given:
        raise DataError("no data is named", hint='write path = "data.jsonl" under [data]')
    source: object = base / settings.path
    if given:
        source = {split: base / str(path) for split, path in given.items()}
    same = settings.model_dump(exclude={"path", *SPLITS, "target", "split_seed", "slices"})
    return load(source, **same, target=settings.target or None, seed=settings.split_seed)


def first_table(tables: tabular.Table | Mapping[Split, tabular.Table]) -> tabular.Table:
    """The only table, or that of the first split: its notes and its form hold for all."""
    return tables if isinstance(tables, tabular.Table) else next(iter(tables.values()))


def _advice(source: object, form: str) -> str:
    """What to set where a named column is missing because of the form of the rows."""
    with suppress(DataError):
        table = first_table(read_source(source, form=form or forms.AUTO, header=None))
        known = f'; its rows look like {table.form}: form = "{table.form}"' if table.form else ""
        return known + "; its first line looks like a row: header = false" * (table.header is False)
    return ""


def _columns_of(table: tabular.Table, columns: tabular.Columns) -> tabular.Columns:
    """The columns that are named, those left at their defaults by the form of the rows."""
    default = tabular.Columns()
    known: Mapping[str, str | None] = {"target": None, **table.settings} if table.form else {}
    names = ("input", "target", "id", "split")
    kept = {n: known[n] for n in names if n in known and getattr(columns, n) == getattr(default, n)}
    return replace(columns, **cast("dict[str, Any]", kept))


def _from_one(
    table: tabular.Table, columns: tabular.Columns
) -> tuple[Example, ...] | dict[Split, tuple[Example, ...]]:
    if not table.rows:
        raise DataError(f"{table.name} is empty", hint="add at least three examples")
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


def read_source(
    source: object, *, form: str = "", header: bool | None = True
) -> tabular.Table | dict[Split, tabular.Table]:
    """Reads a path (a file, or a folder of train/val/test files), frame, dataset, list of dicts, or
    a mapping of splits to any. `form` as in `load`; without knowing of a `header` (None) its looks
    decide. Raises DataError for anything else, and for what cannot be read."""
    tables = _read(source, header)
    if isinstance(tables, tabular.Table):
        return forms.in_form({"": tables}, form)[""]
    splits = {split_name(key, "the mapping of splits"): table for key, table in tables.items()}
    return cast("dict[Split, tabular.Table]", forms.in_form(dict(splits), form))


def _read(source: object, header: bool | None) -> files.Tables:
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str | os.PathLike[str]", source))
        return _read_folder(path, header) if path.is_dir() else _read_file(path, header)
    if isinstance(source, Mapping):
        return _read_splits(cast("Mapping[object, object]", source), header)
    return _read_object(source, "data")


def _bare(name: str) -> Path:
    """A file's name without the ending of its compression."""
    return Path(re.sub(r"\.(gz|zst)\Z", "", name, flags=re.IGNORECASE))


def _read_file(path: Path, header: bool | None) -> files.Tables:
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = f"ls {shell(path.parent)} shows what is there"
        raise DataError(f"no file at {path}{did_you_mean(path.name, near)}", hint=hint)
    if path.is_char_device():  # its rows would never end
        raise DataError(f"{path} is a device, not a file of rows", hint="name a file")
    suffix = _bare(path.name).suffix.lower()
    if suffix in ("", ".txt", ".data"):
        suffix = files.ending_of(path)
    if suffix in _BINARIES:
        return _BINARIES[suffix](path, header)
    if suffix not in _TEXTS:
        what = f"cannot tell the format of {path} from its name"
        raise DataError(what, hint=f"use {', '.join(_ENDINGS)}")
    file = files.text_file(path)
    tables = _TEXTS[suffix](file, header)
    if isinstance(tables, tabular.Table):
        return replace(tables, notes=(*file.notes, *tables.notes))
    return {k: replace(t, notes=(*file.notes, *t.notes)) for k, t in tables.items()}


def _read_folder(path: Path, header: bool | None) -> files.Tables:
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        # Written by `save_to_disk` of a Dataset or a DatasetDict.
        datasets = import_extra("datasets", f"reading the dataset folder {path.name}", "datasets")
        return _read(datasets.load_from_disk(str(path)), header)
    known, found = forms.terms()["splits"], dict[str, list[Path]]()
    for file in sorted(path.iterdir()):
        bare = _bare(file.name)
        word = re.split("[-_.]", bare.stem.lower())[0]
        if word in known and (bare.suffix.lower() in _ENDINGS or file.is_dir()):
            found.setdefault(split_name(word), []).append(file)
    tables = dict[str, tabular.Table]()
    for split, parts in found.items():
        whole = [file for file in parts if _bare(file.name).stem.lower() in known]
        if len(parts := whole or parts) > 1 and not all("-of-" in file.name for file in parts):
            both = ", ".join(file.name for file in parts)
            what = f"two files for the split {split!r} in {path}: {both}"
            raise DataError(what, hint="name one of the files instead of the folder")
        read = [
            files.read_texts(part) if part.is_dir() else _one(_read_file(part, header), str(part))
            for part in parts
        ]
        tables[split] = replace(read[0], rows=tuple(row for table in read for row in table.rows))
    if tables:
        return tables
    if (path / "data").is_dir():
        return _read_folder(path / "data", header)
    texts = files.read_texts(path)
    if not texts.rows:
        what = f"no train, val or test file in {path}"
        raise DataError(what, hint=f"name the data file in {path} itself")
    return texts


def _one(tables: files.Tables, where: str) -> tabular.Table:
    if isinstance(tables, tabular.Table):
        return tables
    raise DataError(f"{where} already holds several splits", hint="name only that file")


def _read_splits(source: Mapping[object, object], header: bool | None) -> dict[str, tabular.Table]:
    tables = dict[str, tabular.Table]()
    for key, part in source.items():
        split = split_name(key, "the mapping of splits")
        if split in tables:
            raise DataError(f"the split {split!r} is given twice", hint="keep one of them")
        if isinstance(part, str | os.PathLike):
            path = Path(cast("str | os.PathLike[str]", part))
            tables[split] = _one(_read_file(path, header), str(path))
        else:
            tables[split] = _read_object(part, split)
    if not tables:
        raise DataError("the mapping of splits is empty", hint="pass at least 'train'")
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
        hint = "pass a path, a list of dicts, a pandas DataFrame or a datasets.Dataset"
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
