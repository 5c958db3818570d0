"""Queries in, passages out: BM25 over one corpus."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from promptcodebook.tasks.retrieval.corpus import Page, parse_page, passage_of, title_key
from promptcodebook.tasks.retrieval.index import (
    Index,
    build_index,
    index_folder,
    load_index,
    save_index,
    words_of,
)

__all__ = ["Retriever", "open_retriever"]

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
        except OSError as error:
            _LOG.warning("the index of %s could not be saved in %s: %s", corpus, folder, error)
        else:
            # What was just saved, mapped: the arrays in memory can go.
            index = load_index(corpus, folder) or index
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
    import numpy as np

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
