"""Printing: results on stdout, as a table or as JSON; notes and questions on stderr."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from promptcodebook.text import printable
from promptcodebook.units import money

__all__ = [
    "columns",
    "confirm",
    "cost_text",
    "emit",
    "note",
    "plural",
    "range_text",
    "wrap_text",
]

_NUMBERS = re.compile(r"[-+$~]?\d[\d.,+-]*[kMG]?( .*)?|-|unknown")
"""What is set to the right in its column: numbers, ranges and amounts, not the id of a run."""


def emit(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Asks on a terminal; without one, --yes is needed. ConfigError `refusal` for a no."""
    import typer

    from promptcodebook.errors import ConfigError

    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{refusal} (there is no terminal to ask on)", hint="add --yes")
    with contextlib.redirect_stdout(sys.stderr):  # the question must not end up in a result
        agreed = typer.confirm(question, prompt_suffix=" ")
    if not agreed:
        raise ConfigError(refusal, hint="answer y, or add --yes")


def range_text(low: float, high: float, *, signed: bool = False) -> str:
    """The ends of an interval: 0.120..0.340."""
    return f"{low:+.3f}..{high:+.3f}" if signed else f"{low:.3f}..{high:.3f}"


def cost_text(usd: float | None) -> str:
    """USD in a line of text, where a bare 'unknown' would not say what is unknown."""
    return "cost unknown" if usd is None else money(usd)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """'1 reply', '2 replies'; `nouns` where the plural is not the noun with an s."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


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


def wrap_text(text: str, first: str = "  ") -> str:
    """The text in lines of the terminal's width, `first` before the first, indented below it."""
    width = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
    later = " " * len(first)
    lines: list[str] = []
    for place, line in enumerate(printable(text).splitlines() or [""]):
        lead = first if place == 0 else later
        lines += textwrap.wrap(line, width, initial_indent=lead, subsequent_indent=later) or [lead]
    return "\n".join(line.rstrip() for line in lines)
