"""The one way from a configuration and the user's objects to data, task, models and reward.

plan = plan_run(config, sources)        what needs no model: data, task, first instincts
assembled = plan.connect(supplies)      the models, and the reward that may ask one of them
assembled = assemble(config, sources)   both at once"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from promptcodebook.base.text import quote
from promptcodebook.calls import LM, Chat, Reply, Request, Role
from promptcodebook.config import Budget, Config
from promptcodebook.data import Dataset, load_settings, sample
from promptcodebook.data.table import cell_text, parse_input_template
from promptcodebook.errors import (
    ConfigError,
    DataError,
    ExecutorError,
    LMError,
    PcoError,
    RewardError,
    did_you_mean,
    import_part,
)
from promptcodebook.lm.spec import MODELS, Spec
from promptcodebook.lm.stack import InProcessModels, Models, StackResources, local_models
from promptcodebook.method.acceptance import find_rule
from promptcodebook.method.executor import Evaluator, Scorer, Trial
from promptcodebook.method.init import Earlier, check_seeds
from promptcodebook.method.policy import Composer, PresentPrompt
from promptcodebook.method.templates import TemplateSet, load_templates
from promptcodebook.routing.ranking import Embedder, RankedRoutes
from promptcodebook.tasks.program import AgentProgram, SingleCall, asks_for_labels, make_program
from promptcodebook.tasks.rewards import (
    STAND_IN,
    apply_reward,
    describe_reward,
    needs_reference,
    reward_factory,
)
from promptcodebook.tasks.rewards.trial import RewardTable, try_on_rows
from promptcodebook.tasks.task import Task, asks_nobody, load_task
from promptcodebook.tasks.user_code import UserCalls, annotated_as, is_ours
from promptcodebook.types import Example, Executor, Output, Program, Prompt, Reward, Score

OWN_LM = "own"  # in the configuration, the name of an LM object handed over by the user
NO_DATA = Dataset((), (), ())  # for a policy that answers without any data of its own


@dataclass(frozen=True)
class Sources:
    """What is not in the configuration: objects, and the folder its paths start from. `local` are
    models of this process that several runs share, or None; their maker closes them."""

    base: Path = Path()
    data: Dataset | None = None
    reward: Reward | None = None
    executor: Executor | None = None
    lm: LM | None = None
    templates: TemplateSet | None = None
    local: InProcessModels | None = None


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
        """What `init.path` holds, read when training first needs it. Raises ConfigError when it
        cannot be read."""
        return Earlier.read(self.config.init, self.sources.base)

    @cached_property
    def present(self) -> PresentPrompt:
        """What the user has today: the fixed prompt, and the given one, else the task's."""
        base, given = self.config.base_prompt, self.config.init.prompt
        return self.with_columns(base, given) if given else PresentPrompt(base, self.task.zero_shot)

    def with_columns(self, base: str, text: str) -> PresentPrompt:
        """A prompt of the user's, in which columns of the data may be named."""
        if hasattr(getattr(self.task.program, "function", None), "present"):
            return PresentPrompt(base, text)  # an agent's is found in its requests, word for word
        data, some = self.config.data, [e for _, part in self.dataset.items() for e in part[:9]]
        names = {name for example in some for name in example.fields}
        told = [{n for n in names if cell_text(e.fields.get(n)) == e.target} for e in some]
        targets = {data.target or ""} & names or names.intersection(*told)
        input = {data.input} & names or {*parse_input_template(data.input).columns}
        return PresentPrompt(base, text, names - targets | {"input"}, input)

    @property
    def present_prompt(self) -> str:
        """Its text, with the names of its columns."""
        return self.present.template

    @property
    def seeding(self) -> Config:
        """The configuration that the first codebook is made under. Raises ConfigError where the
        user's prompt names a column that no row has."""
        init, present = self.config.init, self.present
        if not (init.prompt and present.names):
            return self.config
        if init.kind == "from_prompt":
            present.require_columns()
        bare = init.model_copy(update={"prompt": present.bare})
        return self.config.model_copy(update={"init": bare})

    @property
    def tools(self) -> Sequence[str]:
        """A first instinct for each tool that an agent showed when it was tried."""
        return getattr(getattr(self.task.program, "function", None), "tools", ())

    @cached_property
    def judged(self) -> tuple[Example, ...]:
        """The test examples that the verdict is made on."""
        return sample(self.dataset.test, self.config.verdict_examples)

    @cached_property
    def validated(self) -> tuple[Example, ...]:
        """The validation examples that the best states are chosen by."""
        return sample(self.dataset.val, self.config.validation.examples)

    @property
    def compared(self) -> tuple[Example, ...]:
        """The examples that one of several fixed prompts is chosen by."""
        return sample(self.validated or self.dataset.train, self.config.validation.subset)

    @property
    def prompt_stages(self) -> tuple[str, ...]:
        """The stages of the program that get a prompt of their own. Raises ConfigError when it
        names none."""
        if not self.config.compose_per_stage:
            return ()
        if not self.task.program.stages:
            hint = "give the executor a `stages` attribute, e.g. run.stages = ('find',)"
            message = "compose_per_stage needs an executor that names its stages"
            raise ConfigError(message, hint=hint)
        program = self.task.program
        if isinstance(program, AgentProgram) and not program.wants_prompt:
            what = "compose_per_stage makes a prompt per stage, but the executor takes one string"
            hint = "annotate its first parameter as prompt: pco.Prompt; call prompt.of('stage')"
            raise ConfigError(what, hint=hint)
        return tuple(program.stages)

    def require_training(self, *, begun: bool = False) -> Plan:
        """Return self if it can be trained. Raises DataError without a training split, ConfigError
        without a first codebook (unless it has `begun`) or a prompt a stage, and MissingExtra or
        TaskError when the task needs more than data."""
        if self.config.router.kind == "distilled":
            what = "router.kind = 'distilled' cannot be trained: it is made from a run's encoder"
            raise ConfigError(
                what, hint="train with router.kind = 'encoder', then: pco distill RUN"
            )
        require_own_data(self.config, self.sources)
        if not self.task.dataset.train:
            what = f"the training split of {self.task.name} is empty"
            raise DataError(what, hint="add examples, or change data.fractions")
        # Checked here, so that their faults show before anything is paid for.
        self._check_slices()
        find_rule(self.config.update.accept)
        _ = self.prompt_stages
        if not begun:
            check_seeds(self.task.seeds, self.earlier, self.templates, self.seeding)
        self.task.require()
        return self

    def _check_slices(self) -> None:
        """Raises ConfigError for a column of slices that no row has, and for a rule about it."""
        names = self.config.data.slices
        known = {name for e in self.dataset.train for name in e.fields}
        rules = [rule.partition(" = ")[0] for rule in self.config.verdict.no_worse_in]
        for key, name, there in (
            *(("data.slices", name, known) for name in names),
            *(("verdict.no_worse_in", name, set(names)) for name in rules),
        ):
            if name not in there:
                what = f"{key}: there is no column {name!r}{did_you_mean(name, there)}"
                listed = ", ".join(sorted(there)) or "none"
                raise ConfigError(what, hint=f"name one of these columns: {listed}")

    def connect(self, supplies: StackResources | None = None) -> Assembled:
        """With models and reward. Opens no connection yet; raises ConfigError for a bad spec."""
        given, private = supplies or StackResources(), self.task.private
        client = self.sources.lm if given.client is None else given.client
        local, owned = given.local or self.sources.local, None
        if local is None:
            local = owned = local_models()
        # Its world is made of the plan's own data.
        world = partial(simulated_model, self.config.task, self.dataset)
        supplies = replace(
            given, client=client, local=local, owned_models=owned, simulated=world, private=private
        )
        return Assembled(self, Models.build(self.config, supplies))


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
    def reward(self) -> Reward:
        """The task's, which may ask the judge."""
        return self.task.reward(None if self.config.reward == STAND_IN else self.models.ask)

    @cached_property
    def scorer(self) -> Scorer:
        """The task's reward, made uniform and held to its range."""
        reward, reward_range = self.reward, self.config.reward_range
        calls, private = self.plan.calls, self.task.private

        async def score(example: Example, output: Output) -> Score:
            try:
                return await apply_reward(reward, example, output, reward_range, calls)
            except RewardError as error:
                if not private:
                    raise
                kind = type(error.__cause__ or error).__name__
            # Raised out here, so that its words, which may quote the data, are not in the context.
            raise RewardError(f"the reward failed on example {example.id} with {kind}; {_WITHHELD}")

        return score

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
        return Composer(
            ask=models.ask,
            templates=templates or self.plan.templates,
            select=config.select,
            ranks=self.ranks.rank,
            mode=config.compose,
            base_prompt=config.base_prompt,
            output_format=config.output_format,
            stages=stages,
            tally=models.tally,
            least=1 if config.encoder.fewer else None,
        )

    def trial(self, *, greedy: bool = False, scored: bool = True) -> Trial:
        """The program with the reward; `greedy` = as evaluated."""
        scorer, program = self.scorer if scored else None, self.task.program
        if self.task.private:
            program = _DiscreetProgram(program, program.name, program.stages, program.roles)
        models = self.models
        return Trial(program, scorer, models.lm, greedy, models.tally, models.budget.book)

    def evaluator(self, samples: int = 1) -> Evaluator:
        """What measures a way of prompting: greedily, or by the mean of several `samples`."""
        config, trial = self.config, self.trial(greedy=samples == 1)
        floor = config.reward_range[0]
        return Evaluator(trial, config.randomness, floor, samples=samples)


_WITHHELD = "its message is withheld, since the data is private"


@dataclass(frozen=True)
class _DiscreetProgram:
    """A program on private data: an error of its own does not say what it may quote. Ours say
    nothing of the data: what a server said is withheld where it is read (`lm/wire.py`)."""

    inner: Program
    name: str
    stages: Sequence[str]
    roles: Set[Role]

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        try:
            return await self.inner(prompt, example, lm)
        except Exception as error:
            if isinstance(error, PcoError) and not isinstance(error, ExecutorError):
                raise
            ours = isinstance(error, ExecutorError)
            kind = type(error.__cause__ or error if ours else error).__name__
        # Raised out here, so that its words are not in the context either.
        raise ExecutorError(f"the program raised {kind}; {_WITHHELD}")


def assemble(
    config: Config, sources: Sources = Sources(), supplies: StackResources | None = None
) -> Assembled:
    """Configuration and objects -> data, task, models. Raises ConfigError, DataError, TaskError."""
    return plan_run(config, sources).connect(supplies)


def plan_run(config: Config, sources: Sources = Sources()) -> Plan:
    """Reads templates, data and task; no model is connected. `config` gets what the data and a
    ready-made task decide. Raises ConfigError, DataError, TaskError."""
    templates = sources.templates or load_templates(config.templates, sources.base)
    if sources.lm is not None:
        config = config.model_copy(update={"lm": config.lm or OWN_LM})
    calls = UserCalls(config.user_code.threads, config.user_code.seconds)
    task = _named_task(config, sources.base)
    if task is None:
        task = _user_task(config, sources, calls)
        update: dict[str, object] = {
            "data": config.data.model_copy(update={"input": task.dataset.input})
        }
        if sources.reward is not None:
            update["reward_name"] = config.reward_name or describe_reward(sources.reward)
    else:
        update = {
            "reward_range": task.reward_range,
            "base_prompt": config.base_prompt or task.base_prompt,
            "output_format": config.output_format or task.output_format,
        }
        if sources.data is not None:
            task = replace(task, dataset=sources.data)
    return Plan(config.model_copy(update=update), task, templates, sources, calls)


def require_own_data(config: Config, sources: Sources) -> None:
    """Raises ConfigError for a reward or an executor that a ready-made task would replace."""
    for name in ("reward", "executor") if config.task else ():
        if getattr(sources, name) is not None:
            raise ConfigError(
                f"{config.task} is a ready-made task with its own {name}",
                hint=f"leave {name} out; or leave task out, and pass your data: data=pco.load(...)",
            )


def plan_data(config: Config, base: Path) -> Dataset:
    """The data alone; neither reward nor agent is read. Raises ConfigError, DataError or TaskError
    when they cannot be read."""
    task = _named_task(config, base)
    return task.dataset if task is not None else _data(config, Sources(base))


def simulated_model(task: str, dataset: Dataset, spec: Spec) -> LM:
    """The model of a `simulated?...` or `rules?...` spec. Raises ConfigError for a bad spec, and
    MissingExtra when its part is not installed."""
    name = spec.text.partition("?")[0]
    return import_part(MODELS, name, f"the model {name}", name)(task, dataset, spec)


def _named_task(config: Config, base: Path) -> Task | None:
    folder = base / config.data_dir if config.data_dir else None
    return load_task(config.task, folder) if config.task else None


def _user_task(config: Config, sources: Sources, calls: UserCalls) -> Task:
    data = _data(config, sources)
    if sources.reward is not None:
        reward = asks_nobody(sources.reward)
    elif config.reward:
        reward = reward_factory(config.reward, sources.base, calls)
    else:
        toml = 'set reward = "reward.py:reward" in pco.toml, or e.g. reward = {kind = "exact"}'
        hint = f"{toml}; in Python reward='exact', or your function"
        raise ConfigError("no reward is set", hint=hint)
    executor = config.executor if sources.executor is None else sources.executor
    labels = "executor" in config.roles and asks_for_labels(config.roles["executor"].extra)
    return Task(
        data.name,
        data,
        reward,
        make_program(executor, sources.base, calls, labels=labels),
        config.reward_range,
        base_prompt=config.base_prompt,
        description=f"the user's own data: {data.name}",
    )


def _data(config: Config, sources: Sources) -> Dataset:
    """The user's data. A ready-made reward that compares leaves out rows without a reference."""
    data = sources.data
    if data is None and not (config.data.path or config.data.train):
        typed = "--task constraints, or data.path in pco.toml (pco init writes one)"
        hint = f"name a task or data: {typed}; in Python data=pco.load('rows.jsonl')"
        raise ConfigError("no data: there is no ./pco.toml with data.path, and no task", hint=hint)
    data = load_settings(config.data, sources.base) if data is None else data
    compares = sources.reward is None and needs_reference(config.reward)
    return data.with_references() if compares else data


# The reward, tried on one example before anything is paid for. The executor is not tried: an agent
# has effects, and made-up replies would break agents that work. Its parameters are checked when it
# is named (tasks/user_code.py), and a batch of failures stops the run.

_NONSENSE = "Seventeen umbrellas, mostly on Thursdays."


@dataclass(frozen=True, slots=True)
class RewardTrial:
    """`scores` by the kind of answer (None: it raised), and what deserves a look. No scores: it
    asks a model, or reads more of an agent's output than can be made up."""

    scores: tuple[tuple[str, Score | None], ...] = ()
    warnings: tuple[str, ...] = ()
    table: RewardTable = RewardTable()


async def try_agent(plan: Plan) -> bool:
    """Try an agent on made-up replies, and say whether there is one that can be tried, as
    `pco.Agent` can. Raises ConfigError when its prompt has no place, it reads no row, or it shows
    no tool to learn."""
    check = getattr(getattr(plan.task.program, "function", None), "check", None)
    if check is not None:
        await check(*plan.dataset.train[:2])
    if "tools" in plan.config.learn and not plan.tools:
        hint = 'use pco.Agent, which trains the tools its requests name; or set learn = ["prompt"]'
        raise ConfigError("learn: none of the executor's requests named a tool", hint=hint)
    return check is not None


async def try_reward(plan: Plan, rows: int = 0) -> RewardTrial:
    """Try the reward on the first training example's reference and on nonsense; no model is asked.
    `rows` are tried with other answers too, for a table.
    Raises ConfigError when it returns no number in its range, hangs, or raises whatever the answer:
    that is only a warning where an agent's answers may have a form of their own."""
    own_agent, asked = not isinstance(plan.task.program, SingleCall), list[str]()
    try:
        reward = plan.task.reward(None)
    except ConfigError:  # it cannot be made without a model
        return RewardTrial()
    if own_agent and annotated_as(reward, 1, Output):
        return RewardTrial()

    async def refuse(request: Request) -> Reply:
        asked.append(request.role)
        raise LMError("no model is asked here")

    free = plan.config.model_copy(update={"lm": "own", "roles": {}, "budget": Budget()})
    scorer = replace(plan, config=free).connect(StackResources(client=refuse)).scorer
    example, answers = plan.dataset.train[0], {"nonsense": _NONSENSE}
    if example.target is not None:
        answers = {"the reference": example.target, **answers}
    scores, errors = dict[str, Score | None](), list[PcoError]()
    for kind, answer in answers.items():
        try:
            scores[kind] = await scorer(example, Output(answer))
        except PcoError as error:
            if error.__cause__ is None and not isinstance(error, LMError):
                # Wrong whatever the answer was: no cause lies in the user's code.
                raise _refusal(error) from None
            scores[kind] = None
            errors.append(error)
        if asked:
            return RewardTrial()
    # No answer can be the cause of these two.
    broken = any(isinstance(error.__cause__, NameError | ImportError) for error in errors)
    if (len(errors) == len(answers) and not own_agent) or broken:
        raise _refusal(errors[0])
    warnings = [
        f"{error}: it was tried on a nonsense answer. A rollout whose reward fails counts as "
        "failed and teaches nothing: return 0.0 for an answer that the reward cannot read"
        for error in errors[:1]
    ]
    values = {score.value for score in scores.values() if score is not None}
    # A target that repeats is a label: what is asked for may be a text of another kind.
    targets = [each.target for each in plan.dataset.train if each.target is not None]
    label = 2 * len(set(targets)) <= len(targets) and values == {plan.config.reward_range[0]}
    if len(scores) == 2 and not errors and len(values) == 1 and not (label or is_ours(reward)):
        warnings.append(
            f"the reward gives {values.pop():g} to both the reference and "
            f"{quote(_NONSENSE)}: check that it tells good answers from bad ones"
        )
    low, told = plan.config.reward_range[0], not label or is_ours(reward)
    train = plan.dataset.train if rows and told else ()
    table = await try_on_rows(scorer, train, rows=rows, low=low)
    return RewardTrial(tuple(scores.items()), tuple(warnings), table)


def _refusal(error: PcoError) -> ConfigError:
    hint = error.hint.partition(";")[0]
    if error.__cause__ is not None:
        hint += ": it gets an example (.input, .target, .fields) and the answer's text"
    hint += ", and return 0.0 for an answer that it cannot read"
    what = f"the reward failed its trial, before any paid call: {error}"
    return ConfigError(what, hint=hint)
