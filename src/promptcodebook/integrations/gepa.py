"""gepa: what a GEPAAdapter evaluates, as a task of ours.

    task = AdapterTask(adapter, {"system_prompt": "Be brief."}, trainset, valset)
    run = pco.optimize(task.data, task.reward, "openai/gpt-x", executor=task.executor)

A composed prompt precedes a component's own text, which stays what the seed candidate says ("" =
the prompt is the whole text), so the row `present` of a verdict is the seed candidate. What an
adapter asks of a model is past our budget, unless it was given a `TaskModel`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from promptcodebook.calls import Chat, Message, Reply, read_message
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.integrations import read_score, scored_output
from promptcodebook.method.policy import join_prompts
from promptcodebook.types import Example, Output, Prompt, Score, Stage

_log = logging.getLogger(__name__)
_Ask = Callable[[Sequence[Message]], Reply]
_asking: ContextVar[_Ask | None] = ContextVar("promptcodebook_task_model", default=None)
_INPUTS = ("input", "question", "query")
_ANSWERS = ("answer", "target", "ground_truth_answer")


class TaskModel:
    """A model for adapters, messages -> text: the executor of the run that evaluates the example in
    hand, and so within its budget, journal and meter."""

    def __call__(self, messages: str | Sequence[Mapping[str, Any]]) -> str:
        """Raises ConfigError outside of an evaluation, or in a thread that an adapter started
        itself."""
        ask = _asking.get()
        if ask is None:
            message = "a TaskModel was called outside an evaluation"
            raise ConfigError(message, hint="call it in the thread that calls adapter.evaluate")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return ask(list(map(read_message, turns))).text


def read_instance(instance: Any) -> tuple[str, str | None]:
    """An instance's input and reference as texts: a text, or a mapping with `input`, `question` or
    `query`, and `answer`, `target` or `ground_truth_answer`. Raises DataError for any other."""
    if isinstance(instance, str):
        return instance, None
    if isinstance(instance, Mapping):
        columns = cast("Mapping[str, object]", instance)
        text = next((columns[name] for name in _INPUTS if name in columns), None)
        known = next((columns[name] for name in _ANSWERS if name in columns), None)
        if text is not None:
            return str(text), None if known is None else str(known)
    kind = type(cast("object", instance)).__name__
    message = f"an instance of type {kind} does not say what its input is"
    raise DataError(message, hint="AdapterTask(..., read=lambda row: (row.text, row.answer))")


@dataclass(frozen=True)
class AdapterTask:
    """A GEPAAdapter and its instances, as data, reward and executor of `pco.optimize`. `read` gives
    an instance's input and reference (or None). Its reflective dataset is our critic's feedback."""

    adapter: Any
    seed_candidate: Mapping[str, str]
    trainset: Sequence[Any]
    valset: Sequence[Any] = ()
    testset: Sequence[Any] = ()
    read: Callable[[Any], tuple[str, str | None]] = read_instance

    @property
    def data(self) -> Dataset:
        train, val, test = (
            tuple(Example(f"{split}-{k}", *self.read(each)) for k, each in enumerate(instances))
            for split, instances in self.splits.items()
        )
        return Dataset(train, val, test, "gepa")

    @property
    def reward(self) -> Any:
        return read_score

    @property
    def executor(self) -> Any:
        return _Executor(self)

    @property
    def splits(self) -> dict[str, Sequence[Any]]:
        return {"train": self.trainset, "val": self.valset, "test": self.testset}


class _Executor:
    """Runs the adapter on one instance under a prompt; the output carries the score."""

    def __init__(self, task: AdapterTask) -> None:
        self.__qualname__ = type(task.adapter).__qualname__
        self.stages = tuple(task.seed_candidate)
        self._task, self._splits = task, task.splits

    def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        split, _, index = example.id.partition("-")
        candidate = {
            name: join_prompts(prompt.of(name), text)
            for name, text in self._task.seed_candidate.items()
        }
        # In this thread `lm` returns the reply itself.
        token = _asking.set(cast("_Ask", lm))
        try:
            instances = [self._splits[split][int(index)]]
            made = self._task.adapter.evaluate(instances, candidate, capture_traces=True)
            records = {name: self._records(candidate, made, name) for name in candidate}
        finally:
            _asking.reset(token)
        stages = [
            Stage(name, _text(record.get("Inputs", "")), _text(record.get("Generated Outputs", "")))
            for name, shown in records.items()
            for record in shown
            if len(candidate) > 1
        ]
        feedback = dict.fromkeys(_feedback(each) for shown in records.values() for each in shown)
        score = Score(float(made.scores[0]), "\n".join(filter(None, feedback)))
        return scored_output(_text(made.outputs[0]), stages, score)

    def _records(self, candidate: dict[str, str], made: Any, name: str) -> list[dict[str, Any]]:
        try:
            shown = self._task.adapter.make_reflective_dataset(candidate, made, [name])
        except Exception as error:  # some raise for a batch in which nothing can be shown
            _log.warning("no feedback on %s: %s: %s", name, type(error).__name__, error)
            return []
        return [dict(record) for record in shown.get(name, ())]


def _feedback(record: Mapping[str, Any]) -> str:
    """What a record says of the program's work; all of it where it has fields of its own."""
    for name in ("Feedback", "feedback"):
        if name in record:
            return _text(record[name])
    rest = {k: v for k, v in record.items() if k not in ("Inputs", "Generated Outputs")}
    return _text(rest) if rest else ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if len(fields) == 1:
            return _text(next(iter(fields.values())))
    return json.dumps(value, ensure_ascii=False, default=str)
