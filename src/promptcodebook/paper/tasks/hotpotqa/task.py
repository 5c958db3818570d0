"""`hotpotqa`: questions whose answer takes two pages of an encyclopedia, found by search. Two hops
of retrieval, 7 passages each: search(question) -> summarize1 -> query2, search -> summarize2 ->
answer. Hops and field names are the GEPA artifact's. docs/tasks/hotpotqa.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr

from promptcodebook.calls import Chat
from promptcodebook.paper.tasks import retrieval
from promptcodebook.paper.tasks.hotpotqa.score import reward
from promptcodebook.tasks.home import BenchmarkRow, Filled, home_of, read_dataset, read_texts
from promptcodebook.tasks.program import read_modules
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt

PASSAGES = 7  # wanted from each hop

_FOLDER = Path(__file__).parent
MODULES = read_modules(_FOLDER)


class HotpotProgram(retrieval.HopProgram):
    """The program; y is the answer."""

    name = "hotpotqa"
    stages = tuple(MODULES)

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        hops = retrieval.Hops(lm, prompt, {"question": example.input}, MODULES, self.search)
        first = await hops.find(example.input, PASSAGES)
        summary1 = await hops.module("summarize1", passages=first)
        query2 = await hops.module("query2", summary_1=summary1)
        second = await hops.find(query2, PASSAGES)
        summary2 = await hops.module("summarize2", context=summary1, passages=second)
        answer = await hops.module("answer", summary_1=summary1, summary_2=summary2)
        return hops.output(answer)


class HotpotRow(BenchmarkRow):
    """A question; `supporting_facts` are pairs [title, number of the sentence, from 0]."""

    input_column = "question"
    id: Filled
    question: Filled
    answer: Filled
    gold_titles: Annotated[list[Filled], Field(min_length=1)]
    # Not strict, for a list is a pair as well; what is in it is.
    supporting_facts: list[Annotated[tuple[StrictStr, StrictInt], Field(strict=False)]]
    type: object = None
    level: object = None

    def example(self, retriever: retrieval.Retriever) -> Example:
        """`facts`: the supporting sentences that the corpus has (the public data has slips)."""
        facts = list[str]()
        for title, number in self.supporting_facts:
            page = retriever.page(title)
            if page is not None and 0 <= number < len(page.sentences):
                facts.append(f"{title} | {page.sentences[number]}")
        fields = {
            "gold_titles": list(dict.fromkeys(self.gold_titles)),
            "facts": facts,
            "type": str(self.type or ""),
            "level": str(self.level or ""),
        }
        return Example(self.id, self.question, self.answer, fields=fields)


def load_hotpotqa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hotpotqa/), else as `home_of` finds it."""
    home = home_of("hotpotqa", data_dir)
    # The package's own folder is not ours to write to, and its few pages are indexed at once.
    keep = home.folder != _FOLDER / "examples"
    retriever = retrieval.open_retriever(retrieval.corpus_of("hotpotqa", home.folder), keep=keep)
    return Task(
        name="hotpotqa",
        dataset=read_dataset(home, "hotpotqa", HotpotRow, lambda row: row.example(retriever)),
        reward=asks_nobody(reward),
        program=HotpotProgram(retrieval.Search(retriever)),
        **read_texts(_FOLDER, pages=len(retriever), origin=home.origin),
    )
