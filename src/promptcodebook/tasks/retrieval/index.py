"""A corpus of short pages and its BM25 index.

A corpus file holds one page a line, `{"title": ..., "sentences": [...]}` (or `"text"` instead). It
may hold millions of pages, so it is read line by line and, once indexed, one page at a time. The
index is built by bm25s (k1 0.9 and b 0.4, its Lucene variant, English stop words removed,
Snowball's English stemmer), saved as plain arrays and memory-mapped when opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from promptcodebook.errors import DataError, import_extra
from promptcodebook.paths import cache_folder, settle

_BETWEEN = " | "
_HINT = 'each line is a page: {"title": "...", "sentences": ["...", "..."]}'


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its title and its sentences, each stripped; blank ones keep their place, since
    supporting facts name sentences by number."""

    title: str
    sentences: tuple[str, ...]


def passage_of(page: Page) -> str:
    """The text that is indexed and that a model reads: 'TITLE | sentence sentence ...'."""
    return page.title + _BETWEEN + " ".join(s for s in page.sentences if s)


def title_of(passage: str) -> str:
    """The text before the first ' | '."""
    return passage.split(_BETWEEN, 1)[0]


def parse_page(line: bytes, where: str) -> Page:
    """One line of the file; DataError names `where` (file:line)."""
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
        raise DataError(f"{where}: sentences is not a list of texts", hint=_HINT)
    return Page(title.strip(), tuple(texts))


class CorpusReader:
    """Reads a corpus once, front to back, and notes what an index needs besides the words.

    After the pass: `spans` holds start and end byte of each page, flat; `title_keys` one 64-bit
    key a page; `digest` the SHA-256 (hex) of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spans, self.title_keys = array("q"), array("Q")
        self.digest = ""

    def passages(self) -> Iterator[str]:
        """The passages in file order. DataError for a faulty line, or when there is no page."""
        sha = hashlib.sha256()
        at = 0
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise DataError(
                f"cannot read the corpus {self.path}: {error.strerror}", hint=_HINT
            ) from None
        with file:
            for number, line in enumerate(file, 1):
                sha.update(line)
                if line.strip():
                    page = parse_page(line, f"{self.path}:{number}")
                    self.spans.extend((at, at + len(line)))
                    self.title_keys.append(title_key(page.title))
                    yield passage_of(page)
                at += len(line)
        if not self.spans:
            raise DataError(f"the corpus {self.path} holds no page", hint=_HINT)
        self.digest = sha.hexdigest()


def title_key(title: str) -> int:
    """A 64-bit key of a title; the page itself decides between equal keys."""
    data = title.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


K1, B = 0.9, 0.4
_SETTINGS: dict[str, object] = {"format": 1, "k1": K1, "b": B}
_ARRAYS = ("spans", "keys", "pages")
_META = "meta.json"
_REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Index:
    """`bm25`: the bm25s object; P = pages. `spans` int64 [P, 2]: bytes of each page in the file;
    `keys` uint64 [P], sorted: title keys; `pages` int64 [P]: the page of each key."""

    bm25: Any
    stemmer: Any
    spans: Any
    keys: Any
    pages: Any
    digest: str

    def __len__(self) -> int:
        return int(self.spans.shape[0])


def retrieval_library(name: str) -> Any:
    """bm25s, Stemmer or numpy; late, because few need them and they take time to load."""
    return import_extra(name, "retrieval (BM25)", "bench")


def _libraries() -> tuple[Any, Any]:
    """bm25s, and a stemmer of our own."""
    return retrieval_library("bm25s"), retrieval_library("Stemmer").Stemmer("english")


def words_of(stemmer: Any, texts: Iterable[str], *, ids: bool = False) -> Any:
    """bm25s' tokens of each text: lists of stems, or its (ids, vocabulary) pair."""
    tokenize = retrieval_library("bm25s").tokenize
    return tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


def build_index(corpus: Path) -> Index:
    """Reads the corpus once and indexes it in memory. DataError names the file and line at fault;
    MissingExtra when bm25s or PyStemmer is not installed."""
    bm25s, stemmer = _libraries()
    np = retrieval_library("numpy")

    reader = CorpusReader(corpus)
    tokens = words_of(stemmer, reader.passages(), ids=True)
    if not tokens.vocab:
        raise DataError(
            f"the corpus {corpus} holds no word to search for",
            hint="pages need text in letters or digits",
        )
    bm25 = bm25s.BM25(k1=K1, b=B)
    bm25.index(tokens, create_empty_token=False, show_progress=False)
    keys = np.frombuffer(reader.title_keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    spans = np.frombuffer(reader.spans, np.int64).reshape(-1, 2)
    return Index(bm25, stemmer, spans, keys[order], order, reader.digest)


def index_folder(corpus: Path, cache_dir: Path | None = None) -> Path:
    """Where the index of this corpus belongs: beside it, or in the cache if its folder is
    read-only (also to the super-user, who could write anyway)."""
    corpus = corpus.resolve()
    parent = corpus.parent
    if not parent.is_dir():
        raise DataError(f"no corpus at {corpus}", hint="--data DIR, where DIR holds corpus.jsonl")
    if os.access(parent, os.W_OK) and parent.stat().st_mode & 0o222:
        return parent / f"{corpus.name}.bm25"
    key = hashlib.sha256(os.fsencode(corpus)).hexdigest()[:16]
    return (cache_dir or cache_folder()) / "retrieval" / f"{key}.bm25"


def save_index(index: Index, corpus: Path, folder: Path) -> None:
    """Writes the index whole or not at all; one that stood there is replaced. OSError when the
    disk refuses."""
    np = retrieval_library("numpy")

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
            settle(folder, made / _REPLACED)
        settle(made, folder)
        shutil.rmtree(folder / _REPLACED, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # else another process has just saved the same
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load_index(corpus: Path, folder: Path) -> Index | None:
    """The saved index, memory-mapped; None when there is none, it is damaged, or the corpus has
    changed. Size and time of change vouch for the corpus; if they moved, its SHA-256 decides."""
    bm25s, stemmer = _libraries()
    np = retrieval_library("numpy")

    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        if not _is_current(meta, corpus):
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


def _is_current(meta: Any, corpus: Path) -> bool:
    if any(meta.get(name) != value for name, value in _SETTINGS.items()):
        return False
    stat = corpus.stat()
    if meta["size"] != stat.st_size:
        return False
    return meta["mtime_ns"] == stat.st_mtime_ns or meta["sha256"] == file_digest(corpus)
