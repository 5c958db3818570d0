"""Measured figures beside their goals: printed as lines, kept as JSON."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from promptcodebook.base.intervals import SIDE, Interval
from promptcodebook.base.randomness import keyed_random
from promptcodebook.errors import MissingExtra, PcoError

# The exit code of a bench that needs an extra which is not installed.
LACKING = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; `goal` is an upper bound, a lower one with `at_least`, None = for reading.

    `beside` holds what it stands next to: the bare interpreter, another library.
    """

    name: str
    value: float
    unit: str = ""
    goal: float | None = None
    at_least: bool = False
    beside: str = ""

    @property
    def met(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def line(self) -> str:
        text = f"{self.name:<58}{self.value:>12.3f} {self.unit:<5}"
        if self.goal is not None:
            sign = ">=" if self.at_least else "<="
            text += f" {sign} {self.goal:<8g}{'PASS' if self.met else 'SHORT'}"
        return f"{text}  {self.beside}".rstrip()


def shown(measure: Callable[[], Sequence[Figure]], about: str) -> int:
    """Measures and prints; 1 if a goal is missed, LACKING if it cannot be measured here. `--json
    PATH` keeps the figures too."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    given = parser.parse_args()
    print(about.strip().splitlines()[0], flush=True)
    try:
        figures = measure()
    except MissingExtra as missing:
        print(f"  not run: {missing}\n  next: {missing.hint}", flush=True)
        return LACKING
    except PcoError as error:
        print(f"  failed: {error}\n  next: {error.hint}", flush=True)
        return 1
    for figure in figures:
        print("  " + figure.line(), flush=True)
    if given.json is not None:
        rows = [{**asdict(each), "met": each.met} for each in figures]
        given.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0 if all(each.met for each in figures) else 1


def clustered_interval(
    groups: Sequence[Sequence[float]], seed: int = 0, resamples: int = 2000
) -> Interval:
    """The mean over groups (worlds, runs) of equal weight, which covers another draw of groups as
    well: groups are drawn with replacement, then values within each."""
    if not groups or not all(groups):
        raise ValueError("no values to take an interval of")
    draw = keyed_random(seed, "clustered", len(groups))

    def resampled() -> float:
        chosen = draw.choices(groups, k=len(groups))
        return sum(sum(draw.choices(g, k=len(g))) / len(g) for g in chosen) / len(groups)

    mean = sum(sum(g) / len(g) for g in groups) / len(groups)
    means = sorted(resampled() for _ in range(resamples))
    low, high = means[int(SIDE * resamples)], means[int((1 - SIDE) * resamples) - 1]
    return Interval(mean, low, high, sum(map(len, groups)))
