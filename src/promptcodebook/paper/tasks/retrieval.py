"""Retrieval over a corpus of short pages: BM25 as the GEPA artifact sets it up (bm25s with k1 0.9
and b 0.4, its Lucene variant, English stop words removed, Snowball's English stemmer). A corpus may
hold millions of pages, one a line: its index is saved and mapped."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

from promptcodebook.base.paths import cache_folder, settle, sha256_of
from promptcodebook.base.text import answer_words, quote
from promptcodebook.calls import Role
from promptcodebook.errors import DataError, TaskError, import_extra
from promptcodebook.tasks.program import Chain, make_output
from promptcodebook.types import Output

_LOG = logging.getLogger(__name__)
_BETWEEN = " | "
_HINT = 'each line is a page: {"title": "...", "sentences": ["...", "..."]}'
_SETTINGS: dict[str, object] = {"format": 1, "k1": 0.9, "b": 0.4}
_ARRAYS = ("spans", "keys", "pages")
_META = "meta.json"
_KEPT = 65_536  # (query, k) pairs remembered; an entry is k page numbers


@dataclass(frozen=True, slots=True)
class WikiPage:
    """A title and its sentences; blank ones keep their place, as facts name them by number."""

    title: str
    sentences: tuple[str, ...]


def passage_of(page: WikiPage) -> str:
    """The text that is indexed and that a model reads: 'TITLE | sentence sentence ...'."""
    return page.title + _BETWEEN + " ".join(s for s in page.sentences if s)


def title_of(passage: str) -> str:
    """The text before the first ' | '."""
    return passage.split(_BETWEEN, 1)[0]


def parse_page(line: bytes, where: str) -> WikiPage:
    """Parse one line of the file. Raises DataError, which names `where` (file:line), when it is no
    page."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})", hint=_HINT) from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: not a JSON object", hint=_HINT)
    fields = cast("dict[str, object]", row)
    title, sentences = fields.get("title"), fields.get("sentences", fields.get("text"))
    if not isinstance(title, str) or not title.strip():
        raise DataError(f"{where}: the page has no title", hint=_HINT)
    given = cast("list[object]", sentences) if isinstance(sentences, list) else [sentences]
    texts = [sentence.strip() for sentence in given if isinstance(sentence, str)]
    if len(texts) < len(given):
        raise DataError(f"{where}: sentences is not a list of strings", hint=_HINT)
    return WikiPage(title.strip(), tuple(texts))


def corpus_of(name: str, folder: Path) -> Path:
    """Return the file of the pages that a benchmark searches. Raises TaskError when its folder has
    none."""
    corpus = folder / "corpus.jsonl"
    if not corpus.is_file():
        raise TaskError(f"the task {name} needs {corpus}, which is missing", hint=_HINT)
    return corpus


def open_retriever(corpus: Path, *, keep: bool = True) -> Retriever:
    """A retriever over the corpus file; its index is opened where it is saved, else built.
    `keep=False` neither reads nor writes a saved index (for a corpus of a few pages). Raises
    DataError when the corpus cannot be read or holds nothing, MissingExtra without bm25s and
    PyStemmer."""
    if not keep:
        return Retriever(corpus, build_index(corpus))
    folder = index_folder(corpus)
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
        return int(self._index.spans.shape[0])

    def search(self, query: str, k: int) -> list[str]:
        """At most k passages that share a word with the query, best first, then in corpus order."""
        return self.passages(self.rank([query], k)[0])

    def rank(self, queries: Sequence[str], k: int) -> list[tuple[int, ...]]:
        """The numbers (0-based, corpus order) of the pages that `search` gives, per query."""
        with self._lock:
            bm25 = self._index.bm25
            stems = _words_of(self._index.stemmer, queries)
            return [_best(bm25, bm25.get_tokens_ids(words), k) for words in stems]

    def passages(self, numbers: Sequence[int]) -> list[str]:
        return [passage_of(self._page(number)) for number in numbers]

    def page(self, title: str) -> WikiPage | None:
        """The first page of exactly this title, or None."""
        keys, wanted = self._index.keys, title_key(title)
        at = int(keys.searchsorted(keys.dtype.type(wanted)))
        while at < len(keys) and int(keys[at]) == wanted:
            page = self._page(int(self._index.pages[at]))
            if page.title == title:
                return page
            at += 1
        return None

    def _page(self, number: int) -> WikiPage:
        start, end = (int(at) for at in self._index.spans[number])
        return parse_page(self._bytes[start:end], f"{self.corpus} (page {number + 1})")


def _best(bm25: Any, words: list[int], k: int) -> tuple[int, ...]:
    np = _library("numpy")
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


@dataclass(frozen=True, slots=True)
class Index:
    """The bm25s object, and of P pages their bytes in the file and their title keys. `spans` int64
    [P, 2], `keys` uint64 [P] (sorted), `pages` int64 [P]: the page of each key. `digest`: the
    SHA-256 (hex) of the file."""

    bm25: Any
    stemmer: Any
    spans: Any
    keys: Any
    pages: Any
    digest: str


def _library(name: str) -> Any:
    """bm25s, Stemmer or numpy; late, because few need them and they take time to load."""
    return import_extra(name, "retrieval (BM25)", "bench")


def _words_of(stemmer: Any, texts: Iterable[str], *, ids: bool = False) -> Any:
    """bm25s' tokens of each text: lists of stems, or its (ids, vocabulary) pair."""
    tokenize = _library("bm25s").tokenize
    return tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


def build_index(corpus: Path) -> Index:
    """Read the corpus once and index it. Raises DataError, which names file and line, when a line
    is no page."""
    bm25s, np = _library("bm25s"), _library("numpy")
    stemmer = _library("Stemmer").Stemmer("english")
    spans, title_keys, sha = array("q"), array("Q"), hashlib.sha256()
    try:
        file = corpus.open("rb")
    except OSError as error:
        raise DataError(f"cannot read the corpus {corpus}: {error.strerror}", hint=_HINT) from None

    def passages() -> Iterator[str]:
        at = 0
        for number, line in enumerate(file, 1):
            sha.update(line)
            if line.strip():
                page = parse_page(line, f"{corpus}:{number}")
                spans.extend((at, at + len(line)))
                title_keys.append(title_key(page.title))
                yield passage_of(page)
            at += len(line)
        if not spans:
            raise DataError(f"the corpus {corpus} contains no page", hint=_HINT)

    with file:
        tokens = _words_of(stemmer, passages(), ids=True)
    if not tokens.vocab:
        message = f"the corpus {corpus} contains no searchable words"
        raise DataError(message, hint="pages must contain letters or digits")
    bm25 = bm25s.BM25(k1=_SETTINGS["k1"], b=_SETTINGS["b"])
    bm25.index(tokens, create_empty_token=False, show_progress=False)
    keys = np.frombuffer(title_keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    pages = np.frombuffer(spans, np.int64).reshape(-1, 2)
    return Index(bm25, stemmer, pages, keys[order], order, sha.hexdigest())


def title_key(title: str) -> int:
    """A 64-bit key of a title; the page itself decides between equal keys."""
    data = title.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def index_folder(corpus: Path) -> Path:
    """Beside the corpus, or in the cache if its folder is read-only (to the super-user as well)."""
    corpus = corpus.resolve()
    parent = corpus.parent
    if os.access(parent, os.W_OK) and parent.stat().st_mode & 0o222:
        return parent / f"{corpus.name}.bm25"
    key = hashlib.sha256(os.fsencode(corpus)).hexdigest()[:16]
    return cache_folder() / "retrieval" / f"{key}.bm25"


def save_index(index: Index, corpus: Path, folder: Path) -> None:
    """Write the index whole or not at all, in place of an earlier one. Raises OSError when it
    cannot be written."""
    np = _library("numpy")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        index.bm25.save(made, show_progress=False)
        for name in _ARRAYS:
            np.save(made / f"{name}.npy", getattr(index, name), allow_pickle=False)
        made.chmod(0o755)
        stat = corpus.stat()
        mark = {"sha256": index.digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        (made / _META).write_text(json.dumps(mark | _SETTINGS) + "\n", "utf-8")
        if folder.exists():
            settle(folder, made / "replaced")
        settle(made, folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # else another process has just saved the same
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load_index(corpus: Path, folder: Path) -> Index | None:
    """The saved index, memory-mapped; None when there is none, it is damaged or the corpus changed.
    Size and time of change vouch for the corpus; if they moved, its SHA-256 decides."""
    bm25s, np = _library("bm25s"), _library("numpy")
    stemmer = _library("Stemmer").Stemmer("english")
    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        stat = corpus.stat()
        alike = all(meta.get(name) == value for name, value in _SETTINGS.items())
        if not alike or meta["size"] != stat.st_size:
            return None
        if meta["mtime_ns"] != stat.st_mtime_ns and meta["sha256"] != sha256_of(corpus):
            return None
        bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        # Plain arrays over the same mapped memory: slicing a memmap object costs microseconds.
        bm25.scores = {
            name: values if isinstance(values, int) else np.asarray(values)
            for name, values in bm25.scores.items()
        }
        spans, keys, pages = (
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in _ARRAYS
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
        return None  # whatever is wrong with it, a new one is made
    return Index(bm25, stemmer, spans, keys, pages, str(meta["sha256"]))


class Search:
    """`Retriever.search` off the event loop; what was asked lately is not searched again."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._rank = lru_cache(_KEPT)(self._ranked)

    def _ranked(self, query: str, k: int) -> tuple[int, ...]:
        return self._retriever.rank([query], k)[0]

    async def __call__(self, query: str, k: int) -> list[str]:
        ranked = await asyncio.to_thread(self._rank, query, k)
        return self._retriever.passages(ranked)


# Finds the best k passages ("TITLE | text") for a query, the best first.
SearchFunction = Callable[[str, int], Awaitable[Sequence[str]]]


class HopProgram:
    """A program of named stages that searches in hops; its output has the field `retrieved`."""

    name: str
    stages: tuple[str, ...]
    roles: frozenset[Role] = frozenset()

    def __init__(self, search: SearchFunction) -> None:
        self.search = search


@dataclass
class Hops(Chain):
    """One run of such a program: its modules read the question or claim beside their own fields."""

    search: SearchFunction
    found: list[list[str]] = field(default_factory=list[list[str]], kw_only=True)

    async def find(self, query: str, k: int) -> str:
        """The passages found, numbered; a blank query finds nothing."""
        passages = await self.search(query, k) if query.strip() else ()
        self.found.append([title_of(passage) for passage in passages])
        return "\n".join(f"[{n}] {each}" for n, each in enumerate(passages, 1)) or "(none found)"

    def output(self, text: str) -> Output:
        return make_output(text, self.steps, {"retrieved": self.found})


def retrieved_titles(output: Output) -> tuple[tuple[str, ...], ...]:
    """The titles that each hop found; () where nothing was searched for."""
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
    """(a sentence for each hop: what it found and what was missing, titles never retrieved)."""
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
