"""HotpotQA's answer scores: exact match and token F1 of normalised answers.

Both follow the official script: lower case, ASCII punctuation deleted (not replaced by a blank),
the words a, an, the dropped, white space collapsed. Where that is plainly odd, so is this: curly
quotes and dashes stay, and an answer that is an article alone equals the empty one.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

__all__ = ["exact_match", "f1", "normalised"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Against any other answer these earn nothing, whatever words they share.
_CLOSED = ("yes", "no", "noanswer")


def normalised(text: str, *, nfd: bool = False) -> str:
    """The form in which answers are compared; `nfd` decomposes accented letters first."""
    if nfd:
        text = unicodedata.normalize("NFD", text)
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, gold: str, nfd: bool = False) -> bool:
    """Equal once normalised. With `nfd` as in the GEPA artifact, which decomposes first: only
    there are the composed and the decomposed form of one accented letter equal."""
    return normalised(prediction, nfd=nfd) == normalised(gold, nfd=nfd)


def f1(prediction: str, gold: str) -> tuple[float, float, float]:
    """(F1, precision, recall) over the multisets of words; 0 without a common word, and where
    one side is yes, no or noanswer and the other is not the same."""
    said, wanted = normalised(prediction), normalised(gold)
    if said != wanted and (said in _CLOSED or wanted in _CLOSED):
        return 0.0, 0.0, 0.0
    words, gold_words = said.split(), wanted.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    if common == 0:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall), precision, recall
