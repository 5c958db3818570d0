"""Printing: results on stdout, as a table or as JSON; notes and questions on stderr."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from promptcodebook.text import printable

if TYPE_CHECKING:
    from promptcodebook.run.verdict import VerdictTable

BETWEEN = ".."
"""Stands between the ends of an interval, as 0.120..0.340."""
_GAP = 2
"""Blanks between two columns."""
_LEAST_TEXT = 24
"""Characters of running text in a line of a table, at the least."""
_NUMBERS = re.compile(r"[-+$~]?\d[\d.,+-]*[kMG]?( .*)?|-|unknown")
"""What is set to the right in its column: numbers, ranges and amounts, not the id of a run."""


def emit(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)


def announced(interrupt: Callable[[], None]) -> Callable[[], None]:
    """The same interrupt, which says what it waits for."""

    def stop() -> None:
        note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        interrupt()

    return stop


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


def screen_width() -> int:
    """Columns of the terminal, or $COLUMNS; 80 where the output goes elsewhere."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def columns(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Rows as aligned text, headed by their keys; numbers to the right.

    Nothing is wider than `width` (None = the screen): a column of running text is broken into
    lines, and columns that find no room follow below, each beside the first one.
    """
    if not rows:
        return ""
    room = width or screen_width()
    parts = [_Column.of(head, [row.get(head, "") for row in rows]) for head in rows[0]]
    text = max((p for p in parts[1:] if p.running), key=lambda p: p.width, default=None)
    if text is not None:
        left = room - sum(p.width + _GAP for p in parts if p is not text)
        parts = [p.broken(max(left, _LEAST_TEXT)) if p is text else p for p in parts]
    return "\n\n".join(_table(block) for block in _blocks(parts, room))


@dataclass(frozen=True)
class _Column:
    """A column, its head first: each cell in lines. `running`: of words that may be broken up."""

    cells: tuple[tuple[str, ...], ...]
    right: bool
    running: bool

    @classmethod
    def of(cls, head: str, values: Sequence[Any]) -> _Column:
        cells = [printable(str(value)) for value in values]
        right = all(_NUMBERS.fullmatch(cell) for cell in cells if cell)
        running = not right and any(len(cell) > _LEAST_TEXT for cell in cells)
        return cls(tuple((cell,) for cell in (head, *cells)), right, running)

    @cached_property
    def width(self) -> int:
        return max(len(line) for cell in self.cells for line in cell)

    def broken(self, width: int) -> _Column:
        """No line longer than `width`."""
        cells = (textwrap.wrap(cell[0], width, break_on_hyphens=False) for cell in self.cells)
        return replace(self, cells=tuple(tuple(lines) or ("",) for lines in cells))

    def lines(self, row: int, count: int) -> list[str]:
        """The cell's lines, filled up to `count` of them, all of the column's width."""
        given = [*self.cells[row], *[""] * (count - len(self.cells[row]))]
        return [line.rjust(self.width) if self.right else line.ljust(self.width) for line in given]


def _blocks(parts: Sequence[_Column], room: int) -> list[list[_Column]]:
    """The columns in tables that fit, each with the first column in front."""
    first, blocks = parts[0], [[parts[0]]]
    for part in parts[1:]:
        taken = sum(each.width + _GAP for each in blocks[-1])
        if taken + part.width > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(part)
    return blocks


def _table(parts: Sequence[_Column]) -> str:
    lines: list[str] = []
    for row in range(len(parts[0].cells)):
        height = max(len(part.cells[row]) for part in parts)
        cells = zip(*(part.lines(row, height) for part in parts), strict=True)
        lines += [(" " * _GAP).join(line).rstrip() for line in cells]
    return "\n".join(lines)


def verdict_text(table: VerdictTable, per: str = "per query:") -> str:
    """A verdict in two tables: the rewards, then what a query costs."""
    scores, costs = (columns(table.cells(BETWEEN, query=query)) for query in (False, True))
    return f"{scores}\n\n{per}\n\n{costs}"


def wrap_text(text: str, first: str = "  ") -> str:
    """The text in lines of the terminal's width, `first` before the first, indented below it."""
    width = min(100, screen_width())
    later = " " * len(first)
    lines: list[str] = []
    for place, line in enumerate(printable(text).splitlines() or [""]):
        lead = first if place == 0 else later
        lines += textwrap.wrap(line, width, initial_indent=lead, subsequent_indent=later) or [lead]
    return "\n".join(line.rstrip() for line in lines)
