"""Printing: results on stdout, as a table or as JSON; words about progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["columns", "emit", "money", "note", "number"]


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


def columns(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text, headed by their keys; numbers to the right."""
    if not rows:
        return ""
    heads = list(rows[0])
    cells = [[str(row.get(h, "")) for h in heads] for row in rows]
    widths = [max(len(h), *(len(c[i]) for c in cells)) for i, h in enumerate(heads)]
    right = [
        all(c[i][:1].isdigit() or c[i][:1] in "+-$~" for c in cells if c[i])
        for i in range(len(heads))
    ]

    def line(values: Sequence[str]) -> str:
        padded = (
            v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(heads), *(line(c) for c in cells)])
