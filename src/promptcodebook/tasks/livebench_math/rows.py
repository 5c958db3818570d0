"""Reading LiveBench-Math's rows."""

from __future__ import annotations

import re
from pathlib import Path

from promptcodebook.data import Dataset, Split
from promptcodebook.errors import DataError
from promptcodebook.tasks.home import jsonl_splits, unique_ids
from promptcodebook.tasks.livebench_math.score import kind_of
from promptcodebook.types import Example

__all__ = ["read_dataset"]

_FIELDS = {"question_id": str, "task": str, "subtask": str, "question": str, "ground_truth": str}
_GOLD = {
    "choice": (re.compile(r"[A-E]"), "one letter from A to E"),
    "aime": (re.compile(r"[0-9]{3}"), "three digits"),
    "rearrangement": (
        re.compile(r"\s*\d{1,4}\s*(?:,\s*\d{1,4}\s*){0,199}"),
        "a list of at most 200 expression numbers, separated by commas",
    ),
    "amps": (re.compile(r".*\S.*", re.DOTALL), "LaTeX"),
}


def read_dataset(folder: Path) -> Dataset:
    """The three splits; a question may occur in several, as it does in the public data.

    DataError with file and line for a missing field, an unknown subtask or a gold answer that is
    not of its subtask's form.
    """
    splits: dict[Split, tuple[Example, ...]] = {
        split: tuple(_example(row) for row in rows)
        for split, rows in jsonl_splits(folder, _FIELDS).items()
    }
    unique_ids(splits)
    return Dataset(splits["train"], splits["val"], splits["test"], "livebench_math", "question")


def _example(row: dict[str, object]) -> Example:
    where = str(row["_where"])
    gold, subtask = str(row["ground_truth"]), str(row["subtask"])
    try:
        form, said = _GOLD[kind_of(subtask)]
    except DataError as error:
        raise DataError(f"{where}: {error}", hint=error.hint) from None
    if not form.fullmatch(gold):
        raise DataError(
            f"{where}: the ground_truth of a {subtask} row must be {said}",
            hint="correct it in the data file",
        )
    if not str(row["question"]).strip():
        raise DataError(f"{where}: the field 'question' is empty", hint="correct that line")
    return Example(
        id=str(row["question_id"]),
        input=str(row["question"]),
        target=gold,
        fields={"task": row["task"], "subtask": subtask},
    )
