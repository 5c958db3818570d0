"""GRPO (Shao et al. 2024) through `trl` and `peft`: the executor's weights are trained, no prompt.
The row `grpo` is the present prompt on the last weights. trl writes the replies itself. They are
metered all the same: the budget admits a step at its largest possible use, and every reply is
booked as a call of the executor. They are in no journal: a killed run loses the step it was in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Any

from pydantic import Field

from promptcodebook.assemble import Assembled
from promptcodebook.base.units import plural
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.config import OptimizerSettings
from promptcodebook.errors import ConfigError, PcoError, require_modules
from promptcodebook.lm.budget import Attempt
from promptcodebook.method.failures import FailureWatch, gather_all
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.models.local.engine import HF, find_weights
from promptcodebook.models.local.lora import (
    LoraHooks,
    LoraTraining,
    Written,
    checkpoint_rewards,
    last_checkpoint,
    train_lora,
)
from promptcodebook.optimizers.base import Problem, Result, spending
from promptcodebook.optimizers.fixed import baselines
from promptcodebook.optimizers.reserve import VerdictReserve, train_to_reserve
from promptcodebook.paper.rivals.outside import RECENT, LibraryThread, begin_again, failed_with
from promptcodebook.progress import Note, Phase
from promptcodebook.store.events import EndReason
from promptcodebook.types import Prompt, Rollout, Trace

_MODULES = ("torch", "transformers", "accelerate", "llguidance", "trl", "peft", "datasets")
_FOLDER = "grpo"  # in the run's folder: the checkpoints
_ALPHA = 2  # times the rank: the weight that the adapter has
_DROPOUT = 0.05
_OTHERWISE = 'train its prompts instead: optimizer = "gepa", for one'


class GrpoSettings(OptimizerSettings):
    """GRPO through the `trl` package, for optimizer = "grpo"."""

    table = "grpo"
    longer = "steps"

    steps: int = Field(default=200, ge=1)
    """Steps of its optimizer; more of them extend a finished run."""
    group: int = Field(default=8, ge=2)
    """Replies to one training example, whose rewards are compared with each other."""
    batch: int = Field(default=4, ge=1)
    """Training examples of a step: `batch` x `group` replies are written for each."""
    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Of AdamW, the same in every step."""
    rank: int = Field(default=16, ge=1)
    """Rank of the LoRA adapter."""
    beta: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the model before training; 0 = none, as in `trl`."""
    four_bit: bool | None = None
    """Whether the model is held in 4 bits (NF4) in training; none = where a GPU is at hand."""


class GRPO:
    """Trains the weights of a local model on the training split; the prompt stays as it is."""

    settings = GrpoSettings

    def __init__(
        self, train: Callable[[LoraTraining, LoraHooks], Mapping[str, Any]] = train_lora
    ) -> None:
        self._train = train

    async def optimize(self, problem: Problem) -> Result:
        assembled = problem.assembled
        source = _trainable(assembled)
        conversations = await _conversations(assembled)
        require_modules(_MODULES, "GRPO", "grpo")
        begin_again(problem)
        return await self._run(problem, _training(problem, source, conversations))

    async def _run(self, problem: Problem, training: LoraTraining) -> Result:
        """The training until only what the verdict takes is left, and what came of it."""
        thread, meter = LibraryThread("grpo"), _Meter(problem)
        watch = LoraHooks(
            lambda longest: thread.wait_for(meter.begin(longest)),
            lambda step, written: thread.wait_for(meter.score(step, written)),
        )
        chosen: Mapping[str, Any] = {}
        failure: Exception | None = None

        async def until_the_end() -> EndReason:
            nonlocal chosen, failure
            try:
                chosen = await thread.run(lambda: self._train(training, watch))
            except PcoError:
                raise
            except Exception as error:  # of the libraries: that is their result
                failure = error
            finally:
                meter.abandon()
            return "finished"

        ended, stop = await train_to_reserve(problem, until_the_end(), meter.reserve)
        assembled, checkpoint = problem.assembled, last_checkpoint(training.folder)
        remark = _in_words(training, checkpoint)
        if failure is not None:
            remark = f"{remark} It {failed_with(failure, problem)}"
            problem.tell(Note(remark))

        spec = "" if checkpoint is None else f"{HF}{checkpoint}"
        if spec:
            assembled.models.connect(spec)
        shown = ("trl", "peft", "transformers", "torch")
        return Result(
            "grpo",
            "the model that GRPO trained",
            FixedPrompt(assembled.plan.present_prompt),
            model=spec,
            ended=ended,
            stop=stop,
            remark=remark,
            settings={
                "library": ", ".join(f"{name} {version(name)}" for name in shown),
                "base": assembled.models.lm.model_of("executor"),
                **chosen,
                **training.arguments,
                **training.lora,
                "weights": None if checkpoint is None else f"{_FOLDER}/{checkpoint.name}",
            },
        )


def _trainable(assembled: Assembled) -> str:
    """The folder or hub name of the executor. Raises ConfigError for what GRPO cannot train."""
    spec = assembled.models.lm.model_of("executor")
    sampling, program = assembled.models.lm.sampling_of("executor"), assembled.task.program
    extra = ", ".join(sampling.extra)
    refused = {
        f"GRPO trains weights of Hugging Face on this machine, and the executor is {spec}": (
            not spec.startswith(HF),
            "name the model, or the one that a GGUF file was made of: --lm hf:DIR-or-NAME",
        ),
        "GRPO compares replies to the same example, and at temperature 0 they are all the same": (
            sampling.temperature == 0,
            "set roles.executor.temperature to 1, say",
        ),
        "GRPO needs a length cap of its replies": (
            sampling.max_tokens is None,
            "set roles.executor.max_tokens",
        ),
        f"GRPO draws replies without {extra}": (extra, "take it out of roles.executor.extra"),
        f"GRPO trains programs of a single call, and {program.name!r} has several": (
            assembled.plan.prompt_stages or program.stages or program.roles,
            _OTHERWISE,
        ),
    }
    for why, (holds, hint) in refused.items():
        if holds:
            raise ConfigError(why, hint=hint)
    return find_weights(spec).source


async def _conversations(assembled: Assembled) -> Sequence[Sequence[Message]]:
    prompt = Prompt(assembled.plan.present_prompt)
    trial, draws = assembled.trial(scored=False), assembled.config.randomness
    found: list[Sequence[Message]] = []
    for example in assembled.dataset.train:
        asked, at = _Says(), draws.at(0, example.id)
        await replace(trial, lm=asked).run(example, prompt, at, Rollout(example.id))
        kinds = [(request.role, request.schema) for request in asked.requests]
        if kinds != [("executor", None)]:
            raise ConfigError(
                "GRPO trains programs that ask the executor once and for plain text, and "
                f"{assembled.task.program.name!r} does not",
                hint=_OTHERWISE,
            )
        found.append(asked.requests[0].messages)
    return found


@dataclass(frozen=True)
class _Says:
    reply: Reply = Reply("")
    requests: list[Request] = field(default_factory=lambda: list[Request]())

    async def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        return self.reply


def _training(
    problem: Problem, base: str, conversations: Sequence[Sequence[Message]]
) -> LoraTraining:
    config = problem.assembled.config
    given, sampling = GrpoSettings.of(config), problem.assembled.models.lm.sampling_of("executor")
    batch = min(given.batch, len(conversations))
    arguments = {
        "max_steps": given.steps,
        "num_generations": given.group,
        # One group is one backward pass, and all of a step's groups are written together.
        "per_device_train_batch_size": given.group,
        "gradient_accumulation_steps": batch,
        "learning_rate": given.learning_rate,
        "lr_scheduler_type": "constant",
        "beta": given.beta,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "max_completion_length": sampling.max_tokens,
        "seed": config.seed,
    }
    lora: dict[str, Any] = {"r": given.rank, "lora_alpha": _ALPHA * given.rank}
    lora |= {"lora_dropout": _DROPOUT, "target_modules": "all-linear"}
    folder = Path(problem.store.path).resolve() / _FOLDER

    def passes() -> Iterator[int]:
        """The examples' numbers without end, each pass in a seeded order."""
        for turn in count():
            draw = config.randomness.generator(turn, "order")
            yield from sorted(range(len(conversations)), key=lambda _: draw.random())

    order = tuple(islice(passes(), given.steps * batch))
    return LoraTraining(base, folder, conversations, order, arguments, lora, given.four_bit)


def _in_words(training: LoraTraining, checkpoint: Path | None) -> str:
    rewards = checkpoint_rewards(checkpoint)
    if checkpoint is None:
        return "GRPO made no step: its row is the model as it was."
    return (
        f"GRPO trained {training.arguments['num_generations']} replies to each of "
        f"{training.arguments['gradient_accumulation_steps']} examples a step for "
        f"{plural(len(rewards), 'step')}; their mean reward was {rewards[0]:.3f} in the first step "
        f"and {rewards[-1]:.3f} in the last."
    )


class _Meter:
    """Admits and books what trl writes, and gives it the task's reward. Used in the run's loop."""

    def __init__(self, problem: Problem) -> None:
        assembled = problem.assembled
        self._problem, self._models, self._trial = problem, assembled.models, assembled.trial()
        self._given = GrpoSettings.of(assembled.config)
        self._count = self._given.group * min(self._given.batch, len(assembled.dataset.train))
        rows = len(baselines()) + 1
        self.reserve = VerdictReserve(problem, rows * len(assembled.plan.judged))
        self._recent: deque[Rollout] = deque(maxlen=RECENT)
        self._watch = FailureWatch(self._count)
        self._open: list[Attempt] = []
        self._whole = Usage()
        self._begun = 0.0

    async def begin(self, longest: int) -> None:
        models, gate = self._models, self._models.budget
        cap = models.lm.sampling_of("executor").max_tokens or 0
        cost = gate.prices.bound(models.lm.model_of("executor"), longest, cap)
        most = Usage(1, longest, cap, 0, cost)
        whole = sum([most] * self._count, Usage())
        await gate.enter(whole)
        self._whole = whole
        self._open = [models.ledger.begin("executor", most) for _ in range(self._count)]
        self._begun = time.perf_counter()

    async def score(self, step: int, written: Sequence[Written]) -> list[float]:
        """Books the replies of a step, and gives the reward of each."""
        models, config = self._models, self._problem.assembled.config
        seconds = (time.perf_counter() - self._begun) / len(written)
        usages: list[Usage] = []
        for each in written:
            usage = Usage(1, each.prompt_tokens, each.completion_tokens, latency_s=seconds)
            cost = models.budget.prices.cost(models.lm.model_of("executor"), usage)
            usages.append(replace(usage, cost=cost))
            models.ledger.end(self._open.pop(), usages[-1])
        self._open = []
        models.budget.leave(self._whole)
        pairs = zip(written, usages, strict=True)
        made = await gather_all(self._judge(step, each, usage) for each, usage in pairs)
        self._recent.extend(made)
        self.reserve.measure(tuple(self._recent))
        self._problem.tell(spending(models))
        steps = self._given.steps
        self._problem.tell(Phase("steps of grpo", min(step + 1, steps), steps))
        self._watch.see_rollouts(tuple(map(Trace, made)))
        floor, _ = config.reward_range
        return [floor if each.reward is None else each.reward for each in made]

    def abandon(self) -> None:
        """What was begun and never written is booked at its largest possible use."""
        for attempt in self._open:
            self._models.ledger.end(attempt, attempt.most, lost=True)
        if self._open:
            self._open = []
            self._models.budget.leave(self._whole)

    async def _judge(self, step: int, written: Written, usage: Usage) -> Rollout:
        assembled = self._problem.assembled
        example = assembled.dataset.train[written.row]
        answer = _Says(Reply(written.text, "length" if written.cut else "stop", usage))
        trial = replace(self._trial, lm=answer)
        prompt = Prompt(assembled.plan.present_prompt)
        draws = assembled.config.randomness.at(step, example.id)
        return await trial.run(example, prompt, draws, Rollout(example.id, prompt=prompt.text))
