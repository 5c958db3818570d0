"""What a task is: data, a reward, a program, and what an expert would write before training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from promptcodebook.data import Dataset
from promptcodebook.errors import TaskError, plug_in, registered
from promptcodebook.lm.structured import Ask
from promptcodebook.types import Check, Example, Program, Reward

# Makes a task's reward once the models are connected; without an `Ask` it must do without them.
RewardFactory = Callable[[Ask | None], Reward]


def asks_nobody(reward: Reward) -> RewardFactory:
    """The factory of a reward that needs no model."""
    return lambda ask: reward


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark, or the user's own data with its reward.

    - `name`, `description`: what it is called, and a sentence about it.
    - `dataset`, `reward`, `program`: the examples, the factory of r, and what answers.
    - `reward_range`: (lowest, full) reward.
    - `seeds`: expert instincts for the first codebook.
    - `base_prompt`: precedes every composed prompt.
    - `zero_shot`: the plain prompt that training is compared with.
    - `output_format`: tells the generator what form the answer must have.
    - `checks`: what every rewrite passes, beside the general checks.
    - `private`: whether reports show none of the data's texts.
    - `require`: raises MissingExtra or TaskError when something that is needed is not there. It is
      called before anything is paid for or recorded.
    - `oracle`: the prompt that is right for an example, a row to compare with. None: not known.
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
    require: Callable[[], None] = lambda: None
    oracle: Callable[[Example], str] | None = None


GROUP = "promptcodebook.tasks"


def task_names() -> tuple[str, ...]:
    """The names `load_task` knows, sorted."""
    return tuple(sorted(registered(GROUP).names))


def load_task(name: str, data_dir: Path | None = None) -> Task:
    """A ready-made task with its data, from `data_dir`, else from $PCO_DATA, else as it ships.
    Raises TaskError for an unknown name, for a package that cannot be loaded or that offers no
    Task, and for data that is not there (it says which file)."""
    ready = "ready-made tasks: {}; or your own data under [data]"
    load = plug_in(GROUP, name, "task", fault=TaskError, hint=ready)
    named = os.environ.get("PCO_DATA")
    if data_dir and not (named and data_dir.resolve() == Path(named).resolve()):
        if not data_dir.exists():
            message = f"no folder {str(data_dir)!r}"
            raise TaskError(message, hint="--data FOLDER, with the task's data")
        if next(iter(signature(load).parameters), "").startswith("_"):
            message = f"--data has no effect on the task {name}, which has its own data"
            raise TaskError(message, hint="leave --data out")
    task: object = load(data_dir or (Path(named) if named else None))
    if not isinstance(task, Task):
        message = f"the task {name!r} returned {type(task).__name__}"
        raise TaskError(message, hint="it must return a promptcodebook.tasks.Task")
    return task
