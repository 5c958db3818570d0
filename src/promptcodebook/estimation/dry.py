"""A simulated run: the real session with dummy model, reward and agent.

A long plan is shortened first, and its use is scaled up again: evaluations by their examples,
training by its rollouts and updates, and its routes by the examples that the keyed draws of the
whole schedule do not explore.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from promptcodebook.assemble import Plan
from promptcodebook.calls import Chat, Reply, Request, Role
from promptcodebook.config import Budget, Config
from promptcodebook.errors import ConfigError, Stop, StoreError
from promptcodebook.estimation.counting import (
    TRAINING,
    CountingLM,
    Inline,
    Manner,
    Work,
    draws,
    words,
)
from promptcodebook.lm.stack import Supplies
from promptcodebook.lm.structured import Ask
from promptcodebook.method.policy import epsilon_at
from promptcodebook.method.state import Schedule
from promptcodebook.method.upkeep import rounds_every
from promptcodebook.optimizers.base import Problem, make_optimizer
from promptcodebook.optimizers.pco import initialise
from promptcodebook.run.session import Session
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import Agent
from promptcodebook.tasks.rewards import Judge, WeightedSum, apply_reward
from promptcodebook.tasks.task import RewardFactory
from promptcodebook.types import Example, Output, Program, Prompt, Reward, Score

DryWork = Mapping[tuple[str, Role], Work]
"""What each phase of a run asks of each role."""

CALLS = 1000
"""Calls of a shortened plan's training, about: a second's work."""
EXAMPLES = 20
"""Examples of a split that a shortened plan evaluates."""
_FEEDBACK = 20
"""Words that a reward says of an answer that is not solved."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Updates of a schedule, their rollouts, those of them that the encoder routes, and rounds of
    the codebook's maintenance."""

    updates: int
    rollouts: int
    routed: int
    maintained: int = 0


def passes(plan: Plan) -> Passes:
    """Counted exactly: whether an example explores is drawn as training draws it."""
    config = plan.config
    schedule = Schedule(plan.split("train"), config.update, config.randomness)
    updates = schedule.updates()
    rollouts = routed = 0
    for step, epoch, batch in updates:
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)
        rollouts += len(batch)
        for example in batch if config.has_encoder else ():
            draw = config.randomness.at(step, example.id).generator("explore")
            routed += not draw.random() < epsilon
    every = rounds_every(config)
    maintained = len(updates) // every if every else 0
    return Passes(len(updates), rollouts, routed, maintained)


def shorten_plan(plan: Plan) -> Plan:
    """The same in few: as many validations, with fewer batches between them and fewer examples."""
    config, dataset = plan.config, plan.dataset
    whole = Schedule(dataset.train, config.update, config.randomness).batches
    rollouts = whole * min(config.update.batch_size, len(dataset.train))
    calls = rollouts * (4 + max(1, len(plan.task.program.stages)))
    batches, every = whole, config.validation.every
    if calls > CALLS:
        batches = math.ceil(whole * CALLS / calls)
    if batches < whole and every and whole >= every:
        times, left = divmod(whole, every)
        every = max(1, round(batches / times))
        batches = times * every + (left > 0 and every > 1)
    update, validation = config.update, config.validation
    if batches < whole:
        update = update.model_copy(update={"epochs": batches, "steps_per_epoch": 1})
    val, test = _some(dataset.val), _some(plan.judged)
    subset = math.ceil(validation.subset * len(val) / max(1, len(dataset.val)))
    validation = validation.model_copy(update={"every": every, "subset": subset})
    return replace(
        plan,
        task=replace(plan.task, dataset=replace(dataset, val=val, test=test)),
        config=config.model_copy(update={"update": update, "validation": validation}),
    )


def _some(examples: Sequence[Example]) -> tuple[Example, ...]:
    """At most `EXAMPLES`, taken evenly."""
    most = min(EXAMPLES, len(examples))
    return tuple(examples[k * len(examples) // most] for k in range(most))


async def dry_run(plan: Plan, manner: Manner) -> DryWork:
    """The work of `pco train` in the given manner. Raises what it raises before its first call."""
    config = _undisturbed(plan.config, manner)
    lm = CountingLM(config, manner)
    program = _MadeUpProgram(plan.task.program, manner)
    reward = _made_up_reward(plan.task.reward, config.reward_range, lm)
    task = replace(plan.task, program=program, reward=reward)
    made_up = replace(plan, task=task, config=config)
    asyncio.get_running_loop().set_default_executor(Inline())
    assembled = made_up.connect(Supplies(own=lm, log=_InMemoryLog()))
    now, tree = datetime.now(UTC).isoformat(), config.model_dump(mode="json")
    with TemporaryDirectory() as folder:
        header = Header("dry", now, "", config=tree)
        with closing(RunStore.create(Path(folder), header)) as store:
            lm.begin((await initialise(assembled)).parameters)
            problem = Problem(assembled, store, lm.hear)
            await Session(problem, make_optimizer(config.optimizer)).run()
    return lm.work


def _undisturbed(config: Config, manner: Manner) -> Config:
    """No budget ends the dry run; early stop does so as soon as it can, or not at all."""
    over: dict[str, object] = {"target_score": None}
    if not manner.steady:
        over["patience"] = 10**9
    elif config.validation.target_score is not None:
        over["target_score"] = config.reward_range[0]
    validation = config.validation.model_copy(update=over)
    # Made-up texts have no twins and no grab-bags: rounds of maintenance are added by their number.
    # What they complain of is no two examples' either: each complaint counts as a shared one.
    update = config.update.model_copy(update={"maintain_every": 0, "shared_by": 1})
    over = {"budget": Budget(), "cache": False, "validation": validation, "update": update}
    return config.model_copy(update=over)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much longer a plan is than its shortened form, phase by phase."""

    whole: Passes
    part: Passes
    evaluated: Mapping[str, float]

    @classmethod
    def between(cls, plan: Plan, short: Plan) -> Scale:
        evaluated = {
            "validating": _ratio(len(plan.dataset.val), len(short.dataset.val)),
            "judging": _ratio(len(plan.judged), len(short.judged)),
        }
        return cls(passes(plan), passes(short), evaluated)

    def up(self, work: DryWork, tidied: float = 0.0) -> DryWork:
        """What the whole plan takes, by the work of the shortened one; a round of maintenance
        makes `tidied` calls, one after the other, each like any other of the updater's."""
        updates = _ratio(self.whole.updates, self.part.updates)
        rollouts = _ratio(self.whole.rollouts, self.part.rollouts)
        routed = _ratio(self.whole.routed, self.part.routed)
        own = {"encoder": routed, "updater": updates}
        made: dict[tuple[str, Role], Work] = {
            (phase, role): done.times(own.get(role, rollouts), rounds=updates)
            if phase == TRAINING
            else done.times(self.evaluated[phase])
            for (phase, role), done in work.items()
        }
        usual, calls = made.get((TRAINING, "updater"), Work()), tidied * self.whole.maintained
        if usual.calls and calls:
            more = replace(usual.times(calls / usual.calls), rounds=calls)
            made[TRAINING, "updater"] = usual + more
        return made


def _ratio(whole: int, part: int) -> float:
    return whole / part if part else 1.0


class _InMemoryLog:
    """A ReplyLog, so that equal requests share a reply as they do in a run."""

    def __init__(self) -> None:
        self._replies: dict[bytes, Reply] = {}

    def get(self, key: bytes) -> Reply | None:
        return self._replies.get(key)

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        self._replies[key] = reply


class _MadeUpProgram:
    """The task's own program on made-up replies; the user's agent is not run, its calls are."""

    def __init__(self, program: Program, manner: Manner) -> None:
        self.name = program.name
        self.stages = program.stages
        self.roles = program.roles
        self._program = program
        self._calls = len(program.stages) or manner.agent_calls

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        if isinstance(self._program, Agent):
            return await self._agent(prompt, example, lm)
        try:
            return await self._program(prompt, example, lm)
        except (Stop, StoreError):
            raise
        except Exception:
            # A pipeline that cannot continue from a made-up reply is counted as far as it came.
            return Output(example.id)

    async def _agent(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """Each call continues from the reply to the one before."""
        asked = example.messages or example.input
        for role in self.roles - {"executor"}:
            await lm(asked, role=role)
        text = ""
        for _ in range(self._calls):
            text = (await lm(text or asked, system=prompt.text)).text
        return Output(text)


def _made_up_reward(
    factory: RewardFactory, reward_range: tuple[float, float], lm: CountingLM
) -> RewardFactory:
    """Full for a keyed share of the answers. A judge is asked what the task's reward asks it; the
    user's own reward is not called."""
    (low, high), manner = reward_range, lm.manner
    untrained: set[tuple[str, str]] = set()

    def make(ask: Ask | None) -> Reward:
        judges = _judges(factory, ask)

        async def reward(example: Example, output: Output) -> Score:
            for judge in judges:
                await _ask_judge(judge, example, output)
            answer = example.id, output.text
            draw = draws("solved", *answer)
            if lm.phase == TRAINING:
                solved = draw.random() < manner.solved
                return Score(high) if solved else Score(low, words(_FEEDBACK, draw))
            # All that an evaluation decides is who wins: a policy that was trained, unless none
            # gains anything so that training ends early.
            if lm.untrained:
                untrained.add(answer)
            wins = answer not in untrained and not manner.steady
            return Score(low + (high - low) * draw.random() if wins else low)

        return reward

    return make


def _judges(factory: RewardFactory, ask: Ask | None) -> list[Reward]:
    """The rewards that ask a model: they cannot do without one, or are others without."""
    if ask is None:
        return []
    reward = factory(ask)
    try:
        if factory(None) is reward:
            return []
    except ConfigError:
        pass
    if isinstance(reward, WeightedSum):
        return [part.reward for part in reward.parts if isinstance(part.reward, Judge)]
    return [reward]


async def _ask_judge(judge: Reward, example: Example, output: Output) -> None:
    try:
        await apply_reward(judge, example, output, (-math.inf, math.inf))
    except (Stop, StoreError):
        raise
    except Exception:
        return  # its calls are counted; what it makes of made-up replies does not matter
