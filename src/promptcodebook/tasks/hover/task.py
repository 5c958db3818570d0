"""`hover`: is a claim that spans several Wikipedia pages supported? Find the pages, then decide.

The folder holds corpus.jsonl and either train.jsonl, val.jsonl and test.jsonl or the official
claims file (then split as in the paper); docs/tasks/hover.md names the fields. A row holds uid,
claim, label and gold_titles. Without gold_titles, the distinct titles of its supporting_facts
([[title, sentence], ...]) count, as in the official file.

The program makes three hops of retrieval (7, 7 and 10 passages): search(claim) -> summarize1 ->
query2, search -> summarize2 -> query3, search -> verify. The five named stages are chain-of-thought
modules. Hops and field names are those of the GEPA artifact; we added `verify`, because our metric
needs the label too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar, cast

from pydantic import ConfigDict, model_validator

from promptcodebook.calls import Chat, Role
from promptcodebook.data import SPLITS, Dataset, Split
from promptcodebook.data.dataset import split_name
from promptcodebook.data.table import read_json
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.home import (
    BenchmarkRow,
    check_row,
    home_of,
    jsonl_splits,
    read_rows,
    read_seeds,
    unique_ids,
)
from promptcodebook.tasks.hover.score import gold_titles, parse_label, reward
from promptcodebook.tasks.retrieval import (
    Hops,
    Search,
    SearchFunction,
    open_retriever,
    read_modules,
)
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt

T = TypeVar("T")
HOPS: tuple[int, int, int] = (7, 7, 10)
"""Passages wanted from each hop; at most 24 in all."""

MODULES = read_modules(Path(__file__).parent)
STAGES: tuple[str, ...] = tuple(MODULES)


class HoverProgram:
    """The program. `stages` names its modules, so that each may have a prompt of its own. y is the
    label (as written where it is neither); its field `retrieved` holds the titles found, hop by
    hop."""

    name = "hover"
    stages = STAGES
    roles: frozenset[Role] = frozenset()

    def __init__(self, search: SearchFunction) -> None:
        self._search = search

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One claim through all hops. Errors of chat and search."""
        hops = Hops(lm, prompt, {"claim": example.input}, MODULES, self._search)
        first = await hops.search(example.input, HOPS[0])
        summary1 = await hops.module("summarize1", passages=first)
        query2 = await hops.module("query2", summary_1=summary1)
        second = await hops.search(query2, HOPS[1])
        summary2 = await hops.module("summarize2", context=summary1, passages=second)
        known = {"summary_1": summary1, "summary_2": summary2}
        query3 = await hops.module("query3", **known)
        third = await hops.search(query3, HOPS[2])
        label = await hops.module("verify", **known, passages=third)
        return hops.output(parse_label(label) or label)


OFFICIAL = "hover_train_release_v1.1.json"
"""The official training claims, as their repository names the file."""

_WORTH_KEEPING = 1_000_000
"""From this size (bytes) the index of a corpus is saved; a smaller one is built in an instant."""


class ClaimRow(BenchmarkRow):
    """A claim; its other columns are kept for the example."""

    model_config = ConfigDict(extra="allow")

    uid: str
    claim: str
    label: str
    gold_titles: object = None
    supporting_facts: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.claim.strip() or not self.uid.strip():
            raise DataError("the uid or the claim is empty", hint="fill it in")
        if parse_label(self.label) is None:
            raise DataError(
                f"the label {self.label!r} is neither SUPPORTED nor NOT_SUPPORTED",
                hint="correct that line",
            )
        titles = self._titles()
        if not titles or not all(isinstance(t, str) and t.strip() for t in titles):
            name = "supporting_facts" if self.gold_titles is None else "gold_titles"
            raise DataError(
                f"{name} names no gold pages",
                hint='write "gold_titles": ["Title", ...], spelled as in corpus.jsonl',
            )
        return self

    def _titles(self) -> list[object]:
        given = self.gold_titles
        if given is not None:
            return cast("list[object]", given) if isinstance(given, list) else []
        facts = self.supporting_facts
        pairs = cast("list[object]", facts) if isinstance(facts, list) else []
        return [cast("list[object]", p)[0] if isinstance(p, list) and p else None for p in pairs]

    def example(self) -> Example:
        """The claim with all of the row's columns, and its distinct gold titles."""
        gold = list(dict.fromkeys(cast("list[str]", self._titles())))
        label = parse_label(self.label)
        columns = {**self.model_dump(exclude_unset=True), "gold_titles": gold}
        return Example(self.uid, self.claim, label, fields=columns)


class _SpareRow(ClaimRow):
    """Of claims_without_text.jsonl: it joins where the corpus holds its pages."""

    split: str


def load_hover(data_dir: Path | None = None, cache_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hover/), else on our own few claims.
    TaskError for a missing file, DataError with file and line for a malformed one, MissingExtra
    without the retrieval libraries."""
    folder, origin, parts = _claims(data_dir, cache_dir)
    corpus = folder / "corpus.jsonl"
    if not corpus.is_file():
        raise TaskError(
            f"the task hover needs {corpus}, which is missing",
            hint='put the pages there, one a line: {"title": "...", "sentences": ["...", ...]}',
        )
    keep = corpus.stat().st_size >= _WORTH_KEEPING
    retriever = open_retriever(corpus, cache_dir=cache_dir, keep=keep)

    def lacks_pages(claim: Example) -> bool:
        return any(retriever.page(title) is None for title in gold_titles(claim))

    spare = folder / "claims_without_text.jsonl"
    for where, row in read_rows(spare, _SpareRow) if spare.is_file() else ():
        split, claim = split_name(row.split, where), row.example()
        if not lacks_pages(claim):
            parts[split].append(claim)
    unique_ids(parts)
    dataset = Dataset(*(tuple(parts[s]) for s in SPLITS), name="hover", input="claim")
    lost = sum(lacks_pages(claim) for part in parts.values() for claim in part)
    said = f" {lost} of the {len(dataset)} claims rest on pages that the corpus does not hold "
    unwinnable = said + "under the titles given." if lost else ""
    return Task(
        name="hover",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=HoverProgram(Search(retriever)),
        seeds=read_seeds(Path(__file__).parent),
        zero_shot="Check the claim: find the pages it rests on, hop by hop, and decide whether "
        "they support it.",
        description="Claims that span several Wikipedia pages, to be retrieved in three hops "
        f"and labelled; {len(retriever)} pages. Data: {origin}.{unwinnable}",
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
            rows = read_json(folder / OFFICIAL).rows
            claims = [read_claim(row.values, row.where) for row in rows]
            parts: dict[Split, list[Example]] = paper_splits(claims)
            break
    else:
        home = home_of("hover", data_dir, cache_dir)
        folder, origin = home.folder, home.origin
        rows_of = jsonl_splits(folder, ClaimRow)
        parts = {split: [row.example() for _, row in rows_of[split]] for split in SPLITS}
    for split in SPLITS:
        if not parts[split]:
            raise DataError(f"{folder}: no claims for {split}", hint="each split needs some")
    return folder, origin, parts


def read_claim(row: Mapping[str, object], where: str) -> Example:
    """One row as an Example; DataError naming `where`."""
    return check_row(row, where, ClaimRow).example()


def paper_splits(claims: Sequence[Example]) -> dict[Split, list[Example]]:
    """Those with exactly three gold pages, shuffled with seed 0, by `split_pool`."""
    pool = [c for c in claims if len(cast("Sequence[str]", c.fields["gold_titles"])) == 3]
    # The protocol is stated in terms of Python's own generator.
    random.Random(0).shuffle(pool)
    return split_pool(pool)


def split_pool(pool: Sequence[T]) -> dict[Split, list[T]]:
    """The protocol of HotpotQA and HoVer: the first 40 % test, the next 40 % val, the rest train;
    each cut to 300, 300 and 150 by a sample with seed 1."""
    first, second = len(pool) * 40 // 100, len(pool) * 80 // 100
    parts: dict[Split, tuple[Sequence[T], int]] = {
        "train": (pool[second:], 150),
        "val": (pool[first:second], 300),
        "test": (pool[:first], 300),
    }
    return {
        split: list(part) if len(part) <= most else random.Random(1).sample(list(part), most)
        for split, (part, most) in parts.items()
    }
