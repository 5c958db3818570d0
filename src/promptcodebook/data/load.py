"""`pco.load`: any source -> a Dataset whose splits are whole, distinct and named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcodebook.data.columns import Columns, read_examples
from promptcodebook.data.dataset import SPLITS, Dataset, Split, split_name
from promptcodebook.data.leakage import Leak, leaks
from promptcodebook.data.sources import read_source
from promptcodebook.data.splits import Fractions, checked_fractions, completed, drawn
from promptcodebook.data.table import Table
from promptcodebook.errors import DataError
from promptcodebook.types import Example

if TYPE_CHECKING:  # pydantic stays out of `import promptcodebook`
    from promptcodebook.config import DataSettings

__all__ = ["load", "load_settings"]


@dataclass(frozen=True, slots=True)
class _Draw:
    """How splits that are not given are drawn."""

    fractions: Fractions
    seed: int


def load(  # noqa: PLR0913 - the public face: keywords read better than an options object
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
) -> Dataset:
    """Reads data into train, val and test; DataError says what is wrong, where, and what to do.

    `source`: a path (jsonl, json, csv, tsv, parquet, or a folder of train/val/test files), a list
    of dicts, a pandas DataFrame, a Hugging Face Dataset or DatasetDict, or a mapping
    {"train": ..., "val": ..., "test": ...} of any of those. `input`: a column, or a template over
    several such as '{title}\\n{body}'; `messages`: a column of chat messages instead.
    `target=None`: there are no references. `split` names a column of given splits; splits that are
    not given are drawn with `seed` by `fractions`. An input in two splits is an error unless
    `allow_overlap`.
    """
    columns = Columns(input, target, messages or None, id or None, split or None)
    dataset = _read(source, columns, _Draw(checked_fractions(fractions), seed), name)
    if not allow_overlap:
        found = leaks(dataset)
        if found:
            raise _overlap(dataset.name, found)
    return dataset


def load_settings(settings: DataSettings, base: Path, *, allow_overlap: bool = False) -> Dataset:
    """The user's data as the configuration names it; relative paths start at `base`."""
    given = {split: getattr(settings, split) for split in SPLITS if getattr(settings, split)}
    if settings.path and given:
        raise DataError(
            f"data.path and data.{next(iter(given))} are both set",
            hint="keep data.path alone, or data.train, data.val and data.test",
        )
    if not settings.path and not given:
        raise DataError("no data is named", hint='write path = "data.jsonl" under [data]')
    source: object = base / settings.path
    if given:
        source = {split: base / str(path) for split, path in given.items()}
    return load(
        source,
        input=settings.input,
        target=settings.target or None,
        messages=settings.messages,
        id=settings.id,
        split=settings.split,
        fractions=settings.fractions,
        seed=settings.split_seed,
        allow_overlap=allow_overlap,
    )


def _read(source: object, columns: Columns, draw: _Draw, name: str | None) -> Dataset:
    tables = read_source(source)
    if isinstance(tables, Table):
        title = name or Path(tables.name).stem
        splits = _from_one(tables, columns, draw)
    else:
        title = name or _title(source)
        splits = _from_splits(tables, columns, draw, title)
    return Dataset(splits["train"], splits["val"], splits["test"], title, columns.input)


def _title(source: object) -> str:
    return Path(source).name if isinstance(source, str | os.PathLike) else "data"  # pyright: ignore[reportUnknownArgumentType]


def _from_one(table: Table, columns: Columns, draw: _Draw) -> dict[Split, tuple[Example, ...]]:
    if not table.rows:
        raise DataError(f"{table.name} is empty", hint="give it at least three examples")
    examples = read_examples(table, columns, {})
    if columns.split is None:
        shares = dict(zip(SPLITS, draw.fractions, strict=True))
        return drawn(examples, shares, draw.seed, table.name)
    given = dict[Split, list[Example]]()
    for row, example in zip(table.rows, examples, strict=True):
        split = split_name(row.values.get(columns.split), row.where)
        given.setdefault(split, []).append(example)
    whole: dict[Split, tuple[Example, ...]] = {s: tuple(part) for s, part in given.items()}
    return completed(whole, draw.fractions, draw.seed, table.name)


def _from_splits(
    tables: Mapping[Split, Table], columns: Columns, draw: _Draw, title: str
) -> dict[Split, tuple[Example, ...]]:
    if columns.split is not None:
        raise DataError(
            f"split={columns.split!r} names a column, but the splits are separate sources",
            hint="leave split out",
        )
    seen = dict[str, str]()
    given = dict[Split, tuple[Example, ...]]()
    for split in SPLITS:  # whatever their order in the source, so that ids do not depend on it
        if split in tables:
            table = tables[split]
            given[split] = read_examples(table, columns, seen) if table.rows else ()
    return completed(given, draw.fractions, draw.seed, title)


def _overlap(name: str, found: list[Leak]) -> DataError:
    shown = "; ".join(
        f"{leak.ids[0]} ({leak.splits[0]}) = {leak.ids[1]} ({leak.splits[1]})" for leak in found[:5]
    )
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return DataError(
        f"{name}: {len(found)} inputs stand in two splits: {shown}{more}",
        hint="remove them from one split, or let the splits be drawn",
    )
