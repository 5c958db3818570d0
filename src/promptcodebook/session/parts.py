"""Configuration and models -> the parts of the method, wired as the paper has them."""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.structured import Ask
from promptcodebook.method.accept import Accept
from promptcodebook.method.attribution import Attribution
from promptcodebook.method.checks import AllChecks, LengthCheck, NearCopyCheck, NoLeakCheck
from promptcodebook.method.credit import Credit
from promptcodebook.method.critic import Critic
from promptcodebook.method.encoder import Encoder
from promptcodebook.method.explore import Explorer
from promptcodebook.method.generator import Composition, Generator
from promptcodebook.method.policy import Policy, Scorer, Trial
from promptcodebook.method.templates import load_templates
from promptcodebook.method.train import Learner
from promptcodebook.method.update import Updater
from promptcodebook.registry.safety import SafetyCheck
from promptcodebook.session.models import Models
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Score, Tally

__all__ = ["build_learner", "build_policy", "scorer_of"]


def scorer_of(task: Task) -> Scorer:
    """The task's reward, made uniform and held to its range."""

    async def score(example: Example, output: str) -> Score:
        return await apply_reward(task.reward, example, output, task.reward_range)

    return score


def build_policy(config: Config, ask: Ask, tally: Tally, stages: Sequence[str] = ()) -> Policy:
    """Encoder and generator as Eqs. 3-4 need them."""
    templates = load_templates(config.templates)
    composition = Composition(config.compose, config.base_prompt, config.output_format)
    encoder = Encoder(ask, templates, config.select, tally)
    return Policy(encoder, Generator(ask, templates, composition), config.select, stages)


def build_learner(config: Config, task: Task, models: Models) -> Learner:
    """Everything Algorithm 1 calls. Raises ConfigError for settings that exclude one another."""
    if config.encoder.mode == "none" and config.explore.policy == "none":
        raise ConfigError(
            "encoder.mode = 'none' leaves only exploration, and explore.policy = 'none' forbids it",
            hint="set one of the two to something else",
        )
    ask, tally = models.ask, models.tally
    templates = load_templates(config.templates)
    stages = _stages(config, task)
    policy = build_policy(config, ask, tally, stages)
    trial = Trial(task.executor, scorer_of(task), models.lm, tally=tally)
    check = AllChecks(
        [
            LengthCheck(config.update),
            NearCopyCheck(),
            SafetyCheck(),
            NoLeakCheck(task.dataset.train),
            *task.checks,
        ]
    )
    return Learner(
        config=config,
        policy=policy,
        explorer=Explorer(config.explore, config.select, always=config.encoder.mode == "none"),
        trial=trial,
        credit=Credit(Critic(ask, templates), Attribution(ask, templates), config),
        updater=Updater(ask, templates, config, check, tally),
        accept=Accept(config, policy, trial),
    )


def _stages(config: Config, task: Task) -> tuple[str, ...]:
    """A compound executor names its stages in an attribute; only then can each have a prompt."""
    if not config.compose_per_stage:
        return ()
    named = getattr(task.executor, "stages", ())
    if not named:
        raise ConfigError(
            "compose_per_stage needs an executor that names its stages",
            hint="give the executor an attribute `stages`, e.g. run.stages = ('search', 'answer')",
        )
    return tuple(named)
