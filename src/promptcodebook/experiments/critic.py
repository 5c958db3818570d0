"""`critic` (Table 4): a critic whose rubric is trained, a fixed one, another model, a weak one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptcodebook.experiments.comparison import Beside, Row, compared
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.grid import about, base, missing, runs_of, stopped, variants
from promptcodebook.experiments.lab import Cell
from promptcodebook.experiments.page import Page
from promptcodebook.experiments.published import published
from promptcodebook.lm.spec import parse_spec

PAPER = "ifbench"
_TITLES: Mapping[str, tuple[str, str]] = {
    "pco": ("same model, rubric trained", "Same-model (Trainable)"),
    "fixed-critic": ("same model, rubric fixed", "Same-model (Fixed)"),
    "independent-critic": ("another model", "Independent (Qwen3-8B)"),
    "weak-critic": ("a weak model", "Weak Critic (LLaMA-3.2-3B)"),
}


def _changes(order: Order, spec: str) -> dict[str, Mapping[str, Any]]:
    """Variants that can be run: the last two need a model for the critic."""
    changes: dict[str, Mapping[str, Any]] = {
        "pco": {},
        "fixed-critic": {"critic": {"trainable": False}},
    }
    for name, model in _others(order, spec).items():
        if model:
            changes[name] = {"roles": {"critic": {"model": model}}}
    return changes


def _others(order: Order, spec: str) -> dict[str, str]:
    simulated = parse_spec(spec).kind == "simulated"
    return {
        "independent-critic": order.independent or ("simulated?noise_seed=2" if simulated else ""),
        "weak-critic": order.weak or ("simulated?capacity=0.2" if simulated else ""),
    }


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    return variants(order, base(order, spec, PAPER), _changes(order, spec))


def _page(measured: Measured) -> Page:
    order, spec = measured.order, measured.lab.spec
    runs = {name: runs_of(measured.results, name) for name in _changes(order, spec)}
    rows = [Row(_TITLES[name][0], made, paper=_TITLES[name][1]) for name, made in runs.items()]
    named = {name: model for name, model in _others(order, spec).items() if model}
    absent = [_TITLES[name][0] for name in _TITLES if name not in runs]
    lines = [f"{_TITLES[name][0]}: `{model}`." for name, model in named.items()]
    if absent:
        lines.append(
            f"Not measured, for want of a model: {' and '.join(absent)} (`--independent SPEC`, "
            "`--weak SPEC`)."
        )
    return Page(
        "Critics",
        [
            *about(measured, PAPER, "Who criticises, all else as in the full method, after"),
            compared("critic", rows, Beside(published("Table 4"), {"IFBench": "loose_share"})),
            " ".join(lines),
            *stopped(runs),
            *missing(measured),
        ],
    )


EXPERIMENT = Experiment("critic", "Table 4", "smollm2", 5, _cells, _page, lm_quick="simulated")
