"""The one way from a configuration and the user's objects to data, task, models and reward.

plan = plan_run(config, sources)        what needs no model: data, task, first instincts
assembled = plan.connect(supplies)      the models, and the reward that may ask one of them
assembled = assemble(config, sources)   both at once
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from promptcodebook.calls import LM, Chat, Reply, Request, Role
from promptcodebook.config import Config
from promptcodebook.data import Dataset, load_settings, sample
from promptcodebook.errors import (
    ConfigError,
    DataError,
    ExecutorError,
    PcoError,
    RewardError,
    import_part,
)
from promptcodebook.lm.spec import Spec
from promptcodebook.lm.stack import MODELS, LocalModels, Models, Supplies, local_models
from promptcodebook.method.accept import find_rule
from promptcodebook.method.executor import Scorer, Trial
from promptcodebook.method.init import Earlier, check_seeds
from promptcodebook.method.policy import (
    Composer,
    Composition,
    Encoder,
    Generator,
    join_prompts,
)
from promptcodebook.method.templates import TemplateSet, load_templates
from promptcodebook.routing.ranking import Embedder, RankedRoutes
from promptcodebook.tasks.program import Agent, make_program, user_task
from promptcodebook.tasks.rewards import STAND_IN, apply_reward, describe_reward, reward_factory
from promptcodebook.tasks.task import RewardFactory, Task, asks_nobody, load_task
from promptcodebook.tasks.user_code import UserCalls
from promptcodebook.types import (
    Example,
    Executor,
    Output,
    Program,
    Prompt,
    Reward,
    Score,
)

OWN_LM = "own"
"""In the configuration, the name of an LM object handed over by the user."""
NO_DATA = Dataset((), (), ())
"""For a policy that answers without any data of its own."""


@dataclass(frozen=True)
class Sources:
    """What is not in the configuration: objects, and the folder its paths start from."""

    base: Path = Path()
    data: Dataset | None = None
    reward: Reward | None = None
    executor: Executor | None = None
    lm: LM | None = None
    templates: TemplateSet | None = None
    local: LocalModels | None = None
    """Models of this process that several runs share; its maker closes it. None = each run
    loads its own."""


@dataclass(frozen=True)
class Plan:
    """All that is known before a model is connected. `config` is complete: what the data and a
    ready-made task decide is filled in; `calls` runs what code the user brought."""

    config: Config
    task: Task
    templates: TemplateSet
    sources: Sources = field(default_factory=Sources)
    calls: UserCalls = field(default_factory=UserCalls)

    @property
    def dataset(self) -> Dataset:
        return self.task.dataset

    @cached_property
    def earlier(self) -> Earlier:
        """What `init.path` holds, read when training first needs it. ConfigError."""
        return Earlier.read(self.config.init, self.sources.base)

    @property
    def present_prompt(self) -> str:
        """What the user has today: the fixed prompt before everything, and the given prompt, else
        the task's zero-shot prompt."""
        return join_prompts(self.config.base_prompt, self.config.init.prompt or self.task.zero_shot)

    @cached_property
    def judged(self) -> tuple[Example, ...]:
        """The test examples that the verdict is made on."""
        return sample(self.dataset.test, self.config.verdict_examples)

    def split(self, name: str) -> tuple[Example, ...]:
        return self.task.dataset.split(name)

    @property
    def prompt_stages(self) -> tuple[str, ...]:
        """The stages of the program that get a prompt of their own. ConfigError: it names none."""
        if not self.config.compose_per_stage:
            return ()
        if not self.task.program.stages:
            raise ConfigError(
                "compose_per_stage needs an executor that names its stages",
                hint="give the executor an attribute `stages`, e.g. run.stages = ('find',)",
            )
        program = self.task.program
        if isinstance(program, Agent) and not program.wants_prompt:
            raise ConfigError(
                "compose_per_stage has a prompt for each stage, and the executor takes one text",
                hint="annotate its first parameter, prompt: pco.Prompt, and ask prompt.of('stage')",
            )
        return tuple(program.stages)

    def require_training(self, *, begun: bool = False) -> Plan:
        """Itself. Raises DataError for a split that training cannot do without, ConfigError for a
        first codebook (unless it has `begun`) or a prompt for each stage that cannot be had, and
        MissingExtra or TaskError for what the task needs beside its data."""
        if self.config.imitates_encoder:
            raise ConfigError(
                "router.kind = 'distilled' is not trained: it is made of a run's encoder",
                hint="train with router.kind = 'encoder', then: pco distill RUN",
            )
        if not self.task.dataset.train:
            raise DataError(
                f"the training split of {self.task.name} is empty",
                hint="give it examples, or change data.fractions",
            )
        # Checked here, so that their faults show before anything is paid for.
        find_rule(self.config.update.accept)
        _ = self.prompt_stages
        if not begun:
            check_seeds(self.task.seeds, self.earlier, self.templates, self.config)
        self.task.require()
        return self

    def simulated(self, spec: Spec) -> LM:
        """The simulated model in process: its world is made of the plan's own data."""
        return simulated_model(self.config.task, self.dataset, spec)

    def connect(self, supplies: Supplies | None = None) -> Assembled:
        """With models and reward. Opens no connection yet; raises ConfigError for a bad spec."""
        supplies = supplies or Supplies()
        own = self.sources.lm if supplies.own is None else supplies.own
        private = self.task.private
        supplies = replace(supplies, own=own, simulated=self.simulated, private=private)
        if supplies.local is None and self.sources.local is not None:
            supplies = replace(supplies, local=self.sources.local)
        if supplies.local is None:
            models_here = local_models()
            supplies = replace(supplies, local=models_here, closes=models_here)
        models = Models.build(self.config, supplies)
        return Assembled(self, models)


@dataclass(frozen=True)
class Assembled:
    """A plan with its models: everything that a run, an evaluation or a policy needs."""

    plan: Plan
    models: Models

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def dataset(self) -> Dataset:
        return self.plan.dataset

    @property
    def task(self) -> Task:
        return self.plan.task

    @property
    def scored_by(self) -> str:
        """The reward in words, the same for the same one; a function is known by its name."""
        own = self.plan.sources.reward
        return describe_reward(self.config.reward if own is None else own, self.config.task)

    @cached_property
    def scorer(self) -> Scorer:
        """The task's reward, made uniform and held to its range."""
        judge = None if self.config.reward == STAND_IN else self.models.ask
        reward, reward_range = self.task.reward(judge), self.config.reward_range
        calls = self.plan.calls

        async def score(example: Example, output: Output) -> Score:
            return await apply_reward(reward, example, output, reward_range, calls)

        return _discreet_scorer(score) if self.task.private else score

    @property
    def ranks(self) -> RankedRoutes:
        """Routes by a ranking, for policies that have learned one."""
        return RankedRoutes(self.config.select, Embedder(self.models.lm))

    def composer(
        self, stages: Sequence[str] = (), templates: TemplateSet | None = None
    ) -> Composer:
        """Encoder and generator as Eqs. 3-4 need them; `stages` get a prompt each. A policy brings
        the `templates` that it was trained with; None = those of the configuration."""
        config, models = self.config, self.models
        templates = templates or self.plan.templates
        composition = Composition(config.compose, config.base_prompt, config.output_format)
        encoder = Encoder(models.ask, templates, config.select, models.tally)
        generator = Generator(models.ask, templates, composition, models.tally)
        return Composer(encoder, generator, self.ranks.rank, config.select, stages)

    def trial(self, *, greedy: bool = False, scored: bool = True, model: str = "") -> Trial:
        """The program with the reward bound to it; `greedy` is how it is evaluated. `model` is the
        spec of the executor, where it is another than the configured one."""
        scorer = self.scorer if scored else None
        program = self.task.program
        if self.task.private:
            program = _DiscreetProgram(program)
        lm = _Instead(self.models.lm, model) if model else self.models.lm
        return Trial(program, scorer, lm, greedy, self.models.tally)


@dataclass(frozen=True)
class _Instead:
    """An LM whose executor is another model, named by its spec."""

    inner: LM
    model: str

    async def __call__(self, request: Request) -> Reply:
        if request.role == "executor":
            request = replace(request, model=self.model)
        return await self.inner(request)


_WITHHELD = "what it said is withheld, since the data are private"


@dataclass(frozen=True)
class _DiscreetProgram:
    """A program on private data: an error of its own does not say what it may quote.

    Ours say nothing of the data: what a server said is withheld where it is read
    (`lm/wire.py`).
    """

    inner: Program

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def stages(self) -> Sequence[str]:
        return self.inner.stages

    @property
    def roles(self) -> Set[Role]:
        return self.inner.roles

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        try:
            return await self.inner(prompt, example, lm)
        except PcoError as error:
            if not isinstance(error, ExecutorError):
                raise
            kind = type(error.__cause__ or error).__name__
        except Exception as error:
            kind = type(error).__name__
        # Raised out here, so that its words are not in the context either.
        raise ExecutorError(f"the program raised {kind}; {_WITHHELD}")


def _discreet_scorer(inner: Scorer) -> Scorer:
    """A reward on private data: what it says when it fails may quote them."""

    async def score(example: Example, output: Output) -> Score:
        try:
            return await inner(example, output)
        except RewardError as error:
            kind = type(error.__cause__ or error).__name__
        raise RewardError(f"the reward failed on example {example.id} with {kind}; {_WITHHELD}")

    return score


def assemble(
    config: Config, sources: Sources = Sources(), supplies: Supplies | None = None
) -> Assembled:
    """Configuration and objects -> data, task, models. Raises ConfigError, DataError, TaskError."""
    return plan_run(config, sources).connect(supplies)


def plan_run(config: Config, sources: Sources = Sources()) -> Plan:
    """Reads templates, data and task; no model is connected.

    Raises ConfigError, DataError, TaskError.
    """
    templates = sources.templates or load_templates(config.templates, sources.base)
    if sources.lm is not None:
        config = config.model_copy(update={"lm": config.lm or OWN_LM})
    calls = UserCalls(config.user_code.threads, config.user_code.seconds)
    task = _named_task(config, sources.base) or _user_task(config, sources, calls)
    if config.task and sources.data is not None:
        task = replace(task, dataset=sources.data)
    config = _complete(config, task)
    return Plan(config, task, templates, sources, calls)


def plan_data(config: Config, base: Path) -> Dataset:
    """The data alone; neither reward nor agent is read. ConfigError, DataError, TaskError."""
    task = _named_task(config, base)
    return task.dataset if task is not None else _data(config, Sources(base))


def simulated_model(task: str, dataset: Dataset, spec: Spec) -> LM:
    """The model behind a `simulated?...` spec, in a world of the task's data. ConfigError, or
    MissingExtra: there is no simulated model here."""
    return import_part(MODELS, "simulated", "the simulated model", "simulated")(task, dataset, spec)


def _named_task(config: Config, base: Path) -> Task | None:
    """The named task with its data, or None when the user brings their own."""
    if not config.task:
        return None
    return load_task(config.task, (base / config.data_dir) if config.data_dir else None)


def _user_task(config: Config, sources: Sources, calls: UserCalls) -> Task:
    """The task that the user's own data, reward and agent make."""
    given = sources.executor
    return user_task(
        _data(config, sources),
        _reward(config, sources, calls),
        program=make_program(config.executor if given is None else given, sources.base, calls),
        reward_range=config.reward_range,
        base_prompt=config.base_prompt,
    )


def _data(config: Config, sources: Sources) -> Dataset:
    if sources.data is not None:
        return sources.data
    if not (config.data.path or config.data.train):
        raise ConfigError(
            "no data: neither a task nor data.path is set",
            hint="name a task or data: --task constraints, or data.path in pco.toml (pco init "
            "writes one); in Python data=pco.load('rows.jsonl')",
        )
    return load_settings(config.data, sources.base)


def _reward(config: Config, sources: Sources, calls: UserCalls) -> RewardFactory:
    if sources.reward is not None:
        return asks_nobody(sources.reward)
    if not config.reward:
        raise ConfigError(
            "no reward is set",
            hint='set reward = "reward.py:reward" in pco.toml, or e.g. reward = {kind = "exact"}; '
            "in Python reward='exact', or your function",
        )
    return reward_factory(config.reward, sources.base, calls)


def _complete(config: Config, task: Task) -> Config:
    """The configuration with what the data and a ready-made task decide filled in."""
    if not config.task:
        data = config.data.model_copy(update={"input": task.dataset.input})
        return config.model_copy(update={"data": data})
    return config.model_copy(
        update={
            "reward_range": task.reward_range,
            "base_prompt": config.base_prompt or task.base_prompt,
            "output_format": config.output_format or task.output_format,
        }
    )
