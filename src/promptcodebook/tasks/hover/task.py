"""`hover`: is a claim that spans several Wikipedia pages supported? Find the pages, then decide.

The folder handed in holds corpus.jsonl and either train.jsonl, val.jsonl and test.jsonl or the
official claims file; docs/tasks/hover.md says which fields. Without a folder the few claims of
our own, with a corpus of invented pages, stand in. The executor's output is the JSON of `Found`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from promptcodebook.data import SPLITS, Dataset, Split
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of, unique_ids
from promptcodebook.tasks.hover.claims import OFFICIAL, read_claims, read_official, read_spare
from promptcodebook.tasks.hover.pipeline import HoverProgram
from promptcodebook.tasks.hover.reward import gold_titles, reward
from promptcodebook.tasks.hover.seeds import SEEDS
from promptcodebook.tasks.retrieval import Retriever, Search, open_retriever
from promptcodebook.types import Example

__all__ = ["load_hover"]

_WORTH_KEEPING = 1_000_000
"""Bytes of corpus from which on its index is saved; a smaller one is built in an instant."""


def load_hover(data_dir: Path | None = None, cache_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hover/), else on our own few claims.

    TaskError for a missing file, DataError with file and line for a malformed one, MissingExtra
    without the retrieval libraries.
    """
    folder, origin, parts = _claims(data_dir, cache_dir)
    corpus = folder / "corpus.jsonl"
    if not corpus.is_file():
        raise TaskError(
            f"the task hover needs {corpus}, which is missing",
            hint='put the pages there, one a line: {"title": "...", "sentences": ["...", ...]}',
        )
    keep = corpus.stat().st_size >= _WORTH_KEEPING
    retriever = open_retriever(corpus, cache_dir=cache_dir, keep=keep)
    for split, claim in read_spare(folder):
        if not _lacks(retriever, claim):
            parts[split].append(claim)
    unique_ids(parts)
    dataset = Dataset(*(tuple(parts[s]) for s in SPLITS), name="hover", input="claim")
    return Task(
        name="hover",
        dataset=dataset,
        reward=reward,
        executor=HoverProgram(Search(retriever)),
        seeds=SEEDS,
        zero_shot="Check the claim: find the pages it rests on, hop by hop, and decide whether "
        "they support it.",
        description="Claims that span several Wikipedia pages, to be retrieved in three hops "
        f"and labelled; {len(retriever)} pages. Data: {origin}.{_unwinnable(retriever, parts)}",
        output_format="Each stage is told what to give: a summary, a search query, and at last "
        "the label SUPPORTED or NOT_SUPPORTED.",
    )


def _claims(
    data_dir: Path | None, cache_dir: Path | None
) -> tuple[Path, str, dict[Split, list[Example]]]:
    """The folder, where its data is from, and the claims by split."""
    for folder in () if data_dir is None else (data_dir / "hover", data_dir):
        whole = any((folder / f"{split}.jsonl").is_file() for split in SPLITS)
        if not whole and (folder / OFFICIAL).is_file():
            origin = f"{OFFICIAL} of the data folder that was given, split as the paper does"
            return folder, origin, _filled(folder, read_official(folder / OFFICIAL))
    home = home_of("hover", data_dir, cache_dir)
    return home.folder, home.origin, _filled(home.folder, read_claims(home.folder))


def _filled(folder: Path, parts: dict[Split, list[Example]]) -> dict[Split, list[Example]]:
    for split in SPLITS:
        if not parts[split]:
            raise DataError(f"{folder}: no claims for {split}", hint="each split needs some")
    return parts


def _lacks(retriever: Retriever, claim: Example) -> bool:
    return any(retriever.page(title) is None for title in gold_titles(claim))


def _unwinnable(retriever: Retriever, parts: Mapping[Split, Sequence[Example]]) -> str:
    claims = [claim for part in parts.values() for claim in part]
    count = sum(_lacks(retriever, claim) for claim in claims)
    if not count:
        return ""
    return (
        f" {count} of the {len(claims)} claims rest on pages that the corpus does not hold under "
        "the titles given."
    )
