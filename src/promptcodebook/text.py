"""Texts as they are compared, cut, shown and set beside each other: one home for each way."""

from __future__ import annotations

import difflib
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal

__all__ = [
    "Change",
    "answer_words",
    "fold_text",
    "printable",
    "quote",
    "shorten",
    "strip_fence",
    "word_changes",
    "words_of",
]

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_FENCED = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_PIECES = re.compile(r"[\w'’-]+\s*|[^\w\s]\s*|\s+")
_MOST_PIECES = 1200
"""Beyond this, comparing two texts would take seconds: both are then given whole."""

Change = Literal["same", "removed", "added"]


def words_of(text: str) -> list[str]:
    """Lower-cased words without punctuation."""
    return _WORD.findall(text.lower())


def fold_text(text: str) -> str:
    """The text for comparing inputs: Unicode NFC, case folded, white space collapsed."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def answer_words(text: str, *, nfd: bool = True) -> str:
    """The text for comparing answers (SQuAD): lower case, no ASCII punctuation, no articles.

    `nfd` decomposes accented letters first, as the GEPA artifact does.
    """
    if nfd:
        text = unicodedata.normalize("NFD", text)
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def printable(text: str) -> str:
    """The text without control characters but line breaks and tabs: what a model or a server wrote
    must not steer a terminal."""
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()


def quote(text: str, most: int = 300) -> str:
    """The text in quotation marks, cut for a critic's eyes."""
    text = text.strip()
    return f"'{text}'" if len(text) <= most else f"'{text[:most].rstrip()} …'"


def shorten(text: str, limit: int) -> str:
    """The text, its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"


def strip_fence(text: str) -> str:
    """The inside of a text that is one Markdown ``` block, else the text; without outer space."""
    body = text.strip()
    match = _FENCED.match(body)
    return match[1].strip() if match else body


def word_changes(before: str, after: str) -> Iterator[tuple[Change, str]]:
    """The new text in pieces, with what was taken out between them, in reading order.

    White space goes with the word before it and makes no difference of its own.
    """
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    if len(old) + len(new) > _MOST_PIECES:
        yield "removed", before
        yield "added", after
        return
    for kind, a1, a2, b1, b2 in _matcher(old, new).get_opcodes():
        if kind == "equal":
            yield "same", "".join(new[b1:b2])
            continue
        if a2 > a1:
            yield "removed", "".join(old[a1:a2])
        if b2 > b1:
            yield "added", "".join(new[b1:b2])


def _matcher(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher[str]:
    stripped = [piece.strip() for piece in old], [piece.strip() for piece in new]
    return difflib.SequenceMatcher(None, *stripped, autojunk=False)
