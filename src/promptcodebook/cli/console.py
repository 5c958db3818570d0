"""Printing: results on stdout, as a table or as JSON; words about progress on stderr."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["columns", "duration", "emit", "money", "note", "number", "printable", "size", "wrapped"]

_NUMBERS = re.compile(r"[-+$~]?\d[\d.,+-]*[kMG]?( .*)?|-|unknown")
"""What stands to the right in its column: numbers, ranges and amounts, not the id of a run."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")


def printable(text: str) -> str:
    """The text without control characters but line breaks and tabs: what a model or a server wrote
    must not steer a terminal."""
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()


def emit(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)


def number(value: float | None, digits: int = 3) -> str:
    """A number, or '-' where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def money(usd: float | None) -> str:
    """USD, or 'unknown': an unknown price is not 0."""
    return "unknown" if usd is None else f"${usd:.4f}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{left} min {rest:02d} s"


def size(count: int) -> str:
    """Bytes as a person reads them."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, "kB"
    for bigger in ("MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{value:.1f} {unit}"


def columns(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text, headed by their keys; numbers to the right."""
    if not rows:
        return ""
    heads = list(rows[0])
    cells = [[printable(str(row.get(h, ""))) for h in heads] for row in rows]
    widths = [max(len(h), *(len(c[i]) for c in cells)) for i, h in enumerate(heads)]
    right = [all(_NUMBERS.fullmatch(c[i]) for c in cells if c[i]) for i in range(len(heads))]

    def line(values: Sequence[str]) -> str:
        padded = (
            v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(heads), *(line(c) for c in cells)])


def wrapped(text: str, first: str = "  ") -> str:
    """The text in lines of the terminal's width, `first` before the first, indented below it."""
    width = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
    later = " " * len(first)
    lines: list[str] = []
    for place, line in enumerate(printable(text).splitlines() or [""]):
        lead = first if place == 0 else later
        lines += textwrap.wrap(line, width, initial_indent=lead, subsequent_indent=later) or [lead]
    return "\n".join(line.rstrip() for line in lines)
