"""An experiment as values: what is measured, in which order, and what it shows.

A file of this room that `reproduce.py` names holds one, as `EXPERIMENT`: its cells, which are
settings of runs, and its page.

Rewards of several runs over the same examples: their mean, and what one has over another.

Differences are paired by example; where several seeds took part, the interval covers other seeds as
well (`intervals.py::crossed_interval`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.errors import Stop
from promptcodebook.experiments.lab import Cell, Lab
from promptcodebook.experiments.page import Page
from promptcodebook.intervals import Interval, crossed_interval, crossed_ratio


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `pco reproduce NAME` measures, and the page that shows it.

    `paper` names the table or figure. `lm` and `seeds` are those used unless others are named, and
    `lm_quick` where the preset is `quick`.
    Experiments of one `folder` share their runs and replies.
    """

    name: str
    paper: str
    lm: str
    seeds: int
    cells: Callable[[Order, str], Sequence[Cell]]
    """Of an order and a model's spec."""
    page: Callable[[Measured], Page]
    presets: Sequence[str] = ("quick", "default", "paper")
    """The smallest shows whether everything runs, `paper` is the paper's own size."""
    folder: str = "tables"
    lm_quick: str = "smollm2"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured, how much of it, and for how many seeds; `task` and `data` (a folder)
    where it is not the experiment's own task; `independent` and `weak` are models for the critic,
    where an experiment asks for them."""

    experiment: Experiment
    preset: str
    seeds: int
    task: str = ""
    data: str = ""
    independent: str = ""
    weak: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results by cell; `missing` are the cells without one, with the reason where there is one;
    `stop` is what ended it early."""

    order: Order
    lab: Lab
    results: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    stop: Stop | None = None


Rewards = Sequence[Sequence[float]]
"""By run, then by example."""


def score(runs: Rewards) -> Interval:
    """The mean reward."""
    return crossed_interval(runs)


def difference(a: Rewards, b: Rewards) -> Interval:
    """The mean of a - b; where only one of the two has several runs, the other stands beside each
    of them."""
    runs = max(len(a), len(b))
    wide_a, wide_b = (list(x) * runs if len(x) == 1 else x for x in (a, b))
    return crossed_interval(
        [_minus(one, other) for one, other in zip(wide_a, wide_b, strict=True)],
        bounds=(-1.0, 1.0),
    )


def share(a: Rewards, whole: Rewards, floor: Rewards) -> Interval:
    """(a - floor) / (whole - floor): how much of the whole gain a has."""
    won = [_minus(x, y) for x, y in zip(a, floor, strict=True)]
    right = [_minus(x, y) for x, y in zip(whole, floor, strict=True)]
    return crossed_ratio(won, right)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [round(x - y, 12) for x, y in zip(a, b, strict=True)]
