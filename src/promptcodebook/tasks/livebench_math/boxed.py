r"""The last \boxed content, as LiveBench reads it."""

from __future__ import annotations

__all__ = ["last_boxed"]


def last_boxed(text: str) -> str | None:
    r"""The content without "$", or None when there is no box or its braces do not close.

    A "\boxed " (with a blank) anywhere wins: what follows its last occurrence up to the next "$".
    Else the braces of the last \boxed decide, or of the last \fbox where there is no \boxed.
    """
    if r"\boxed " in text:
        return text.rsplit(r"\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind(r"\boxed")
    if start < 0:
        start = text.rfind(r"\fbox")
    if start < 0:
        return None
    inside = _braces(text, start)
    return None if inside is None else inside.replace("$", "")


def _braces(text: str, start: int) -> str | None:
    """What stands in the first balanced braces from `start` on."""
    opened, depth = -1, 0
    for i in range(start, len(text)):
        if text[i] == "{":
            depth += 1
            opened = i if opened < 0 else opened
        elif text[i] == "}":
            depth -= 1
            if depth <= 0:
                return text[opened + 1 : i] if opened >= 0 else None
    return None
