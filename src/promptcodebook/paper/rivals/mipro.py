"""MIPROv2 (Opsahl-Ong et al. 2024) through the `dspy` package, unmodified. A predictor's
instruction and demonstrations become the prompt of a stage, or of the program; dspy bootstraps from
what its stages read and wrote. A reply that dspy cannot parse ends it: that is its result.

dspy's defaults: `auto = "light"`, 4 bootstrapped and 4 labelled demonstrations, minibatches of 35
with a full evaluation every 5."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from promptcodebook.calls import Message, Reply
from promptcodebook.config import OptimizerSettings
from promptcodebook.errors import import_extra, require_modules
from promptcodebook.method.policy import join_prompts
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.paper.rivals.outside import WHOLE, Outside, RivalLibrary, optimize_outside
from promptcodebook.types import Example

if TYPE_CHECKING:
    from collections.abc import Generator


class MiproSettings(OptimizerSettings):
    """MIPROv2 through the `dspy` package, for optimizer = "mipro"."""

    table = "mipro"

    auto: Literal["light", "medium", "heavy"] = "light"
    """MIPROv2's own preset for the size of its search."""
    demos: int = Field(default=4, ge=0)
    """Maximum bootstrapped examples in a prompt, and maximum labelled examples; 0 = no examples."""


class MIPROv2:
    """Proposes instructions and demonstrations, and searches their combinations by trial."""

    settings = MiproSettings

    async def optimize(self, problem: Problem) -> Result:
        require_modules(("dspy", "optuna"), "MIPROv2", "baselines")
        dspy = import_extra("dspy", "MIPROv2", "baselines")
        config = problem.assembled.config
        given = MiproSettings.of(config)
        # All that it is run with, the package's own defaults included.
        settings: dict[str, Any] = {
            "library": f"MIPROv2 (dspy {version('dspy')}, optuna {version('optuna')})",
            "proposals": "role updater, temperature 1, at least 1,024 tokens",
            "auto": given.auto,
            "max_bootstrapped_demos": given.demos,
            "max_labeled_demos": given.demos,
            "metric_threshold": None,
            "minibatch_size": 35,
            "minibatch_full_eval_steps": 5,
            "seed": config.seed,
            "num_threads": config.concurrency,
        }

        def work(outside: Outside) -> Mapping[str, str]:
            with _quiet():
                return _compile(dspy, outside, settings)

        library = RivalLibrary("mipro", "the prompt that MIPROv2 found", settings, work)
        return await optimize_outside(problem, library)


def _compile(dspy: Any, outside: Outside, settings: Mapping[str, Any]) -> Mapping[str, str]:
    lm = dspy_model(dspy, lambda asked: Reply(outside.ask(asked)), "updater")
    program = _program(dspy, outside)
    optimizer = dspy.MIPROv2(
        metric=lambda example, prediction, trace=None: prediction.reward,  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        prompt_model=lm,
        task_model=lm,
        **{k: settings[k] for k in ("auto", "metric_threshold", "seed", "num_threads")},
        **{k: settings[k] for k in ("max_bootstrapped_demos", "max_labeled_demos")},
    )
    # Whatever the process has configured besides: nothing else listens, and nothing is kept.
    apart: dict[str, Any] = {"callbacks": [], "disable_history": True, "track_usage": False}
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), **apart):
        compiled = optimizer.compile(
            program,
            trainset=[_row(dspy, e) for e in outside.train],
            valset=[_row(dspy, e) for e in outside.val] or None,
            minibatch_size=settings["minibatch_size"],
            minibatch_full_eval_steps=settings["minibatch_full_eval_steps"],
        )
    return compiled.texts()


class _Input(str):
    """x as text, which dspy hands on as it is, so that its example is known where it is run."""

    example: Example

    def __deepcopy__(self, memo: object) -> _Input:
        return self


def _row(dspy: Any, example: Example) -> Any:
    text = _Input(example.input)
    text.example = example
    known = {} if example.target is None else {"output": example.target}
    return dspy.Example(input=text, **known).with_inputs("input")


def _program(dspy: Any, outside: Outside) -> Any:
    stages = outside.stages
    names = {stage: f"stage_{k}" for k, stage in enumerate(stages)}

    class Pipeline(dspy.Module):
        """Answers an input by calls to a language model, each stage under its own instruction."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.first: dict[str, str] = {}
            for stage, name in names.items():
                signature = dspy.Signature(" -> ".join(_names(stage)), outside.first[stage])
                self.first[stage] = signature.instructions
                setattr(self, name, dspy.Predict(signature))

        def forward(self, input: str) -> Any:
            [rollout] = outside.roll_out(self.texts(), [cast("_Input", input).example])
            trace = dspy.settings.trace
            if trace is not None and rollout.failure is None:
                # What the stages read and wrote, where dspy keeps a trace.
                for stage, name in names.items():
                    read, written = _names(stage)
                    steps = [(s.input, s.output) for s in rollout.stages if s.name == stage]
                    for source, made in [(str(input), rollout.output)] if stage == WHOLE else steps:
                        inputs, outputs = {read: source}, dspy.Prediction(**{written: made})
                        trace.append((getattr(self, name), inputs, outputs))
            low, high = outside.problem.assembled.config.reward_range
            unit = (outside.reward(rollout) - low) / (high - low)
            return dspy.Prediction(output=rollout.output, reward=unit)

        def texts(self) -> dict[str, str]:
            """Each stage's instruction and demonstrations; an unchanged instruction is ours."""
            found: dict[str, str] = {}
            for stage, name in names.items():
                predictor, (read, written) = getattr(self, name), _names(stage)
                instruction = predictor.signature.instructions
                if instruction == self.first[stage]:
                    instruction = outside.first[stage]
                # One that lacks a field of its predictor is left out, as dspy does.
                demos = [d for d in predictor.demos if d.get(read) and d.get(written)]
                shown = [f"Input: {d[read]}\nOutput: {d[written]}" for d in demos]
                examples = "\n\n".join(["Examples:", *shown]) if shown else ""
                found[stage] = join_prompts(instruction, examples)
            return found

    return Pipeline()


def _names(stage: str) -> tuple[str, str]:
    if stage == WHOLE:
        return "input", "output"
    safe = "".join(c if c.isalnum() else "_" for c in stage)
    return f"{safe}_input", f"{safe}_output"


@contextmanager
def _quiet() -> Generator[None]:
    """Neither library logs, for it would quote data and prompts; both do again afterwards."""
    loggers = [logging.getLogger(name) for name in ("dspy", "optuna")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


AskText = Callable[[Sequence[Message]], Reply]


def dspy_model(dspy: Any, ask: AskText, name: str) -> Any:
    """A `dspy.LM` whose requests are calls of `ask`, from any thread, without dspy's sampling."""
    engine = _Engine(dspy, ask)
    engines: dict[str, Any] = {"engine": engine, "async_engine": _AsyncEngine(engine)}
    return dspy.LM(f"promptcodebook/{name}", **engines, cache=False, num_retries=0)


class _Engine:
    def __init__(self, dspy: Any, ask: AskText) -> None:
        self._lm15 = dspy.lm15
        self._ask = ask

    def __deepcopy__(self, memo: object) -> _Engine:
        return self

    def complete(self, request: Any) -> Any:
        system = request.system
        if system is not None and not isinstance(system, str):
            system = "".join(part.text for part in system)
        asked = [Message("system", system)] if system else []
        for turn in request.messages:
            role = "assistant" if turn.role == "assistant" else "user"
            asked.append(Message(role, turn.text or ""))
        reply = self._ask(asked)
        usage, types = reply.usage, self._lm15
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return types.Response(
            id=None,
            model=request.model,
            message=types.Message.assistant([types.TextPart(reply.text)]),
            finish_reason="length" if reply.finish == "length" else "stop",
            usage=types.Usage(**counts, total_tokens=usage.tokens),
        )

    def stream(self, request: Any) -> Any:
        return self._lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is open."""


class _AsyncEngine:
    """The same for a program that is awaited."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def __deepcopy__(self, memo: object) -> _AsyncEngine:
        return self

    async def complete(self, request: Any) -> Any:
        return await asyncio.to_thread(self._engine.complete, request)

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        for event in await asyncio.to_thread(lambda: list(self._engine.stream(request))):
            yield event

    async def aclose(self) -> None:
        """Nothing is open."""
