"""A response and its analyses, each made once."""

from __future__ import annotations

import re
import string
from functools import cached_property
from itertools import chain, islice

from promptcodebook.tasks.ifbench.language import Language

__all__ = ["EDGES", "MARKS", "Text", "unmarked"]

MARKS = string.punctuation
"""The 32 ASCII punctuation marks (benchmarks.md, P)."""

EDGES = MARKS + " "

_DELETE = str.maketrans("", "", MARKS)
_WORD = re.compile(r"\w+")


def unmarked(text: str) -> str:
    """`text` without ASCII punctuation."""
    return text.translate(_DELETE)


class Text:
    """A response as the checks see it; `value` is its exact text."""

    def __init__(self, value: str, language: Language) -> None:
        self.value = value
        self.language = language

    @cached_property
    def sentences(self) -> list[str]:
        return self.language.sentences(self.value)

    @cached_property
    def tokens(self) -> list[str]:
        return [token for found in self.language.each_tokens(self.sentences) for token in found]

    def first_tokens(self, count: int) -> list[str]:
        """The first `count` tokens, without making the others."""
        found = self.language.each_tokens(self.sentences)
        return list(islice(chain.from_iterable(found), count))

    def last_tokens(self, count: int) -> list[str]:
        """The last `count` tokens in their order, without making the others."""
        found = self.language.each_tokens(reversed(self.sentences))
        backwards = chain.from_iterable(tokens[::-1] for tokens in found)
        return list(islice(backwards, count))[::-1]

    @cached_property
    def lower(self) -> str:
        return self.value.lower()

    @cached_property
    def words(self) -> list[str]:
        r"""Maximal runs of \w."""
        return _WORD.findall(self.value)

    @cached_property
    def bare(self) -> list[str]:
        """White-space tokens of the text without ASCII punctuation."""
        return unmarked(self.value).split()

    @cached_property
    def bare_lower(self) -> list[str]:
        return unmarked(self.lower).split()
