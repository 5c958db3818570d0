"""`ablation` (Table 3): what each part of PCO is worth, by leaving it out; and parts of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptcodebook.experiments.comparison import Beside, Row, compared
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.grid import about, base, missing, runs_of, stopped, variants
from promptcodebook.experiments.lab import Cell
from promptcodebook.experiments.page import Page
from promptcodebook.experiments.published import published

PAPER = "ifbench"
"""The benchmark of the paper's table."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "pco": {},
    "static-encoder": {"encoder": {"mode": "static"}},
    "no-encoder": {"encoder": {"mode": "none"}},
    "no-text-updates": {"update": {"text_updates": False}},
    "no-exploration": {"explore": {"policy": "none"}},
    "uniform": {"explore": {"policy": "uniform"}},
    "learned-router": {"router": {"kind": "outcomes"}, "compose": "verbatim"},
    "verbatim": {"compose": "verbatim"},
    "accept-improve": {"update": {"accept": "improve"}},
    "maintained": {"update": {"maintain_every": 5}},
}
"""Settings by variant; the paper's come first."""
_TITLES: Mapping[str, tuple[str, str]] = {
    "pco": ("PCO (full)", "PCO (Full)"),
    "static-encoder": ("encoder static (θ stays as it began)", "w/o Encoder"),
    "no-encoder": ("no encoder (explored routes only)", ""),
    "no-text-updates": ("no textual gradients", "w/o TextGrad"),
    "no-exploration": ("no ε-greedy exploration", "w/o ε-greedy"),
    "uniform": ("uniform exploration", "Uniform Sampling"),
    "learned-router": ("ours: router learned from outcomes, verbatim", ""),
    "verbatim": ("ours: instincts verbatim, no generator", ""),
    "accept-improve": ("ours: rewrites kept only if the batch does not lose", ""),
    "maintained": ("ours: codebook tidied every 5 steps", ""),
}


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    return variants(order, base(order, spec, PAPER), VARIANTS)


def _page(measured: Measured) -> Page:
    runs = {name: runs_of(measured.results, name) for name in VARIANTS}
    rows = [Row(_TITLES[name][0], runs[name], paper=_TITLES[name][1]) for name in VARIANTS]
    rows.append(Row("present prompt", runs["pco"], "present", "Baseline"))
    columns = {
        "Acc": "loose_share",
        "CSR": "csr",
        "Ent.": "routing_entropy",
        "Δ": "loose_share_gain",
    }
    beside = Beside(published("Table 3"), columns)
    return Page(
        "Ablation",
        [
            *about(measured, PAPER, "Components left out one at a time, after"),
            compared("ablation", rows, beside),
            "The paper does not say what stands in the encoder's place without it: here θ stays as "
            "it began, and beside it no encoder is asked at all and routes come from exploration. "
            "The paper's Δ is over zero-shot; ours is over the full method, with its interval.",
            *stopped(runs),
            *missing(measured),
        ],
    )


EXPERIMENT = Experiment("ablation", "Table 3", "smollm2", 5, _cells, _page, lm_quick="simulated")
