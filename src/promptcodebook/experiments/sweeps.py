"""`sweep-k`, `sweep-s` (Figure 5) and `sensitivity` (Figure 6): one setting after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from promptcodebook.experiments.comparison import Beside, Row, compared
from promptcodebook.experiments.experiment import Experiment, Measured, Order, score
from promptcodebook.experiments.grid import (
    about,
    base,
    counts,
    missing,
    rewards,
    runs_of,
    scale_of,
    stopped,
    variants,
)
from promptcodebook.experiments.lab import Cell, Result
from promptcodebook.experiments.page import Block, Curves, Page, Point
from promptcodebook.experiments.published import PublishedTable, published
from promptcodebook.method.state import entropy

IFBENCH, HOTPOTQA = "ifbench", "hotpotqa"
"""The benchmarks of the paper's two figures."""
SIZES = (4, 16, 32)
SELECTS = (1, 4, 6)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One setting over its values: `change` makes the settings of a value; the paper has it as
    `row`, or its rows are the values themselves."""

    key: str
    title: str
    values: Sequence[float]
    change: Callable[[float], Mapping[str, Any]]
    row: str = ""

    def names(self) -> dict[str, float]:
        return {f"{self.key}-{value:g}": value for value in self.values}


def _k(order: Order) -> _Sweep:
    small = order.preset == "quick"
    values = (4, 8, 16) if small else SIZES
    select = scale_of(order.preset).select
    return _Sweep(
        "K", "codebook size K", values, lambda k: {"size": int(k), "select": min(select, int(k))}
    )


def _s(order: Order) -> _Sweep:
    values = (1, 2, 4) if order.preset == "quick" else SELECTS
    return _Sweep("S", "instincts in a prompt, S", values, lambda s: {"select": int(s)})


def _sensitive(order: Order) -> list[_Sweep]:
    """The paper's values; first, middle and last of them unless the preset is `paper`."""
    table = published("Figure 6")

    def values(row: str) -> list[float]:
        found = [float(value.column) for value in table.values if value.row == row]
        whole = order.preset == "paper" or len(found) <= 3
        if order.preset == "quick":
            return [found[0], found[-1]]
        return found if whole else [found[0], found[len(found) // 2], found[-1]]

    def temperature(role: str) -> _Sweep:
        row = f"{role} temperature"
        return _Sweep(
            f"{role}-temperature",
            f"temperature of the {role}",
            values(row),
            lambda t: {"roles": {role: {"temperature": t}}},
            row,
        )

    alpha = _Sweep(
        "alpha",
        "step size α of the averages",
        values("EMA step size α"),
        lambda a: {"explore": {"alpha": a}},
        "EMA step size α",
    )
    return [alpha, *(temperature(role) for role in ("critic", "encoder", "generator"))]


def _cells_of(order: Order, spec: str, paper: str, sweeps: Sequence[_Sweep]) -> Sequence[Cell]:
    changes = {name: s.change(value) for s in sweeps for name, value in s.names().items()}
    return variants(order, base(order, spec, paper), changes)


def _shown(sweep: _Sweep, results: Mapping[str, Result], table: PublishedTable) -> list[Block]:
    """A table and a figure of one sweep."""
    runs = {value: runs_of(results, name) for name, value in sweep.names().items()}
    known = {value: made for value, made in runs.items() if rewards(made)}
    if not known:
        return []
    rows = [
        Row(f"{sweep.key} = {value:g}", made, paper=f"{sweep.key}={value:g}")
        for value, made in known.items()
    ]
    beside = None if sweep.row else Beside(table, {"Acc": "loose_share", "CSR": "csr"})
    blocks: list[Block] = [f"## {sweep.title}", compared(sweep.key, rows, beside)]
    if sweep.row:
        blocks.append(_in_print(sweep, table))
    return [*blocks, _figure(sweep, known)]


def _in_print(sweep: _Sweep, table: PublishedTable) -> str:
    """The paper's points of one row of Figure 6."""
    points = [f"{v.column}: {v.printed}" for v in table.values if v.row == sweep.row]
    return f"The paper, in exact match of HotpotQA (%): {', '.join(points)}."


def _figure(sweep: _Sweep, runs: Mapping[float, Sequence[Result]]) -> Curves:
    ours = {value: score(rewards(made)) for value, made in runs.items()}
    mixed = {
        value: fmean(entropy(counts(run)) for run in made if run["routes"])
        for value, made in runs.items()
        if any(run["routes"] for run in made)
    }
    return Curves(
        name=f"{sweep.key}-figure",
        title=f"Reward and routing entropy by {sweep.title}",
        x=sweep.title,
        y="reward",
        lines={"reward": [Point(x, i.mean, i.low, i.high) for x, i in ours.items()]},
        right={"entropy": [Point(x, y) for x, y in mixed.items()]},
        y_right="entropy (bits)",
        log_x=sweep.key == "K",
    )


def _page_of(
    measured: Measured, title: str, paper: str, sweeps: Sequence[_Sweep], table: str
) -> Page:
    made = {n: runs_of(measured.results, n) for s in sweeps for n in s.names()}
    printed = published(table)
    return Page(
        title,
        [
            *about(
                measured, paper, "One setting after another, all else as in the full method, after"
            ),
            *(block for s in sweeps for block in _shown(s, measured.results, printed)),
            *stopped(made),
            *missing(measured),
        ],
    )


SWEEP_K = Experiment(
    "sweep-k",
    "Figure 5a",
    "smollm2",
    5,
    lambda order, spec: _cells_of(order, spec, IFBENCH, [_k(order)]),
    lambda m: _page_of(m, "Codebook size K", IFBENCH, [_k(m.order)], "Figure 5a"),
    lm_quick="simulated",
)
SWEEP_S = Experiment(
    "sweep-s",
    "Figure 5b",
    "smollm2",
    5,
    lambda order, spec: _cells_of(order, spec, IFBENCH, [_s(order)]),
    lambda m: _page_of(m, "Instincts in a prompt, S", IFBENCH, [_s(m.order)], "Figure 5b"),
    lm_quick="simulated",
)
SENSITIVITY = Experiment(
    "sensitivity",
    "Figure 6",
    "smollm2",
    5,
    lambda order, spec: _cells_of(order, spec, HOTPOTQA, _sensitive(order)),
    lambda m: _page_of(m, "Sensitivity", HOTPOTQA, _sensitive(m.order), "Figure 6"),
    lm_quick="simulated",
)
