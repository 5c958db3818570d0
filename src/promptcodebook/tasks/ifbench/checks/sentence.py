"""IFBench, group `sentence`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import EDGES, Text, unmarked

__all__ = ["SENTENCE"]


def _alliteration_increment(text: Text, args: Arguments) -> bool:
    totals = [-1, *(_alliterating(sentence) for sentence in text.sentences)]
    return all(before < after for before, after in pairwise(totals))


def _alliterating(sentence: str) -> int:
    """Words in runs that share their first character, all runs of the sentence together."""
    words = [word for word in (raw.lstrip(EDGES) for raw in sentence.lower().split()) if word]
    total, running = 0, False
    for one, other in pairwise(words):
        same = one[0] == other[0]
        if same:
            total += 1 if running else 2
        running = same
    return total


def _increment(text: Text, args: Arguments) -> bool:
    lengths = [len(unmarked(sentence).split()) for sentence in text.sentences]
    step = args.integer("small_n")
    return all(after - before == step for before, after in pairwise(lengths))


def _keyword(text: Text, args: Arguments) -> bool:
    number = args.integer("N")
    if not 1 <= number <= len(text.sentences):
        return False
    wanted = rf"\b{re.escape(args.text('word'))}\b"
    return re.search(wanted, text.sentences[number - 1], re.IGNORECASE) is not None


SENTENCE: Mapping[str, Constraint] = {
    "sentence:alliteration_increment": Constraint(
        _alliteration_increment,
        "Each sentence must have a longer alliteration, counted in words, than the one before.",
    ),
    "sentence:increment": Constraint(
        _increment,
        "Each sentence must have exactly {small_n} more words than the sentence before it.",
        ("small_n",),
    ),
    "sentence:keyword": Constraint(
        _keyword, 'Sentence {N} of the response must contain the word "{word}".', ("word", "N")
    ),
}
