"""Reading HotpotQA's rows, and the supporting sentences out of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from promptcodebook.data import Dataset, Split
from promptcodebook.errors import DataError
from promptcodebook.tasks.home import jsonl_splits, unique_ids
from promptcodebook.tasks.retrieval import Retriever
from promptcodebook.types import Example

__all__ = ["read_dataset"]

_FIELDS: Mapping[str, type] = {
    "id": str,
    "question": str,
    "answer": str,
    "gold_titles": list,
    "supporting_facts": list,
}


def read_dataset(folder: Path, retriever: Retriever) -> Dataset:
    """The three splits. `fields` of an example: `gold_titles`, and `facts` = its supporting
    sentences as "TITLE | sentence", as far as the corpus has them.

    DataError with file, line and field for a row that is not as it must be.
    """
    splits: dict[Split, tuple[Example, ...]] = {}
    for split, rows in jsonl_splits(folder, _FIELDS).items():
        if not rows:
            raise DataError(f"{folder / f'{split}.jsonl'} holds no rows", hint="--data DIR")
        splits[split] = tuple(_example(row, retriever) for row in rows)
    unique_ids(splits)
    return Dataset(**splits, name="hotpotqa", input="question")


def _example(row: Mapping[str, object], retriever: Retriever) -> Example:
    where = str(row["_where"])
    for field in ("id", "question", "answer"):
        if not str(row[field]).strip():
            raise _wrong(where, f"the field '{field}' is empty")
    titles = cast("list[object]", row["gold_titles"])
    if not titles or not all(isinstance(title, str) and title.strip() for title in titles):
        raise _wrong(where, "the field 'gold_titles' must be a list of titles, at least one")
    facts = [
        _fact(fact, where, retriever) for fact in cast("list[object]", row["supporting_facts"])
    ]
    return Example(
        id=str(row["id"]),
        input=str(row["question"]),
        target=str(row["answer"]),
        fields={
            "gold_titles": list(dict.fromkeys(cast("list[str]", titles))),
            "facts": [fact for fact in facts if fact],
            "type": str(row.get("type") or ""),
            "level": str(row.get("level") or ""),
        },
    )


def _fact(fact: object, where: str, retriever: Retriever) -> str:
    """The supporting sentence; "" where the corpus lacks it (the public data has such slips)."""
    pair = cast("list[object]", fact) if isinstance(fact, list) else []
    match pair:
        case [str(title), int(number)] if not isinstance(number, bool):
            page = retriever.page(title)
            if page is None or not 0 <= number < len(page.sentences):
                return ""
            return f"{title} | {page.sentences[number]}"
        case _:
            raise _wrong(where, "the field 'supporting_facts' must hold pairs [title, number]")


def _wrong(where: str, what: str) -> DataError:
    return DataError(f"{where}: {what}", hint="correct that line")
