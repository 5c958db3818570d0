"""A set of graded responses in one figure each: strict and loose, at three levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.errors import DataError
from promptcodebook.tasks.ifbench.score import Grade

__all__ = ["Accuracy", "Level", "accuracy"]


@dataclass(frozen=True, slots=True)
class Level:
    """Shares in [0, 1]: prompts with all instructions followed, instructions followed pooled over
    all prompts, and the mean over prompts of the share followed (CSR)."""

    prompt: float
    instruction: float
    share: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Both readings over n prompts; the IFBench paper reports `loose.prompt`."""

    strict: Level
    loose: Level
    n: int


def accuracy(grades: Sequence[Grade]) -> Accuracy:
    """The figures of a set. Raises DataError over no grades."""
    if not grades:
        raise DataError("no graded responses", hint="grade at least one")
    return Accuracy(
        _level([g.strict for g in grades]), _level([g.loose for g in grades]), len(grades)
    )


def _level(lists: Sequence[Sequence[bool]]) -> Level:
    pooled = [followed for each in lists for followed in each]
    shares = [sum(each) / len(each) if each else 1.0 for each in lists]
    return Level(
        prompt=sum(all(each) for each in lists) / len(lists),
        instruction=sum(pooled) / len(pooled) if pooled else 1.0,
        share=sum(shares) / len(shares),
    )
