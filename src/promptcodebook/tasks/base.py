"""What a task is: data, a reward, an executor, and what an expert would write before training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from promptcodebook.data import Dataset
from promptcodebook.lm.structured import Ask
from promptcodebook.types import Check, Executor, Reward

__all__ = ["Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark, or the user's own data with its reward. Frozen: behaviour is handed in.

    `reward_range` is (lowest, full); `seeds` are expert instincts for the first codebook (>= 16
    for a task of ours, () when the user gives none); `base_prompt` stands before every composed
    prompt; `zero_shot` is the plain prompt training is compared with; `output_format` tells the
    generator what form the answer must have. `judged` makes the reward where a judge is asked
    (its `calls` say how often); `reward` is then the stand-in for it, which asks nobody.
    `checks` are passed by every rewrite, beside the general ones. `private`: the
    data are real people's, and a report shows none of their texts.
    """

    name: str
    dataset: Dataset
    reward: Reward
    executor: Executor
    reward_range: tuple[float, float] = (0.0, 1.0)
    seeds: tuple[str, ...] = ()
    base_prompt: str = ""
    zero_shot: str = ""
    description: str = ""
    output_format: str = ""
    judged: Callable[[Ask], Reward] | None = None
    checks: tuple[Check, ...] = ()
    private: bool = False
