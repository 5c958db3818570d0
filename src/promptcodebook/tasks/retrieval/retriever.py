"""Queries in, passages out: BM25 over one corpus, and the programs that search in several hops.

A `Retriever` searches. A `Search` does so off the event loop, batched and memoised. `Hops` runs a
program's modules between searches; `describe_hops` says for the critic what they found.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

from promptcodebook.calls import Chat
from promptcodebook.tasks.program import ModuleReply, make_output, think
from promptcodebook.tasks.retrieval.index import (
    Index,
    Page,
    build_index,
    index_folder,
    load_index,
    parse_page,
    passage_of,
    retrieval_library,
    save_index,
    title_key,
    title_of,
    words_of,
)
from promptcodebook.text import answer_words, quote
from promptcodebook.types import Output, Prompt

_LOG = logging.getLogger(__name__)


def open_retriever(corpus: Path, *, cache_dir: Path | None = None, keep: bool = True) -> Retriever:
    """A retriever over the corpus file; its index is opened where it is saved, else built.

    `keep=False` neither reads nor writes a saved index (for a corpus of a few pages). DataError
    for a corpus that cannot be read or holds nothing, MissingExtra without bm25s and PyStemmer.
    """
    if not keep:
        return Retriever(corpus, build_index(corpus))
    folder = index_folder(corpus, cache_dir)
    index = load_index(corpus, folder)
    if index is None:
        index = build_index(corpus)
        try:
            save_index(index, corpus, folder)
            # What was just saved, mapped: the arrays in memory can go.
            index = load_index(corpus, folder) or index
        except OSError as error:
            _LOG.warning("the index of %s could not be saved in %s: %s", corpus, folder, error)
    return Retriever(corpus, index)


class Retriever:
    """The k best pages of each query. Safe to share between threads; one searches at a time."""

    def __init__(self, corpus: Path, index: Index) -> None:
        self.corpus = corpus
        self._index = index
        self._lock = Lock()
        with corpus.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the corpus file."""
        return self._index.digest

    def search(self, query: str, k: int) -> list[str]:
        """At most k passages, best first, equal scores in corpus order.

        A page that shares no word with the query is never returned, so fewer than k may come.
        """
        return self.passages(self.rank([query], k)[0])

    def search_many(self, queries: Sequence[str], k: int) -> list[list[str]]:
        """`search` for each query."""
        return [self.passages(ranked) for ranked in self.rank(queries, k)]

    def rank(self, queries: Sequence[str], k: int) -> list[tuple[int, ...]]:
        """The numbers (0-based, corpus order) of the pages that `search` gives, per query."""
        with self._lock:
            bm25 = self._index.bm25
            stems = words_of(self._index.stemmer, queries)
            return [_best(bm25, bm25.get_tokens_ids(words), k) for words in stems]

    def passages(self, numbers: Sequence[int]) -> list[str]:
        """The passages of these pages."""
        return [passage_of(self._page(number)) for number in numbers]

    def page(self, title: str) -> Page | None:
        """The first page of exactly this title, or None."""
        keys, wanted = self._index.keys, title_key(title)
        at = int(keys.searchsorted(keys.dtype.type(wanted)))
        while at < len(keys) and int(keys[at]) == wanted:
            page = self._page(int(self._index.pages[at]))
            if page.title == title:
                return page
            at += 1
        return None

    def _page(self, number: int) -> Page:
        start, end = (int(at) for at in self._index.spans[number])
        return parse_page(self._bytes[start:end], f"{self.corpus} (page {number + 1})")


def _best(bm25: Any, words: list[int], k: int) -> tuple[int, ...]:
    """The k highest positive scores, by descending score, then ascending page number."""
    np = retrieval_library("numpy")

    if not words or k < 1:
        return ()
    scores = bm25.get_scores_from_ids(words)
    # bm25s' own selection leaves the order of equal scores to the processor; this does not.
    least = 0.0
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
    near = np.flatnonzero(scores >= least if least > 0 else scores > 0)
    order = np.argsort(-scores[near], kind="stable")[:k]
    return tuple(near[order].tolist())


_Key = tuple[str, int]
_Ranked = tuple[int, ...]
_Asked = dict[_Key, asyncio.Future[_Ranked]]
_KEPT = 65_536
"""(query, k) pairs remembered, the oldest forgotten first; an entry is k page numbers."""


@dataclass(slots=True)
class _Lane:
    """What one event loop waits for: the queries not yet taken, and those being searched."""

    waiting: _Asked = field(default_factory=lambda: _Asked())
    running: _Asked = field(default_factory=lambda: _Asked())
    task: asyncio.Task[None] | None = None


class Search:
    """`await search(query, k)`: all that is asked while one batch runs makes the next batch.

    `batches` and `asked` count what reached the retriever, for tests and reports.
    """

    def __init__(self, retriever: Retriever, *, kept: int = _KEPT) -> None:
        self.retriever = retriever
        self.batches = 0
        self.asked = 0
        self._kept = kept
        self._memo: dict[_Key, _Ranked] = {}
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = WeakKeyDictionary()

    async def __call__(self, query: str, k: int) -> list[str]:
        """`Retriever.search`, without stopping the event loop."""
        key = (query, k)
        ranked = self._memo.get(key)
        if ranked is None:
            # Shielded: one asker that is cancelled must not take the reply from the others.
            ranked = await asyncio.shield(self._future(key))
        return self.retriever.passages(ranked)

    def _future(self, key: _Key) -> asyncio.Future[_Ranked]:
        loop = asyncio.get_running_loop()
        lane = self._lanes.setdefault(loop, _Lane())
        future = lane.waiting.get(key) or lane.running.get(key)
        if future is None:
            future = lane.waiting[key] = loop.create_future()
            if lane.task is None:
                lane.task = loop.create_task(self._drain(lane))
        return future

    async def _drain(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                lane.running, lane.waiting = lane.waiting, {}
                await self._batch(lane.running)
                lane.running = {}
        finally:
            lane.task = None

    async def _batch(self, futures: _Asked) -> None:
        keys = list(futures)
        try:
            ranked_by_key = await asyncio.to_thread(self._rank, keys)
        except Exception as error:
            for future in futures.values():
                future.set_exception(error)
                future.exception()  # marked as seen: its askers may all be gone
            return
        self.batches += 1
        self.asked += len(keys)
        for key, ranked in ranked_by_key.items():
            self._memo[key] = ranked
            if not futures[key].done():
                futures[key].set_result(ranked)
        while len(self._memo) > self._kept:
            del self._memo[next(iter(self._memo))]

    def _rank(self, keys: list[_Key]) -> dict[_Key, _Ranked]:
        ranked: dict[_Key, _Ranked] = {}
        for k in sorted({k for _, k in keys}):
            asked = [key for key in keys if key[1] == k]
            found = self.retriever.rank([query for query, _ in asked], k)
            ranked.update(zip(asked, found, strict=True))
        return ranked


def read_modules(folder: Path) -> dict[str, tuple[str, str]]:
    """By stage, in order: its instruction and the name of its output, of modules.toml."""
    read = tomllib.loads((folder / "modules.toml").read_text("utf-8"))
    return {stage: (each["instruction"], each["output"]) for stage, each in read.items()}


SearchFunction = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the best k passages ("TITLE | text") for a query, the best first."""


class Hops:
    """One run of a program that searches in several hops: its modules read the `subject` (a
    question, a claim) beside what they are given, and every step is noted.

    `modules` gives each stage its instruction and the name of its output.
    """

    def __init__(
        self,
        lm: Chat,
        prompt: Prompt,
        subject: Mapping[str, str],
        modules: Mapping[str, tuple[str, str]],
        search: SearchFunction,
    ) -> None:
        self._lm, self._prompt, self._subject = lm, prompt, subject
        self._modules, self._search = modules, search
        self._steps: list[ModuleReply] = []
        self._found: list[Sequence[str]] = []

    async def search(self, query: str, k: int) -> str:
        """The passages found, numbered; a blank query finds nothing."""
        found = await self._search(query, k) if query.strip() else ()
        self._found.append(found)
        return number_passages(found)

    async def module(self, stage: str, **fields: str) -> str:
        """A stage's output."""
        instruction, output = self._modules[stage]
        step = await think(
            self._lm,
            prompt=self._prompt,
            stage=stage,
            instruction=instruction,
            fields={**self._subject, **fields},
            outputs=(output,),
        )
        self._steps.append(step)
        return step[output]

    def output(self, text: str) -> Output:
        """y, with the titles that each hop found."""
        return make_output(text, self._steps, titles_by_hop(*self._found))


def number_passages(passages: Sequence[str]) -> str:
    """The passages as a module reads them, numbered from 1."""
    numbered = (f"[{n}] {passage}" for n, passage in enumerate(passages, 1))
    return "\n".join(numbered) or "(none found)"


def titles_by_hop(*hops: Sequence[str]) -> dict[str, object]:
    """The passages' titles hop by hop, as the field `retrieved` of an Output."""
    return {"retrieved": [[title_of(passage) for passage in hop] for hop in hops]}


def retrieved_titles(output: Output) -> tuple[tuple[str, ...], ...]:
    """What `titles_by_hop` noted; () where nothing was searched for."""
    hops = output.fields.get("retrieved")
    rows = cast("Sequence[object]", hops) if isinstance(hops, list | tuple) else ()
    return tuple(
        tuple(title for title in cast("Sequence[object]", hop) if isinstance(title, str))
        for hop in rows
        if isinstance(hop, list | tuple)
    )


def describe_hops(
    gold: Sequence[str], retrieved: Sequence[Sequence[str]], asked: str
) -> tuple[list[str], list[str]]:
    """(a sentence for each hop: what it found and what was still missing, titles never retrieved).

    `asked` names what the first hop searches with: the question, the claim.
    """
    sentences = list[str]()
    missing = list(gold)
    for hop, titles in enumerate(retrieved, 1):
        came = {answer_words(title) for title in titles}
        gained = [title for title in missing if answer_words(title) in came]
        missing = [title for title in missing if answer_words(title) not in came]
        by = f"search with the {asked}" if hop == 1 else f"query{hop}"
        rest = f"; still missing: {name_titles(missing)}" if missing else ""
        gain = f"found {name_titles(gained)}{rest}"
        if not gained:
            # Once nothing is missing a further hop has nothing to gain: no fault of its query.
            none = f"found none of the pages still needed{rest}"
            gain = none if missing else "had nothing left to find"
        sentences.append(f"Hop {hop} ({by}) {gain}.")
    return sentences, missing


def name_titles(titles: Sequence[str]) -> str:
    """The first eight titles in quotation marks."""
    return ", ".join(quote(title, 80) for title in titles[:8]) + (" …" if len(titles) > 8 else "")
