"""How an answer is counted: its words, sentences, paragraphs and list items. Pure functions."""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["bullet_items", "numbered_lines", "paragraphs", "sentences", "versions", "words"]

_LIST_NUMBER = re.compile(r"^[ \t]*\d+\.(?=\s)", re.MULTILINE)
_ABBREVIATION = re.compile(r"\b(?:P\.S|e\.g|i\.e|Mrs?|Ms|Dr|vs)\.(?=\s+\S)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]*_]*(?=\s|$)")
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_VERSION_LINE = re.compile(r"^[ \t]*\*{6}[ \t]*$", re.MULTILINE)


def words(text: str) -> tuple[str, ...]:
    """White-space separated tokens that hold a letter or a digit ("don't" is one word)."""
    return tuple(token for token in text.split() if any(c.isalnum() for c in token))


def sentences(text: str) -> tuple[str, ...]:
    """Pieces that end in . ! or ? before white space or the end; line breaks alone end nothing.

    List numbers ("1. ") and a few common abbreviations ("P.S.", "e.g.") do not end a sentence; a
    last piece without a full stop counts if it holds a word.
    """
    text = _ABBREVIATION.sub(lambda m: m[0].replace(".", " "), _LIST_NUMBER.sub(" ", text))
    ends = [0, *(m.end() for m in _SENTENCE_END.finditer(text)), len(text)]
    pieces = (text[a:b].strip() for a, b in pairwise(ends))
    return tuple(piece for piece in pieces if words(piece))


def paragraphs(text: str) -> tuple[str, ...]:
    """Non-blank blocks between blank lines."""
    text = text.replace("\r\n", "\n")
    return tuple(p.strip() for p in _BLANK_LINES.split(text) if p.strip())


def bullet_items(text: str) -> tuple[str, ...]:
    """What stands after "- " on the lines that start with it."""
    return tuple(line[2:].strip() for line in text.splitlines() if line.startswith("- "))


def numbered_lines(text: str) -> tuple[int, ...]:
    """The numbers of the lines that start with "<number>. ", in their order."""
    return tuple(int(m) for m in re.findall(r"^([0-9]{1,6})\.[ \t]", text, re.MULTILINE))


def versions(text: str) -> tuple[str, ...]:
    """The pieces between lines that consist of six asterisks, blank ones included."""
    return tuple(part.strip() for part in _VERSION_LINE.split(text.replace("\r\n", "\n")))
