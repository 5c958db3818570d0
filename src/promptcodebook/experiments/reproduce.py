"""An experiment from its cells to its page; what is finished is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.errors import ConfigError, PcoError, Stop, did_you_mean
from promptcodebook.experiments import small_real_model, small_real_model_page
from promptcodebook.experiments.lab import Cell, Lab

__all__ = [
    "EXPERIMENTS",
    "PRESETS",
    "Experiment",
    "Measured",
    "Order",
    "experiment_named",
    "measure",
    "write_page",
]

PRESETS = ("default", "quick")


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `pco reproduce NAME` measures, and how the page is written."""

    name: str
    lm: str
    seeds: int
    cells: Callable[[str, int, str], Sequence[Cell]]
    """Of a preset, a number of seeds and a model's spec."""
    page: Callable[[Measured], str]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured, how much of it, and for how many seeds."""

    experiment: Experiment
    preset: str
    seeds: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Results by cell; `missing` are the cells without one, with the reason where there is one;
    `stop` is what ended it early."""

    order: Order
    lab: Lab
    results: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    stop: Stop | None = None


def _cells_of_small(preset: str, seeds: int, spec: str) -> Sequence[Cell]:
    return small_real_model.cells(small_real_model.scale_of(preset, seeds), spec)


def _page_of_small(measured: Measured) -> str:
    order, lab = measured.order, measured.lab
    about = small_real_model_page.About(
        command=f"pco reproduce small-real-model --preset {order.preset} --seeds {order.seeds} "
        f"--lm {lab.spec}",
        lm=lab.spec,
        weights=lab.weights,
        versions=lab.versions,
        scale=small_real_model.scale_of(order.preset, order.seeds),
        missing=measured.missing,
    )
    return small_real_model_page.page(measured.results, about)


EXPERIMENTS: Mapping[str, Experiment] = {
    "small-real-model": Experiment(
        "small-real-model", "smollm2", 5, _cells_of_small, _page_of_small
    )
}


def experiment_named(name: str) -> Experiment:
    """ConfigError for an unknown one."""
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"there is nothing to reproduce under the name {name!r}"
            f"{did_you_mean(name, EXPERIMENTS)}",
            hint=f"pco reproduce {' | '.join(EXPERIMENTS)}",
        )
    return EXPERIMENTS[name]


def measure(order: Order, lab: Lab, tell: Callable[[str], None]) -> Measured:
    """Every cell that is not finished, in turn: one that fails is noted and the others go on; a
    Stop ends all, and what was finished is kept."""
    cells = order.experiment.cells(order.preset, order.seeds, lab.spec)
    results: dict[str, Mapping[str, Any]] = {}
    missing: dict[str, str] = {}
    stop: Stop | None = None
    for number, cell in enumerate(cells, 1):
        known = lab.read(cell)
        if known is None and stop is None:
            tell(f"{cell.name} ({number} of {len(cells)})")
            try:
                known = cell.measure(lab)
                lab.keep(cell, known)
            except Stop as reached:
                stop = reached
            except PcoError as error:
                missing[cell.name] = str(error)
                tell(f"{cell.name} failed: {error}")
        if known is not None:
            results[cell.name] = known
        else:
            missing.setdefault(cell.name, "")
    return Measured(order, lab, results, missing, stop)


def write_page(path: Path, text: str) -> None:
    """The page at `path`, its folder made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
