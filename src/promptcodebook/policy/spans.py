"""Which instinct each part of a composed prompt comes from, for report, viewer and terminal alike.

A generator puts the chosen instincts into words of its own and does not say which is which. What
stands in the prompt word for word is found as it is (the base prompt, the output format, instincts
composed verbatim); every other clause goes to the instinct that shares most of its words, and is
called the generator's own where none shares enough. That is a likeness, not a record: `exact` says
which of the two it is, and who shows spans says so too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from promptcodebook.text import words_of
from promptcodebook.types import variable_name

SpanSource = Literal["base", "format", "instinct", "generator"]
"""The prompt that stands before everything, the output format, an instinct, or the generator's own
words."""

_MARKS = ".!?;:,\n—。！？；：，、"
_CLAUSE = re.compile(rf"[^{_MARKS}]+[{_MARKS}]*\s*|[{_MARKS}]+\s*")
_SHARE = 0.4
"""Of a clause's words, so much must be an instinct's."""
_LONG = 4
"""Letters of a word that says something; shorter ones stand in every sentence."""
_STEM = 5
"""Letters by which two words are the same: 'count', 'counts', 'counting'."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a prompt and its source; `instinct` is its index k where that is an instinct.

    `exact`: it stands there word for word; else it is told by the words that they share.
    """

    text: str
    source: SpanSource
    instinct: int | None = None
    exact: bool = False

    @property
    def label(self) -> str:
        """'base', 'format', 'generator', or 'c<k>' for an instinct, with '~' before a likeness."""
        if self.instinct is None:
            return self.source
        return f"{'' if self.exact else '~'}{variable_name(self.instinct)}"


def prompt_spans(
    prompt: str, instincts: Sequence[tuple[int, str]], base_prompt: str = "", form: str = ""
) -> tuple[Span, ...]:
    """The prompt in pieces by their sources; joined they are the prompt again, to the letter.

    `instincts` are those of its route, as (k, text); `form` is the output format of the settings.
    """
    known = [Span(base_prompt, "base", exact=True), Span(form, "format", exact=True)]
    known += [Span(text, "instinct", k, exact=True) for k, text in instincts]
    words = {k: _words(text) for k, text in instincts}
    shared = Counter(word for own in words.values() for word in own)
    pieces: list[Span] = []
    for piece in _literal(prompt, sorted(known, key=lambda span: -len(span.text))):
        if piece.exact:
            pieces.append(piece)
            continue
        for clause in _CLAUSE.findall(piece.text):
            k = _nearest(clause, words, shared)
            pieces.append(Span(clause, "generator" if k is None else "instinct", k))
    return tuple(_joined(pieces))


def _literal(text: str, known: Sequence[Span]) -> list[Span]:
    """What of the known texts stands in it word for word, and what lies between; the longest
    first, so that none is found within another."""
    pieces = [Span(text, "generator")]
    for span in known:
        if wanted := span.text.strip():
            found = replace(span, text=wanted)
            pieces = [part for piece in pieces for part in _cut(piece, found)]
    return pieces


def _cut(piece: Span, found: Span) -> Iterator[Span]:
    """The piece with every place where the found text stands as a span of its own."""
    if piece.exact:
        yield piece
        return
    for place, between in enumerate(piece.text.split(found.text)):
        if place:
            yield found
        if between:
            yield replace(piece, text=between)


def _nearest(clause: str, words: Mapping[int, set[str]], shared: Counter[str]) -> int | None:
    """The instinct that has the largest share of the clause's words; a word that several have
    counts for each in part. None where no share is large enough, or hangs on a single word, or is
    the same of two."""
    own = _words(clause)
    shares = {
        k: sum(1 / shared[word] for word in own & theirs)
        for k, theirs in words.items()
        if len(own & theirs) > 1 or own <= theirs
    }
    most = max(shares.values(), default=0.0)
    best = [k for k, share in shares.items() if share == most]
    return best[0] if len(best) == 1 and own and most >= _SHARE * len(own) else None


def _words(text: str) -> set[str]:
    """What of the words is compared: their beginnings; of scripts that set no blanks between
    words, pairs of letters."""
    found: set[str] = set()
    for word in words_of(text):
        if word.isascii():
            found |= {word[:_STEM]} if len(word) >= _LONG or word.isdigit() else set()
        else:
            found |= {word[at : at + 2] for at in range(max(1, len(word) - 1))}
    return found


def _joined(pieces: Sequence[Span]) -> Iterator[Span]:
    """Neighbours of one source as one span; blanks and marks go with what stands before them."""
    last: Span | None = None
    for piece in pieces:
        mere = not piece.exact and not words_of(piece.text)
        if last is None:
            last = piece
        elif mere or replace(piece, text="") == replace(last, text=""):
            last = replace(last, text=last.text + piece.text)
        else:
            yield last
            last = piece
    if last is not None:
        yield last
