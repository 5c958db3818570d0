"""The BM25 index of a corpus: built by bm25s, saved as plain arrays, memory-mapped when opened.

k1 0.9 and b 0.4, bm25s' Lucene variant, English stop words removed, Snowball's English stemmer.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from promptcodebook.errors import DataError, MissingExtra
from promptcodebook.tasks.retrieval.corpus import CorpusReader, file_digest

__all__ = ["Index", "build_index", "index_folder", "load_index", "save_index", "words_of"]

K1, B = 0.9, 0.4
_FORMAT = 1
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


def _libraries() -> tuple[Any, Any]:
    """bm25s and a stemmer of our own; late, because few need them and they load NumPy."""
    try:
        import bm25s  # pyright: ignore[reportMissingTypeStubs]
        import Stemmer
    except ImportError:
        raise MissingExtra("retrieval (BM25)", "bench") from None
    return bm25s, cast("Any", Stemmer).Stemmer("english")


def words_of(stemmer: Any, texts: Iterable[str], *, ids: bool = False) -> Any:
    """bm25s' tokens of each text: lists of stems, or its (ids, vocabulary) pair."""
    import bm25s  # pyright: ignore[reportMissingTypeStubs]

    tokenize = cast("Any", bm25s).tokenize
    return tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


def build_index(corpus: Path) -> Index:
    """Reads the corpus once and indexes it in memory. DataError names the file and line at fault;
    MissingExtra when bm25s or PyStemmer is not installed."""
    bm25s, stemmer = _libraries()
    import numpy as np

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
    import hashlib

    key = hashlib.sha256(os.fsencode(corpus)).hexdigest()[:16]
    return (cache_dir or _default_cache()) / "retrieval" / f"{key}.bm25"


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "promptcodebook"


def save_index(index: Index, corpus: Path, folder: Path) -> None:
    """Writes the index whole or not at all; one that stood there is replaced. OSError when the
    disk refuses."""
    import numpy as np

    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        index.bm25.save(made, show_progress=False)
        for name, values in _arrays(index).items():
            np.save(made / f"{name}.npy", values, allow_pickle=False)
        made.chmod(0o755)
        _write_meta(made, corpus, index.digest)
        if folder.exists():
            folder.replace(made / _REPLACED)
        made.replace(folder)
        shutil.rmtree(folder / _REPLACED, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # else another process has just saved the same
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _arrays(index: Index) -> dict[str, Any]:
    return {"spans": index.spans, "keys": index.keys, "pages": index.pages}


def _write_meta(folder: Path, corpus: Path, digest: str) -> None:
    stat = corpus.stat()
    meta = {"sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, **_settings()}
    (folder / _META).write_text(json.dumps(meta) + "\n", "utf-8")


def _settings() -> dict[str, object]:
    return {"format": _FORMAT, "k1": K1, "b": B}


def load_index(corpus: Path, folder: Path) -> Index | None:
    """The saved index, memory-mapped; None when there is none, it is damaged, or the corpus has
    changed. Size and time of change vouch for the corpus; if they moved, its SHA-256 decides."""
    bm25s, stemmer = _libraries()
    import numpy as np

    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        if not _vouched(meta, corpus):
            return None
        bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        # Plain arrays over the same mapped memory: slicing a memmap object costs microseconds.
        bm25.scores = {
            name: values if isinstance(values, int) else np.asarray(values)
            for name, values in bm25.scores.items()
        }
        spans, keys, pages = (
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in ("spans", "keys", "pages")
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
        return None  # whatever is wrong with it, a new one is made
    return Index(bm25, stemmer, spans, keys, pages, str(meta["sha256"]))


def _vouched(meta: Any, corpus: Path) -> bool:
    if any(meta.get(name) != value for name, value in _settings().items()):
        return False
    stat = corpus.stat()
    if meta["size"] != stat.st_size:
        return False
    return meta["mtime_ns"] == stat.st_mtime_ns or meta["sha256"] == file_digest(corpus)
