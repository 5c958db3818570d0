"""Variants of a run side by side, with the paper's numbers in columns of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from promptcodebook.experiments.experiment import difference, score
from promptcodebook.experiments.grid import LEARNED, counts, rewards, tokens
from promptcodebook.experiments.lab import Result
from promptcodebook.experiments.page import Table, shown
from promptcodebook.experiments.published import Published, PublishedTable
from promptcodebook.method.state import entropy, utilisation


@dataclass(frozen=True, slots=True)
class Row:
    """One line: its title, the runs it is taken from, which row of their verdicts, and what the
    paper calls it ('' = it has no such row)."""

    title: str
    runs: Sequence[Result]
    row: str = LEARNED
    paper: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    """The paper's columns to show, each with its metric."""

    table: PublishedTable
    columns: Mapping[str, str]

    def head(self) -> list[str]:
        return [f"paper: {column}" for column in self.columns]

    def cells(self, row: str) -> list[str]:
        found = [self.table.cell(row, c, metric) for c, metric in self.columns.items()]
        return [_printed(value) for value in found]


def _printed(value: Published | None) -> str:
    if value is None:
        return ""
    error = f" ± {value.error:g}" if value.error is not None else ""
    return f"{value.printed}{error}"


def compared(name: str, rows: Sequence[Row], beside: Beside | None = None) -> Table:
    """Reward of each row and its difference to the first, routing entropy and utilisation over the
    test examples, tokens of a query and of training and choosing. Of a difference only the seeds
    count that both rows have."""
    known = [row for row in rows if rewards(row.runs, row.row)]
    head = ["setting", "reward (95 %)", f"minus {known[0].title}" if known else "difference"]
    head += ["entropy (bits)", "used", "tokens a query", "tokens in training and choosing", "runs"]
    head += beside.head() if beside is not None else []
    lines = [
        [*_ours(row, known[0]), *(beside.cells(row.paper) if beside is not None else [])]
        for row in known
    ]
    return Table(name, head, lines)


def _ours(row: Row, first: Row) -> list[str]:
    mine = rewards(row.runs, row.row)
    learned = row.row == LEARNED
    routed = [counts(run) for run in row.runs if run["routes"] and learned]
    return [
        row.title,
        shown(score(mine)),
        "" if row is first else _over(row, first),
        _mean(routed, entropy, ".2f"),
        _mean(routed, lambda c: 100 * utilisation(c), ".0f", " %"),
        f"{fmean(tokens(run, row.row) for run in row.runs if row.row in run['rows']):.0f}",
        f"{fmean(_training(run) for run in row.runs):.0f}" if learned else "0",
        str(len(mine)),
    ]


def _over(row: Row, first: Row) -> str:
    pairs = [
        (a["rows"][row.row]["rewards"], b["rows"][first.row]["rewards"])
        for a, b in zip(row.runs, first.runs, strict=False)
        if row.row in a["rows"] and first.row in b["rows"]
    ]
    if not pairs:
        return ""
    return shown(difference([a for a, _ in pairs], [b for _, b in pairs]), signed=True)


def _training(run: Result) -> float:
    return run["training"]["tokens"]


def _mean(
    routed: Sequence[Sequence[int]],
    figure: Callable[[Sequence[int]], float],
    form: str,
    unit: str = "",
) -> str:
    return f"{fmean(map(figure, routed)):{form}}{unit}" if routed else ""
