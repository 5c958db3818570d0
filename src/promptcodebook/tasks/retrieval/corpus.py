"""A corpus file: one page a line, `{"title": ..., "sentences": [...]}` (or `"text"` instead).

It may hold millions of pages, so it is read line by line and, once indexed, one page at a time.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from promptcodebook.errors import DataError

__all__ = [
    "CorpusReader",
    "Page",
    "file_digest",
    "parse_page",
    "passage_of",
    "title_key",
    "title_of",
]

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
    """What stands before the first ' | '."""
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
        self.spans = array("q")
        self.title_keys = array("Q")
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
    """A 64-bit key of a title; equal keys are told apart by the page itself."""
    data = title.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
