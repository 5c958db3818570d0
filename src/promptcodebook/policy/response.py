"""What a policy says of an input: an answer with its prompt and route, or why that prompt.

A generator puts the chosen instincts into words of its own. What is in the prompt word for word is
found as it is (the base prompt, the output format, instincts composed verbatim); every other clause
goes to the instinct that shares most of its words, and is called the generator's own where none
shares enough. That is a likeness, not a record: `exact` says which of the two it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from promptcodebook.calls import Usage
from promptcodebook.text import shown_table, shown_text, words_of
from promptcodebook.types import Expected, Route, Stage, variable_name

SpanSource = Literal["base", "format", "instinct", "generator"]
"""The prompt that comes before everything, the output format, an instinct, or the generator's own
words."""

_MARKS = ".!?;:,\n—。！？；：，、"
_CLAUSE = re.compile(rf"[^{_MARKS}]+[{_MARKS}]*\s*|[{_MARKS}]+\s*")
_SHARE = 0.4
"""Of a clause's words, so much must be an instinct's."""
_LONG = 4
"""Letters of a word that says something; shorter ones are in every sentence."""
_STEM = 5
"""Letters by which two words are the same: 'count', 'counts', 'counting'."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a prompt and its source; `instinct` is its index k where that is an instinct.

    `exact`: it is there word for word; else the words that they share show it.
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
    cut = [Span(prompt, "generator")]
    # Of texts that are there word for word, the longest first: none is found within another.
    for span in sorted(known, key=lambda span: -len(span.text)):
        if wanted := span.text.strip():
            found = replace(span, text=wanted)
            cut = [part for piece in cut for part in _cut(piece, found)]
    pieces: list[Span] = []
    for piece in cut:
        if piece.exact:
            pieces.append(piece)
            continue
        for clause in _CLAUSE.findall(piece.text):
            k = _nearest(clause, words, shared)
            pieces.append(Span(clause, "generator" if k is None else "instinct", k))
    return tuple(_joined(pieces))


def _cut(piece: Span, found: Span) -> Iterator[Span]:
    """The piece with every place where the found text is, as a span of its own."""
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
    """Neighbours of one source as one span; blanks and marks go with what comes before them."""
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


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one input. `prompt` is what the executor was prompted with, `route` the
    instincts in it and who chose them, `usage` what all calls took together.

    `truncated`: the answer was cut at its length cap. `stages` and `fields` are those of a program
    of several steps.
    """

    text: str
    prompt: str
    route: Route
    usage: Usage = Usage()
    truncated: bool = False
    stages: tuple[Stage, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict[str, object])

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        route = ", ".join(map(str, self.route.indices)) or "none"
        cut = " (cut at its length cap)" if self.truncated else ""
        shown = shown_text(f"answer{cut}", self.text)
        return f"<div>{shown}{shown_text(f'prompt, of the instincts {route}', self.prompt)}</div>"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why this input got this prompt. `expected` is what each instinct promises, where routes were
    learned from outcomes; `spans` are the prompt in pieces by their sources."""

    input: str
    route: Route
    instincts: tuple[tuple[int, str], ...]
    prompt: str
    expected: Expected | None = None
    spans: tuple[Span, ...] = ()

    def _repr_html_(self) -> str:
        route = "route: " + ", ".join(map(str, self.route.indices))
        doubt = " (by fallback)" if self.route.fallback else ""
        promises = [("none" if k is None else k, f"{value:.3f}") for k, value in self.ranked]
        sources = [(span.label, span.text.strip()) for span in self.spans]
        title = "where the prompt comes from (~ by the words shared)"
        parts = [
            shown_text("input", self.input),
            shown_table(route + doubt, ("k", "instinct"), self.instincts),
            shown_table("expected reward", ("k", "alone"), promises) if promises else "",
            shown_text("why", self.route.analysis) if self.route.analysis else "",
            shown_text("prompt", self.prompt),
            shown_table(title, ("source", "piece"), sources) if sources else "",
        ]
        return f"<div>{''.join(parts)}</div>"

    @property
    def ranked(self) -> tuple[tuple[int | None, float], ...]:
        """Every instinct with the reward that it promises alone, None for no instinct, best first;
        () where nothing was learned of that."""
        if self.expected is None:
            return ()
        alone = [(k, self.expected.alone(k)) for k in range(len(self.expected.marginal))]
        return tuple(sorted([(None, self.expected.nothing), *alone], key=lambda each: -each[1]))
