"""What a task is: data, a reward, a program, and what an expert would write before training.

Public: a benchmark of your own is a function `load(data_dir: Path | None) -> Task` in any package,
named under the entry-point group `promptcodebook.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from promptcodebook.data import Dataset
from promptcodebook.lm.structured import Ask
from promptcodebook.protocols import Check, Program, Reward
from promptcodebook.types import Example

RewardFactory = Callable[[Ask | None], Reward]
"""Makes a task's reward once the models are connected; without an `Ask` it must do without them."""


def asks_nobody(reward: Reward) -> RewardFactory:
    """The factory of a reward that needs no model."""
    return lambda ask: reward


def _nothing() -> None:
    """What most tasks require."""


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark, or the user's own data with its reward. Frozen: behaviour is handed in.

    `reward_range` is (lowest, full); `seeds` are expert instincts for the first codebook (>= 16
    for a task of ours, () when the user gives none); `base_prompt` stands before every composed
    prompt; `zero_shot` is the plain prompt training is compared with; `output_format` tells the
    generator what form the answer must have. `checks` are passed by every rewrite, beside the
    general ones. `private`: the data are real people's, and a report shows none of their texts.
    `oracle` gives the prompt that is right for an example, where the task knows it: a row to
    compare with, which nobody could deploy. `require` raises MissingExtra or TaskError for what the
    program or the reward needs and is not there; it is called before anything is paid for or
    recorded.
    """

    name: str
    dataset: Dataset
    reward: RewardFactory
    program: Program
    reward_range: tuple[float, float] = (0.0, 1.0)
    seeds: tuple[str, ...] = ()
    base_prompt: str = ""
    zero_shot: str = ""
    description: str = ""
    output_format: str = ""
    checks: tuple[Check, ...] = ()
    private: bool = False
    require: Callable[[], None] = _nothing
    oracle: Callable[[Example], str] | None = None
