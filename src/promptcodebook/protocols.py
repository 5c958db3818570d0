"""The Protocols that the house is handed, each of one method: programs, the user's agents, rewards
and checks of rewrites."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence, Set
from typing import Protocol

from promptcodebook.calls import Chat, Role
from promptcodebook.types import Example, Output, Prompt, Score, Variable


class Program(Protocol):
    """y = M(p, x): the frozen model, or a pipeline of calls to it.

    `name` is what a policy file remembers it by; `stages` names its modules, so that each may have
    a prompt of its own; `roles` are those that it asks beside the executor.
    """

    @property
    def name(self) -> str: ...

    @property
    def stages(self) -> Sequence[str]: ...

    @property
    def roles(self) -> Set[Role]: ...

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output: ...


class Executor(Protocol):
    """The user's own agent: a function of prompt, example and chat; sync is fine too.

    One that declares `stages` may annotate its prompt as `Prompt` and ask it for each stage's.
    """

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> str | Output: ...


Scored = float | bool | Score | tuple[float, str] | Mapping[str, float | str]
"""What a reward may return: a number, one with feedback, or {"score": number, "feedback": text}."""


class TextReward(Protocol):
    """r(y, y*) of y's text: a number in the task's range, alone or with feedback; may be async."""

    def __call__(self, example: Example, output: str) -> Scored | Awaitable[Scored]: ...


class OutputReward(Protocol):
    """r(y, y*) of the whole Output: its parameter is annotated as `Output`."""

    def __call__(self, example: Example, output: Output) -> Scored | Awaitable[Scored]: ...


Reward = TextReward | OutputReward


class Check(Protocol):
    """Looks at a rewrite before it is kept: None = fine, else the reason for refusing it."""

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None: ...
