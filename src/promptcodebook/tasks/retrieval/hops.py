"""Programs that search in several hops: what their modules read, and what a critic is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from promptcodebook.tasks.retrieval.index import title_of
from promptcodebook.text import answer_words, quote
from promptcodebook.types import Output

SearchFunction = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the best k passages ("TITLE | text") for a query, the best first."""


def number_passages(passages: Sequence[str]) -> str:
    """The passages as a module reads them, numbered from 1."""
    numbered = (f"[{n}] {passage}" for n, passage in enumerate(passages, 1))
    return "\n".join(numbered) or "(none found)"


def titles_by_hop(*hops: Sequence[str]) -> dict[str, object]:
    """The passages' titles hop by hop, as the field `retrieved` of an Output."""
    return {"retrieved": [[title_of(passage) for passage in hop] for hop in hops]}


def retrieved_titles(output: Output) -> tuple[tuple[str, ...], ...]:
    """What `titles_by_hop` noted; () where nothing was searched for."""
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
    """(a sentence for each hop: what it found and what was still missing, titles never retrieved).

    `asked` names what the first hop searches with: the question, the claim.
    """
    sentences = list[str]()
    missing = list(gold)
    for hop, titles in enumerate(retrieved, 1):
        came = {answer_words(title) for title in titles}
        gained = [title for title in missing if answer_words(title) in came]
        missing = [title for title in missing if answer_words(title) not in came]
        by = f"search with the {asked}" if hop == 1 else f"query{hop}"
        sentences.append(f"Hop {hop} ({by}) {_gain(gained, missing)}.")
    return sentences, missing


def _gain(gained: Sequence[str], missing: Sequence[str]) -> str:
    rest = f"; still missing: {name_titles(missing)}" if missing else ""
    if gained:
        return f"found {name_titles(gained)}{rest}"
    # Once nothing is missing a further hop has nothing to gain, which is no fault of its query.
    return f"found none of the pages still needed{rest}" if missing else "had nothing left to find"


def name_titles(titles: Sequence[str]) -> str:
    """The first eight titles in quotation marks."""
    return ", ".join(quote(title, 80) for title in titles[:8]) + (" …" if len(titles) > 8 else "")
