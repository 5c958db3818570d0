"""A task for the rows of the verdict."""

from __future__ import annotations

from typing import Any

from promptcodebook.types import Example

SEEDS = ("rule zero", "rule one", "rule two", "rule three")


SETTINGS: dict[str, Any] = {
    "size": 4,
    "select": 2,
    "cache": False,
    "init": {"instincts": SEEDS, "prompt": "You are terse."},
    "update": {"epochs": 2, "batch_size": 4},
    "validation": {"every": 1, "subset": 4, "patience": 99},
    "output_format": "Reply with a number.",
}


def examples(split: str, count: int) -> tuple[Example, ...]:
    return tuple(
        Example(f"{split}{i}", f"{split} input number {i}", f"target {i}") for i in range(count)
    )


def reward(example: Example, output: str) -> float:
    """The number that was answered."""
    return float(output) if output.replace(".", "", 1).isdecimal() else 0.0
