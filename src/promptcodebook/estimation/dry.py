"""A dry run: the real session on a made-up model, reward and agent, which cost nothing. The model
counts the requests; its replies have a typical length and let the loop continue. A long plan is
shortened first, and its use is scaled up again: evaluations by their examples, training by its
rollouts and updates, routes by the examples that the whole schedule's draws do not explore."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import add, attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from promptcodebook.assemble import Plan
from promptcodebook.calls import Chat, Reply, Request, Role, Usage
from promptcodebook.config import Budget, Config
from promptcodebook.errors import ConfigError, Stop, StoreError
from promptcodebook.lm.stack import StackResources
from promptcodebook.lm.structured import Ask
from promptcodebook.lm.wire import beyond_texts, estimate_tokens
from promptcodebook.method.exploration import epsilon_at
from promptcodebook.method.state import Schedule
from promptcodebook.optimizers.base import Problem, make_optimizer
from promptcodebook.optimizers.pco import initialise
from promptcodebook.progress import Phase, ProgressEvent, StepDone
from promptcodebook.run.opening import Session
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import AgentProgram
from promptcodebook.tasks.rewards import RubricJudge, WeightedSum, apply_reward
from promptcodebook.tasks.task import RewardFactory
from promptcodebook.types import Example, Output, Parameters, Program, Prompt, Reward, Score

TRAINING = "training"  # the phase of every call that no evaluation makes
ANSWER = 120  # tokens of a typical answer, or of the reply to one stage of a pipeline
_PROMPT = 110  # tokens of a typical composed prompt
# Tokens of a typical string in a typed reply, by its field; all others are complaints.
_FIELD = {"feedback": 90, "analysis": 25, "reasoning": 60, "constraints": 10}
_COMPLAINT = 35
_FILLED = 0.65  # share of its cap in words that a rewritten text takes up
_PER_WORD = 1.5  # tokens of one made-up word
_DIMENSIONS = 16  # of an embedding: how many does not matter to what a run takes
_LETTERS = str.maketrans("0123456789", "ghiklmnoru")
CALLS = 1000  # calls of a shortened plan's training, about: a second's work
EXAMPLES = 20  # examples of a split that a shortened plan evaluates
TRAINED = 2000  # examples that its batches are drawn from, unless it visits more
_FEEDBACK = 20  # words that a reward says of an answer that is not solved


@dataclass(frozen=True, slots=True)
class DryManner:
    """How a made-up run goes. Of its rollouts the share `solved` gets the full reward; the others
    blame a share `blamed` of the parts that could be to blame; the share `reasked` of typed replies
    is of no use at first. The user's own agent makes `agent_calls` an answer.
    In a `steady` run routes stay, and no policy gains."""

    solved: float
    blamed: float
    reasked: float
    refused: float
    agent_calls: int
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Calls and their tokens."""

    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, _AMOUNTS(self), _AMOUNTS(other)))

    def times(self, factor: float) -> Work:
        return Work(*(factor * amount for amount in _AMOUNTS(self)))


_AMOUNTS = attrgetter("calls", "prompt_tokens", "completion_tokens")
DryWork = Mapping[tuple[str, Role], Work]  # what each phase of a run asks of each role


async def dry_run(plan: Plan, manner: DryManner) -> DryWork:
    """The work of `pco train` in the given manner. Raises what it raises before its first call."""
    config = _undisturbed(plan.config, manner)
    lm = CountingLM(config, manner)
    program = _MadeUpProgram(plan.task.program, manner)
    reward = _made_up_reward(plan.task.reward, config.reward_range, lm)
    task = replace(plan.task, program=program, reward=reward)
    asyncio.get_running_loop().set_default_executor(_Inline())
    supplies = StackResources(client=lm, log=_InMemoryLog())
    assembled = replace(plan, task=task, config=config).connect(supplies)
    now, tree = datetime.now(UTC).isoformat(), config.model_dump(mode="json")
    with TemporaryDirectory() as folder:
        header = Header("dry", now, "", config=tree)
        with closing(RunStore.create(Path(folder), header)) as store:
            lm.begin((await initialise(assembled)).parameters)
            problem = Problem(assembled, store, lm.hear)
            await Session(problem, make_optimizer(config.optimizer)).run()
    return lm.work


def _undisturbed(config: Config, manner: DryManner) -> Config:
    """No budget ends the dry run; early stop does so as soon as it can, or not at all."""
    over: dict[str, object] = {"target_score": None}
    if not manner.steady:
        over["patience"] = 10**9
    elif config.validation.target_score is not None:
        over["target_score"] = config.reward_range[0]
    validation = config.validation.model_copy(update=over)
    # What made-up texts complain of is no two examples': each complaint counts as a shared one.
    # Made-up rewards are flat from the start, so that this end says nothing.
    update = config.update.model_copy(update={"shared_by": 1, "stop_when_flat": None})
    over = {"budget": Budget(), "cache": False, "validation": validation, "update": update}
    return config.model_copy(update=over)


class CountingLM:
    """An LM, and the Listener (`hear`) that learns of the phase its calls belong to. `work` is what
    each phase asked of each role; `untrained` holds until the first update is done."""

    def __init__(self, config: Config, manner: DryManner) -> None:
        self.manner, self._config = manner, config
        self.work: defaultdict[tuple[str, Role], Work] = defaultdict(Work)
        self.phase, self.untrained = TRAINING, True
        self._directives: list[str] = []
        self._embedded: set[str] = set()

    def begin(self, first: Parameters) -> None:
        """Learns the first directives, to distinguish their rewrites from an instinct's."""
        self._directives = [t for t in (first.encoder, first.generator, first.critic) if t]

    def hear(self, event: ProgressEvent) -> None:
        """An evaluation is announced as 'validating step 10' or 'judging concat'."""
        if isinstance(event, StepDone):
            self.untrained = False
        elif isinstance(event, Phase):
            kind = event.name.split()[0]
            going = kind in ("validating", "judging") and event.done < event.total
            self.phase = kind if going else TRAINING

    async def __call__(self, request: Request) -> Reply:
        text, tokens, vector = "", 0, tuple[float, ...]()
        contents = [m.content for m in request.messages]
        if request.embeds:
            draw = draws("embedding", contents[0])
            vector = tuple(draw.gauss(0.0, 1.0) for _ in range(_DIMENSIONS))
            if contents[0] in self._embedded:  # the journal of a run has it
                return Reply("", usage=Usage(), vector=vector)
            self._embedded.add(contents[0])
        else:
            text, tokens = self._reply(request, draws(request.role, str(request.sample), *contents))
            tokens = min(tokens, request.sampling.max_tokens or tokens)
        prompt = sum(map(estimate_tokens, contents)) + beyond_texts(request, 4)
        self.work[self.phase, request.role] += Work(1, prompt, tokens)
        return Reply(text, usage=Usage(1, prompt, tokens), vector=vector)

    def _reply(self, request: Request, draw: random.Random) -> tuple[str, int]:
        again = any(m.role == "assistant" for m in request.messages)
        asked = request.messages[-1].content
        if request.schema is not None and (again or draw.random() >= self.manner.reasked):
            if self.manner.steady and request.role == "encoder":
                draw = draws(asked)
            filler = _Filler(self._config, self.manner, request.schema.body, draw)
            text = json.dumps(filler.value("", request.schema.body))
        elif request.schema is None and request.role == "updater":
            refused = self.manner.refused > 0 and draw.random() < self.manner.refused
            update, directive = self._config.update, any(t in asked for t in self._directives)
            cap = update.directive_words if directive else update.instinct_words
            text = words(cap * _FILLED, draw)
            if directive:
                self._directives.append(text)
            if refused:  # what says nothing passes no check, and took as long to write
                return "", estimate_tokens(text)
        elif request.schema is None and request.role in ("encoder", "attribution"):
            picks = draw.sample(range(self._config.size), self._config.select)
            text = ", ".join(map(str, picks)) if request.role == "encoder" else "missing"
        else:
            text = words((_PROMPT if request.role == "generator" else ANSWER) / _PER_WORD, draw)
        return text, estimate_tokens(text)


@dataclass(frozen=True)
class _Filler:
    config: Config
    manner: DryManner
    body: Mapping[str, Any]
    draw: random.Random

    def value(self, name: str, node: Mapping[str, Any]) -> Any:
        if "$ref" in node:
            node = self.body["$defs"][node["$ref"].rpartition("/")[2]]
        if "anyOf" in node:
            return None if {"type": "null"} in node["anyOf"] else self.value(name, node["anyOf"][0])
        if "enum" in node:
            return node["enum"][0]
        match node.get("type"):
            case "object":
                # An instinct that may be blamed is named by its index.
                inner = name if name == "instinct_errors" else None
                shapes = node.get("properties", {}).items()
                fields = {f: self.value(inner or f, n) for f, n in shapes}
                return {f: each for f, each in fields.items() if each or inner is None}
            case "array" if name == "harmful":
                return []
            case "array" if name == "selected_indices":
                return self.draw.sample(range(self.config.size), self.config.select)
            case "array":
                most = min(self.config.size, node.get("maxItems", self.config.size))
                count = most if name == "instincts" else 3
                return [self.value(name, node.get("items", {})) for _ in range(count)]
            case "integer" | "number":
                return node.get("minimum", 0)
            case "boolean":
                return True
            case _:
                return self._string(name)

    def _string(self, name: str) -> str:
        """What is solved has an empty critique, and not every part is to blame."""
        if name == "instincts":
            return words(self.config.update.instinct_words * _FILLED, self.draw)
        often = 1.0
        rubric = name == "feedback" and "score" not in self.body.get("properties", {})
        if rubric or name.endswith("_errors"):
            often = self.manner.blamed
        elif name == "feedback" and not self.config.critic.skip_solved:
            often = 1.0 - self.manner.solved
        if self.draw.random() >= often:
            return ""
        return words(_FIELD.get(name, _COMPLAINT) / _PER_WORD, self.draw)


def draws(*texts: str) -> random.Random:
    key = "\x1f".join(texts).encode("utf-8", "surrogatepass")
    return random.Random(hashlib.blake2b(key, digest_size=8).digest())


def words(count: float, draw: random.Random) -> str:
    """Made-up words: no check refuses them, and no other reply has them."""
    count = max(1, round(count))
    letters = draw.randbytes(3 * count).hex().translate(_LETTERS)
    return " ".join(letters[i : i + 5] for i in range(0, 6 * count, 6))


class _Inline(ThreadPoolExecutor):
    """A pool without threads: what is searched in it is found before the loop turns again."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


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

    def __init__(self, program: Program, manner: DryManner) -> None:
        self.name, self.stages, self.roles = program.name, program.stages, program.roles
        self._program, self._calls = program, len(program.stages) or manner.agent_calls
        # An agent shows its tools when it is tried, which costs nothing but is its own code.
        seen = getattr(getattr(program, "function", None), "tools", ())
        self.function = SimpleNamespace(tools=seen or ("tool:unseen: Use it.",))

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        if not isinstance(self._program, AgentProgram):
            try:
                return await self._program(prompt, example, lm)
            except (Stop, StoreError):
                raise
            except Exception:
                # A pipeline that cannot continue from a made-up reply counts as far as it came.
                return Output(example.id)
        asked = example.messages or example.input
        for role in self.roles - {"executor"}:
            await lm(asked, role=role)
        text = ""
        for _ in range(self._calls):  # each continues from the reply to the one before
            text = (await lm(text or asked, system=prompt.text)).text
        return Output(text)


def _made_up_reward(
    factory: RewardFactory, reward_range: tuple[float, float], lm: CountingLM
) -> RewardFactory:
    """Full for a keyed share of answers. A judge's calls are made, the user's reward is not."""
    (low, high), manner = reward_range, lm.manner
    untrained: set[tuple[str, str]] = set()

    def make(ask: Ask | None) -> Reward:
        judges = _judges(factory, ask)

        async def reward(example: Example, output: Output) -> Score:
            for judge in judges:
                try:
                    await apply_reward(judge, example, output, (-math.inf, math.inf))
                except (Stop, StoreError):
                    raise
                except Exception:  # its calls count, not what it makes of made-up replies
                    continue
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
    with suppress(ConfigError):
        if factory(None) is reward:
            return []
    if isinstance(reward, WeightedSum):
        return [part.reward for part in reward.parts if isinstance(part.reward, RubricJudge)]
    return [reward]


# Long plans, shortened and scaled up again.


@dataclass(frozen=True, slots=True)
class Passes:
    """Updates, their rollouts, and those that the encoder routes."""

    updates: int
    rollouts: int
    routed: int


def passes(plan: Plan) -> Passes:
    """Counted exactly: whether an example explores is drawn as training draws it."""
    config, rollouts, routed = plan.config, 0, 0
    updates = Schedule(plan.dataset.train, config.update, config.randomness).updates()
    for step, epoch, batch in updates:
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)
        rollouts += len(batch)
        for example in batch if config.has_encoder else ():
            draw = config.randomness.at(step, example.id).generator("explore")
            routed += not draw.random() < epsilon
    return Passes(len(updates), rollouts, routed)


def shorten_plan(plan: Plan) -> Plan:
    """The same in few: as many validations, with fewer batches between them and fewer examples."""
    config, dataset, validation = plan.config, plan.dataset, plan.config.validation
    update, every = config.update, validation.every
    whole = Schedule(dataset.train, update, config.randomness).batches
    rollouts = whole * min(update.batch_size, len(dataset.train))
    calls = rollouts * (4 + max(1, len(plan.task.program.stages)))
    batches = math.ceil(whole * CALLS / max(calls, CALLS))
    if batches < whole and every and whole >= every:
        times, left = divmod(whole, every)
        every = max(1, round(batches / times))
        batches = times * every + (left > 0 and every > 1)
    train = dataset.train
    if config.router.features == "words":  # else each row that is left out costs a call
        train = _some(train, max(TRAINED, batches * update.batch_size))
    if batches < whole:
        update = update.model_copy(update={"epochs": batches, "steps_per_epoch": 1})
    val, test = _some(plan.validated), _some(plan.judged)
    subset = math.ceil(validation.subset * len(val) / max(1, len(plan.validated)))
    validation = validation.model_copy(update={"every": every, "subset": subset})
    return replace(
        plan,
        task=replace(plan.task, dataset=replace(dataset, train=train, val=val, test=test)),
        config=config.model_copy(update={"update": update, "validation": validation}),
    )


def _some(examples: Sequence[Example], most: int = EXAMPLES) -> tuple[Example, ...]:
    most = min(most, len(examples))
    return tuple(examples[k * len(examples) // most] for k in range(most))


@dataclass(frozen=True, slots=True)
class PlanScale:
    """How much longer a plan is than its shortened form, phase by phase."""

    whole: Passes
    part: Passes
    evaluated: Mapping[str, float]

    @classmethod
    def between(cls, plan: Plan, short: Plan) -> PlanScale:
        evaluated = {
            "validating": _ratio(len(plan.validated), len(short.validated)),
            "judging": _ratio(len(plan.judged), len(short.judged)),
        }
        return cls(passes(plan), passes(short), evaluated)

    def up(self, work: DryWork) -> DryWork:
        """What the whole plan takes, by the shortened one's work."""
        updates = _ratio(self.whole.updates, self.part.updates)
        rollouts = _ratio(self.whole.rollouts, self.part.rollouts)
        routed = _ratio(self.whole.routed, self.part.routed)
        own = {"encoder": routed, "updater": updates}
        return {
            (phase, role): done.times(
                own.get(role, rollouts) if phase == TRAINING else self.evaluated[phase]
            )
            for (phase, role), done in work.items()
        }


def _ratio(whole: int, part: int) -> float:
    return whole / part if part else 1.0
