"""A task from the user's own data, reward and, where there is one, agent."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from promptcodebook.data import Dataset
from promptcodebook.lm.base import Chat
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.single import single_call
from promptcodebook.tasks.user_code import load_function
from promptcodebook.types import Example, Executor, Output, Reward

__all__ = ["make_executor", "user_task"]

_Agent = Callable[[str, Example, Chat], str | Output | Awaitable[str | Output]]


@dataclass(frozen=True, slots=True)
class _Adapted:
    """The user's agent, whether it is async or not."""

    agent: _Agent

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the agent's stages, where it declares them."""
        return tuple(getattr(self.agent, "stages", ()))

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> str | Output:
        made = self.agent(prompt, example, lm)
        return await made if inspect.isawaitable(made) else made


def make_executor(spec: str | Executor | None, base: Path) -> Executor:
    """One call to the executor role, or the user's agent: a function or 'agent.py:run'."""
    if not spec:
        return single_call
    if isinstance(spec, str):
        found = load_function(spec, base, "executor", ("prompt", "example", "lm"))
        return _Adapted(cast("_Agent", found))
    return _Adapted(cast("_Agent", spec))


def user_task(
    dataset: Dataset,
    reward: Reward,
    *,
    executor: Executor | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    base_prompt: str = "",
) -> Task:
    """The task that a configuration without `task` describes; its seeds come from `init`."""
    return Task(
        name=dataset.name,
        dataset=dataset,
        reward=reward,
        executor=executor or single_call,
        reward_range=reward_range,
        base_prompt=base_prompt,
        description=f"the user's own data: {dataset.name}",
    )
