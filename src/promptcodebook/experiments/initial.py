"""`init` (Tables 11 and 12): the task's own first instincts against generic ones from a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptcodebook.experiments.comparison import Beside, Row, compared
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.grid import about, base, missing, runs_of, stopped, variants
from promptcodebook.experiments.lab import Cell, Result
from promptcodebook.experiments.page import Block, Page, Table
from promptcodebook.experiments.published import published

PAPER = "ifbench"
_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "pco": {},
    "random-init": {"init": {"kind": "random"}},
}
_TITLES: Mapping[str, tuple[str, str]] = {
    "pco": ("expert: the task's own", "Expert-Seeded"),
    "random-init": ("random: a model's generic ones", "Random"),
}
_SHOWN = 8
"""First instincts that a table shows of each."""


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    return variants(order, base(order, spec, PAPER), _VARIANTS)


def _page(measured: Measured) -> Page:
    runs = {name: runs_of(measured.results, name) for name in _VARIANTS}
    rows = [Row(_TITLES[name][0], made, paper=_TITLES[name][1]) for name, made in runs.items()]
    beside = Beside(published("Table 11"), {"Test Acc": "loose_share", "CSR": "csr"})
    return Page(
        "First instincts",
        [
            *about(measured, PAPER, "Two ways to begin, after"),
            compared("initialisation", rows, beside),
            *_first({name: made[0] for name, made in runs.items() if made}),
            *stopped(runs),
            *missing(measured),
        ],
    )


def _first(runs: Mapping[str, Result]) -> list[Block]:
    """The instincts of seed 0 before the first update, side by side."""
    if len(runs) < len(_VARIANTS):
        return []
    columns = [run["first"][:_SHOWN] for run in runs.values()]
    lines = [[str(k), *texts] for k, texts in enumerate(zip(*columns, strict=False))]
    head = ["index", *(_TITLES[name][0] for name in runs)]
    return ["## At the start, seed 0", Table("seeds", head, lines)]


EXPERIMENT = Experiment(
    "init", "Tables 11 and 12", "smollm2", 5, _cells, _page, lm_quick="simulated"
)
