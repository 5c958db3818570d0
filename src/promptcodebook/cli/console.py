"""Printing: results on stdout, as a table or as JSON; notes and questions on stderr."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from promptcodebook.text import printable

if TYPE_CHECKING:
    from promptcodebook.run.verdict import VerdictTable

BETWEEN = ".."
"""Comes between the ends of an interval, as 0.120..0.340."""
_GAP = 2  # blanks between two columns
_LEAST_TEXT = 24  # characters of running text in a line of a table
_NUMBERS = re.compile(r"[-+$~]?\d[\d.,+-]*[kMG]?( .*)?|-|unknown")
"""What is set to the right in its column: numbers, ranges and amounts, not the id of a run."""


def emit(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def show(tree: Callable[[], object], text: Callable[[], str], *, as_json: bool) -> None:
    """A result on stdout, for machines or for people."""
    if as_json:
        emit(tree())
    else:
        print(text())


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


def columns(rows: Sequence[Mapping[str, object]], width: int | None = None) -> str:
    """Rows as aligned text, headed by their keys; numbers to the right.

    Nothing is wider than `width` (None = the screen): a column of running text is broken into
    lines, and columns that find no room follow below, each beside the first one.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return ""
    room = width or screen_width()
    cells = {head: [printable(str(row.get(head, ""))) for row in rows] for head in rows[0]}
    right = {h: all(_NUMBERS.fullmatch(c) for c in cells[h] if c) for h in cells}
    widths = {head: max(map(cell_len, (head, *cells[head]))) for head in cells}
    first, *others = cells
    running = [h for h in others if not right[h] and widths[h] > max(_LEAST_TEXT, cell_len(h))]
    if running:
        text = max(running, key=lambda head: widths[head])
        taken = sum(each + _GAP for head, each in widths.items() if head != text)
        widths[text] = min(widths[text], max(room - taken, _LEAST_TEXT))
    blocks = [[first]]
    for head in others:
        taken = sum(widths[h] + _GAP for h in blocks[-1])
        if taken + widths[head] > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(head)
    shown: list[str] = []
    for block in blocks:
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
        for head in block:
            side = "right" if right[head] else "left"
            table.add_column(Text(head), justify=side, width=widths[head], overflow="fold")
        for row in zip(*(cells[head] for head in block), strict=True):
            table.add_row(*map(Text, row))
        fit = sum(widths[head] + _GAP for head in block)
        console = Console(width=fit, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(table)
        shown.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
    return "\n\n".join(shown)


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
