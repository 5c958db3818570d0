"""Configuration, and what the user hands over as objects -> a task and a first codebook."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from promptcodebook.config import Config
from promptcodebook.data import Dataset, load_settings
from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import LM
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.registry import load_task
from promptcodebook.tasks.rewards import make_reward
from promptcodebook.tasks.user import make_executor, user_task
from promptcodebook.types import Executor, Instinct, Reward

__all__ = [
    "STAND_IN",
    "Sources",
    "data_of",
    "given_instincts",
    "judged",
    "ready_made",
    "settled",
    "task_of",
]

STAND_IN = "stand-in"
"""As `reward` of a ready-made task: its stand-in decides, and no judge is asked."""


@dataclass(frozen=True)
class Sources:
    """What is not in the configuration: objects, and the folder its paths start from."""

    base: Path = Path()
    data: Dataset | None = None
    reward: Reward | None = None
    executor: Executor | None = None
    lm: LM | None = None


def ready_made(config: Config, base: Path) -> Task | None:
    """The named task with its data, or None when the user brings their own."""
    if not config.task:
        return None
    return load_task(config.task, (base / config.data_dir) if config.data_dir else None)


def judged(task: Task, config: Config, ask: Ask) -> Task:
    """The task with the reward that asks the judge, where it has one and is not told otherwise."""
    if task.judged is None or config.reward == STAND_IN:
        return task
    return replace(task, reward=task.judged(ask))


def settled(config: Config, task: Task | None, dataset: Dataset) -> Config:
    """The configuration with what the data and a ready-made task decide filled in."""
    if task is None:
        read = config.data.model_copy(update={"input": dataset.input})
        return config.model_copy(update={"data": read})
    return config.model_copy(
        update={
            "reward_range": task.reward_range,
            "base_prompt": config.base_prompt or task.base_prompt,
            "output_format": config.output_format or task.output_format,
        }
    )


def data_of(config: Config, sources: Sources) -> Dataset:
    """The user's data: the object, or what [data] describes."""
    if sources.data is not None:
        return sources.data
    if not (config.data.path or config.data.train):
        raise ConfigError(
            "no data: neither a task nor data.path is set",
            hint="pass --task constraints, or set data.path in pco.toml (pco init writes one)",
        )
    return load_settings(config.data, sources.base)


def task_of(config: Config, sources: Sources, dataset: Dataset, ask: Ask) -> Task:
    """The task that the user's own data, reward and agent make."""
    executor = make_executor(sources.executor or config.executor, sources.base)
    return user_task(
        dataset,
        sources.reward or _reward(config, sources, ask),
        executor=executor,
        reward_range=config.reward_range,
        base_prompt=config.base_prompt,
    )


def _reward(config: Config, sources: Sources, ask: Ask) -> Reward:
    if not config.reward:
        raise ConfigError(
            "no reward is set",
            hint='set reward = "reward.py:reward" in pco.toml, or e.g. reward = {kind = "exact"}',
        )
    return make_reward(config.reward, sources.base, ask)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")

    text: str = Field(min_length=1)
    frozen: bool = False


class _Book(BaseModel):
    model_config = ConfigDict(extra="ignore")

    codebook: list[str | _Entry] = Field(
        min_length=1, validation_alias=AliasChoices("codebook", "instincts")
    )


def given_instincts(config: Config, base: Path) -> tuple[Instinct, ...]:
    """The codebook at `init.path`: a policy file, a list of texts, or {"instincts": [...]}."""
    if config.init.kind != "file":
        return ()
    path = base / config.init.path
    try:
        tree = json.loads(path.read_text("utf-8"))
        book = _Book.model_validate({"codebook": tree} if isinstance(tree, list) else tree)
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(
            f"init.path: cannot read a codebook from {path}: {said}",
            hint='name a policy file, or write a JSON list: ["instinct", "instinct", ...]',
        ) from None
    return tuple(
        Instinct(e) if isinstance(e, str) else Instinct(e.text, e.frozen) for e in book.codebook
    )
