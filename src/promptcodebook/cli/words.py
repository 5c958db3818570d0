"""What changed between two texts, word by word, in plain characters."""

from __future__ import annotations

import difflib
import re

__all__ = ["changed"]

_PIECES = re.compile(r"\s+|[\w'’-]+|[^\w\s]")
_MOST = 4000
"""Pieces above which comparing takes too long: both texts are shown whole."""


def changed(before: str, after: str) -> str:
    """`after` with what was taken out as [-...-] and what was put in as {+...+}."""
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    if len(old) + len(new) > _MOST:
        return f"[-{before}-] {{+{after}+}}"
    out: list[str] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        gone, come = "".join(old[a1:a2]), "".join(new[b1:b2])
        if kind == "equal":
            out.append(gone)
            continue
        out.append(f"[-{gone}-]" if gone else "")
        out.append(f"{{+{come}+}}" if come else "")
    return "".join(out)
