"""What a run is told before it starts: configuration, task, and the codebook it was given."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.config import Config
from promptcodebook.errors import DataError
from promptcodebook.tasks.base import Task
from promptcodebook.types import Example, Instinct

__all__ = ["RunPlan"]


@dataclass(frozen=True)
class RunPlan:
    """`given` are the instincts of `init.path`, for init.kind = 'file'."""

    config: Config
    task: Task
    given: tuple[Instinct, ...] = ()

    def checked(self) -> RunPlan:
        """Raises DataError for a split that training cannot do without."""
        if not self.task.dataset.train:
            raise DataError(
                f"the training split of {self.task.name} is empty",
                hint="give it examples, or change data.fractions",
            )
        return self

    @property
    def present_prompt(self) -> str:
        """What the user has today: the given prompt, else the task's zero-shot prompt."""
        return self.config.init.prompt or self.task.zero_shot

    def split(self, name: str) -> tuple[Example, ...]:
        return self.task.dataset.split(name)
