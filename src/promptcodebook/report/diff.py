"""What a rewrite changed, word by word."""

from __future__ import annotations

import difflib
import re

from promptcodebook.report.html import Html, el, together

__all__ = ["word_diff"]

_PIECES = re.compile(r"[\w'’-]+\s*|[^\w\s]\s*|\s+")
MOST_PIECES = 1200
"""Beyond this the comparison would take seconds: both texts are shown whole."""


def word_diff(before: str, after: str) -> Html:
    """The new text with what was added in `ins` and what was taken out in `del`.

    White space goes with the word before it and makes no difference of its own.
    """
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    if len(old) + len(new) > MOST_PIECES:
        return together(el("del", before), " ", el("ins", after))
    parts: list[Html | str] = []
    words = [piece.strip() for piece in old], [piece.strip() for piece in new]
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        gone, come = "".join(old[a1:a2]), "".join(new[b1:b2])
        if kind == "equal":
            parts.append(come)
            continue
        if gone:
            parts.append(el("del", gone))
        if come:
            parts.append(el("ins", come))
    return together(parts)
