"""The forward pass, Eqs. 3-5: route, compose, execute; and the reward of what came out.

At deployment the encoder routes every input. A policy without an encoder (`encoder.mode: none`)
takes the S entries of highest r̄.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from promptcodebook.errors import ConfigError, LMError, Stop, StoreError
from promptcodebook.lm.base import LM, Reply, Schema, no_tally
from promptcodebook.lm.chat import BoundChat
from promptcodebook.method.chains import all_of
from promptcodebook.method.draws import Draws
from promptcodebook.method.encoder import Encoder, Standing, repair_route
from promptcodebook.method.generator import Generator
from promptcodebook.types import (
    Example,
    Executor,
    Failure,
    Message,
    Output,
    Parameters,
    Role,
    Rollout,
    Route,
    Score,
    Tally,
    Usage,
)

__all__ = [
    "Composed",
    "Deployed",
    "FixedPrompt",
    "Policy",
    "Prompter",
    "Scorer",
    "Trial",
    "failure_of",
    "rollout_of",
]

Scorer = Callable[[Example, str], Awaitable[Score]]
"""A reward made uniform: async, checked against its range, RewardError when it misbehaves."""


class Composed(str):
    """A composed prompt; with `compose_per_stage` it holds one prompt for each stage."""

    __slots__ = ("stages",)
    stages: dict[str, str]

    def __new__(cls, text: str, stages: dict[str, str] | None = None) -> Composed:
        made = super().__new__(cls, text)
        made.stages = stages or {}
        return made

    def of(self, stage: str) -> str:
        """The prompt for one stage of a compound executor."""
        return self.stages.get(stage, str(self))


def failure_of(stage: str, error: Exception) -> Failure:
    """An exception as data: a bad rollout is recorded, not raised (method decision 15)."""
    # A call that failed says all in its message; a traceback would show our own code alone.
    ours = isinstance(error, LMError) and stage != "execute"
    shown = "" if ours else "".join(traceback.format_exception(error, limit=-6))
    return Failure(stage, type(error).__name__, str(error), shown, str(getattr(error, "hint", "")))


class Prompter(Protocol):
    """Gives the prompt for an example: a learned policy, or a fixed string to compare with."""

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]: ...


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """The same prompt for every input: zero-shot, the user's present prompt, `concat`."""

    text: str

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]:
        return None, self.text, Usage()


class Policy:
    """The learned parts at work; the parameters come with each call, so that it holds no state."""

    def __init__(
        self, encoder: Encoder, generator: Generator, select: int, stages: Sequence[str] = ()
    ) -> None:
        self._encoder = encoder
        self._generator = generator
        self._select = select
        self._stages = tuple(stages)

    async def route(
        self, parameters: Parameters, standing: Standing, example: Example, draws: Draws
    ) -> tuple[Route, Usage]:
        """z = E_θ(x, C); an empty θ means no encoder."""
        if not parameters.encoder:
            return Route(repair_route((), standing.ema, self._select)), Usage()
        return await self._encoder.route(
            parameters.encoder, parameters.codebook, standing, example.input, draws
        )

    async def compose(
        self,
        parameters: Parameters,
        route: Route,
        example: Example,
        draws: Draws,
    ) -> tuple[Composed, Usage]:
        """p = G_φ(x, C[z]); for a compound executor with `compose_per_stage`, one a stage.

        The whole is then what the critic and the report read: every stage's prompt under its name.
        """
        phi, book = parameters.generator, parameters.codebook
        made = await all_of(
            self._generator.compose(phi, book, route, example.input, draws, stage)
            for stage in self._stages or ("",)
        )
        usage = sum((spent for _, spent in made), Usage())
        if not self._stages:
            return Composed(made[0][0]), usage
        by_stage = {stage: text for stage, (text, _) in zip(self._stages, made, strict=True)}
        whole = "\n\n".join(f"{stage}: {text}" for stage, text in by_stage.items())
        return Composed(whole, by_stage), usage


@dataclass(frozen=True)
class Deployed:
    """A policy with its parameters fixed: x -> p."""

    policy: Policy
    parameters: Parameters
    standing: Standing

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]:
        route, routing = await self.policy.route(self.parameters, self.standing, example, draws)
        prompt, composing = await self.policy.compose(self.parameters, route, example, draws)
        return route, prompt, routing + composing


class _GuardedChat:
    """A chat that lets no paragraph of the prompt reach the untrusted role (decision 13).

    `ended` keeps what ended the run: an agent that catches every error must not turn it into an
    answer.
    """

    def __init__(self, inner: BoundChat, prompt: str) -> None:
        self.ended: Stop | StoreError | None = None
        self._inner = inner
        stages = prompt.stages.values() if isinstance(prompt, Composed) else ()
        self._private = {
            part for p in (prompt, *stages) for part in p.split("\n\n") if part.strip()
        }

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | None = None,
        purpose: str = "",
    ) -> Reply:
        if role == "untrusted":
            sent = messages if isinstance(messages, str) else "\n".join(m.content for m in messages)
            if any(p in f"{system}\n{sent}" for p in self._private):
                raise ConfigError(
                    "the composed prompt was about to be sent to the untrusted role",
                    hint="give the untrusted stage only the rewritten request",
                )
        try:
            return await self._inner(
                messages, system=system, role=role, schema=schema, purpose=purpose
            )
        except (Stop, StoreError) as error:
            self.ended = error
            raise


@dataclass(frozen=True)
class Trial:
    """y = M(p, x) and r(y, y*): executor and reward bound together."""

    executor: Executor
    scorer: Scorer | None
    lm: LM
    greedy: bool = False
    tally: Tally = no_tally

    async def run(self, example: Example, prompt: str, draws: Draws, rollout: Rollout) -> Rollout:
        """The rollout completed by output and reward, or by the failure of either."""
        chat = BoundChat(
            self.lm, lambda purpose: draws.sample(f"execute {purpose}"), self.greedy, self.tally
        )
        guarded = _GuardedChat(chat, prompt)
        try:
            output = _checked(await self.executor(prompt, example, guarded))
        except (Stop, StoreError):
            raise
        except Exception as error:
            if guarded.ended is not None:
                raise guarded.ended from None
            spent = rollout.usage + chat.usage
            return replace(rollout, failure=failure_of("execute", error), usage=spent)
        if guarded.ended is not None:
            raise guarded.ended
        rollout = replace(
            rollout,
            output=output.text,
            stages=output.trace,
            truncated=output.truncated or chat.truncated,
            usage=rollout.usage + chat.usage,
        )
        return await self._score(example, rollout)

    async def _score(self, example: Example, rollout: Rollout) -> Rollout:
        if self.scorer is None:
            return rollout
        try:
            score = await self.scorer(example, rollout.output)
        except (Stop, StoreError):
            raise
        except Exception as error:
            return replace(rollout, failure=failure_of("reward", error))
        return replace(rollout, reward=score.value, feedback=score.feedback)


def _checked(made: object) -> Output:
    """What an executor returned; an agent that forgot its return must not be scored for it."""
    output = made if isinstance(made, Output) else Output(cast(str, made))
    if not isinstance(output.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"the executor returned {type(output.text).__name__}, not a text or an Output"
        )
    return output


async def rollout_of(prompter: Prompter, trial: Trial, example: Example, draws: Draws) -> Rollout:
    """One whole forward pass; a failure of any part is part of the result."""
    rollout = Rollout(example.id)
    try:
        route, prompt, usage = await prompter.prompt(example, draws)
    except (Stop, StoreError):
        raise
    except Exception as error:
        return replace(rollout, failure=failure_of("prompt", error))
    rollout = replace(rollout, route=route, prompt=str(prompt), usage=usage)
    return await trial.run(example, prompt, draws, rollout)
