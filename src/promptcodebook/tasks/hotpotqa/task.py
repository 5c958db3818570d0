"""`hotpotqa`: questions whose answer takes two pages of an encyclopedia, found by search.

Reward: exact match of the answer. The folder holds train.jsonl, val.jsonl and test.jsonl with the
fields id, question, answer, gold_titles and supporting_facts, and corpus.jsonl with title and
sentences.

The program makes two hops of retrieval, with 7 passages each: search(question) -> summarize1 ->
query2, search -> summarize2 -> answer. The four named stages are chain-of-thought modules; hops and
field names are those of the GEPA artifact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self, cast

from pydantic import model_validator

from promptcodebook.calls import Chat, Role
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.home import BenchmarkRow, blank_fields, home_of, read_dataset, read_seeds
from promptcodebook.tasks.hotpotqa.score import reward
from promptcodebook.tasks.retrieval import (
    Hops,
    Retriever,
    Search,
    SearchFunction,
    open_retriever,
    read_modules,
)
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt

PASSAGES = 7
"""Passages wanted from each hop."""

_FOLDER = Path(__file__).parent
MODULES = read_modules(_FOLDER)
STAGES: tuple[str, ...] = tuple(MODULES)


class HotpotProgram:
    """The program. `stages` names its modules, so that each may have a prompt of its own. y is the
    answer; its field `retrieved` holds the titles found, hop by hop."""

    name = "hotpotqa"
    stages = STAGES
    roles: frozenset[Role] = frozenset()

    def __init__(self, search: SearchFunction) -> None:
        self._search = search

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One question through both hops. Errors of chat and search."""
        hops = Hops(lm, prompt, {"question": example.input}, MODULES, self._search)
        first = await hops.search(example.input, PASSAGES)
        summary1 = await hops.module("summarize1", passages=first)
        query2 = await hops.module("query2", summary_1=summary1)
        second = await hops.search(query2, PASSAGES)
        summary2 = await hops.module("summarize2", context=summary1, passages=second)
        answer = await hops.module("answer", summary_1=summary1, summary_2=summary2)
        return hops.output(answer)


class HotpotRow(BenchmarkRow):
    """A question; `supporting_facts` are pairs [title, number of the sentence, from 0]."""

    input_column = "question"
    id: str
    question: str
    answer: str
    gold_titles: list[object]
    supporting_facts: list[object]
    type: object = None
    level: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        blank_fields(self, "id", "question", "answer")
        hint, titles = "correct that line", self.gold_titles
        if not titles or not all(isinstance(title, str) and title.strip() for title in titles):
            raise DataError(
                "the field 'gold_titles' must be a list of titles, at least one", hint=hint
            )
        for fact in self.supporting_facts:
            pair = cast("list[object]", fact) if isinstance(fact, list) else []
            if list(map(type, pair)) != [str, int]:
                raise DataError(
                    "the field 'supporting_facts' must hold pairs [title, number]", hint=hint
                )
        return self

    def example(self, retriever: Retriever) -> Example:
        """`fields`: `gold_titles`, and `facts` = the supporting sentences as "TITLE | sentence", as
        far as the corpus has them (the public data has slips)."""
        facts = list[str]()
        for title, number in cast("list[tuple[str, int]]", self.supporting_facts):
            page = retriever.page(title)
            if page is not None and 0 <= number < len(page.sentences):
                facts.append(f"{title} | {page.sentences[number]}")
        fields = {
            "gold_titles": list(dict.fromkeys(cast("list[str]", self.gold_titles))),
            "facts": facts,
            "type": str(self.type or ""),
            "level": str(self.level or ""),
        }
        return Example(self.id, self.question, self.answer, fields=fields)


def load_hotpotqa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hotpotqa/), else on the fetched copy, else
    on our own few examples. TaskError or DataError name what is missing or wrong; MissingExtra
    without bm25s and PyStemmer. The first use of a corpus indexes it."""
    home = home_of("hotpotqa", data_dir)
    corpus = home.folder / "corpus.jsonl"
    if not corpus.is_file():
        raise TaskError(
            f"the task hotpotqa needs {corpus}, which is missing",
            hint='one page a line: {"title": "...", "sentences": ["...", "..."]}',
        )
    # The package's own folder is not ours to write to, and its few pages are indexed at once.
    retriever = open_retriever(corpus, keep=home.folder != _FOLDER / "examples")
    return Task(
        name="hotpotqa",
        dataset=read_dataset(
            "hotpotqa", home.folder, HotpotRow, lambda row: row.example(retriever)
        ),
        reward=asks_nobody(reward),
        program=HotpotProgram(Search(retriever)),
        seeds=read_seeds(_FOLDER),
        zero_shot="Find what the question needs and answer it with the bare answer.",
        description="Questions that take two pages of an encyclopedia, found in two searches over "
        f"{len(retriever):,} pages; the reward is exact match of the answer. Data: {home.origin}.",
        output_format="Whatever the stage asks for: a summary, a short search query, or the bare "
        "answer (a name, a date, a number, yes or no) without a sentence around it.",
    )
