"""`hover`: is a claim that spans several Wikipedia pages supported? Find the pages, then decide.
Three hops of retrieval (7, 7 and 10 passages): search(claim) -> summarize1 -> query2, search ->
summarize2 -> query3, search -> verify. Hops and field names are the GEPA artifact's; we added
`verify`, because our metric needs the label too. docs/tasks/hover.md names the files and fields."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import ConfigDict, Field, model_validator

from promptcodebook.calls import Chat
from promptcodebook.data import SPLITS, Dataset, Split
from promptcodebook.data.dataset import split_name
from promptcodebook.errors import DataError
from promptcodebook.paper.tasks.hover.score import gold_titles, parse_label, reward
from promptcodebook.paper.tasks.retrieval import HopProgram, Hops, Search, corpus_of, open_retriever
from promptcodebook.tasks import home as homes
from promptcodebook.tasks.program import read_modules
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt

T = TypeVar("T")
HOPS: tuple[int, int, int] = (7, 7, 10)  # passages wanted from each hop; at most 24 in all

_FOLDER = Path(__file__).parent
MODULES = read_modules(_FOLDER)


class HoverProgram(HopProgram):
    """The program; y is the label (as written where it is neither)."""

    name = "hover"
    stages = tuple(MODULES)

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        hops = Hops(lm, prompt, {"claim": example.input}, MODULES, self.search)
        first = await hops.find(example.input, HOPS[0])
        summary1 = await hops.module("summarize1", passages=first)
        query2 = await hops.module("query2", summary_1=summary1)
        second = await hops.find(query2, HOPS[1])
        summary2 = await hops.module("summarize2", context=summary1, passages=second)
        known = {"summary_1": summary1, "summary_2": summary2}
        query3 = await hops.module("query3", **known)
        third = await hops.find(query3, HOPS[2])
        label = await hops.module("verify", **known, passages=third)
        return hops.output(parse_label(label) or label)


_WORTH_KEEPING = 1_000_000  # bytes of a corpus; a smaller index is built in an instant


SupportingFact = Annotated[tuple[homes.Filled, object], Field(strict=False)]


class ClaimRow(homes.BenchmarkRow):
    """A claim; its other columns are kept for the example."""

    model_config = ConfigDict(extra="allow")

    uid: homes.Filled
    claim: homes.Filled
    label: str
    gold_titles: list[homes.Filled] | None = None
    # Not strict, for a list is a pair as well.
    supporting_facts: list[SupportingFact] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if parse_label(self.label) is None:
            message = f"the label {self.label!r} is neither SUPPORTED nor NOT_SUPPORTED"
            raise DataError(message, hint="correct that line")
        if not self._titles():
            name = "supporting_facts" if self.gold_titles is None else "gold_titles"
            hint = 'write "gold_titles": ["Title", ...], spelled as in corpus.jsonl'
            raise DataError(f"{name} lists no gold pages", hint=hint)
        return self

    def _titles(self) -> list[str]:
        if self.gold_titles is not None:
            return list(dict.fromkeys(self.gold_titles))
        return list(dict.fromkeys(title for title, _ in self.supporting_facts or ()))

    def example(self) -> Example:
        """The claim with all of the row's columns, and its distinct gold titles."""
        columns = self.model_dump(mode="json", exclude_unset=True)
        columns["gold_titles"] = self._titles()
        return Example(self.uid, self.claim, parse_label(self.label), fields=columns)


class _SpareRow(ClaimRow):
    """Of claims_without_text.jsonl: it joins where the corpus holds its pages."""

    split: str


def load_hover(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hover/), else where `home_of` finds it."""
    home = homes.home_of(_FOLDER, data_dir)
    read = homes.jsonl_splits(home.folder, ClaimRow)
    parts: dict[Split, list[Example]] = {
        split: [row.example() for _, row in rows] for split, rows in read.items()
    }
    corpus = corpus_of("hover", home.folder)
    retriever = open_retriever(corpus, keep=corpus.stat().st_size >= _WORTH_KEEPING)

    def lacks_pages(claim: Example) -> bool:
        return any(retriever.page(title) is None for title in gold_titles(claim))

    spare = home.folder / "claims_without_text.jsonl"
    for where, row in homes.read_rows(spare, _SpareRow) if spare.is_file() else ():
        split, claim = split_name(row.split, where), row.example()
        if not lacks_pages(claim):
            parts[split].append(claim)
    homes.unique_ids(parts)
    dataset = Dataset(*(tuple(parts[s]) for s in SPLITS), name="hover", input="claim")
    lost = sum(lacks_pages(claim) for part in parts.values() for claim in part)
    unwinnable = f" {lost} of the {len(dataset)} claims need pages whose titles the corpus lacks."
    facts = {
        "pages": len(retriever),
        "origin": home.origin,
        "unwinnable": unwinnable if lost else "",
    }
    return Task(
        name="hover",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=HoverProgram(Search(retriever)),
        **homes.read_texts(_FOLDER, **facts),
    )


def paper_splits(claims: Sequence[Example]) -> dict[Split, list[Example]]:
    """Those with exactly three gold pages, shuffled with seed 0, by `split_pool`."""
    pool = [claim for claim in claims if len(gold_titles(claim)) == 3]
    # The protocol is stated in terms of Python's own generator.
    random.Random(0).shuffle(pool)
    return split_pool(pool)


def split_pool(pool: Sequence[T]) -> dict[Split, list[T]]:
    """The protocol of HotpotQA and HoVer: 40 % test, 40 % val, 20 % train, each cut by a sample."""
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
