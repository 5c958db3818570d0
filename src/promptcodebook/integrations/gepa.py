"""gepa: what a GEPAAdapter evaluates as a task of ours, and a policy of ours as its candidate.

    task = AdapterTask(adapter, {"system_prompt": "Be brief."}, trainset, valset)
    run = pco.optimize(task.data, task.reward, "openai/gpt-x", executor=task.executor)

    adapter = PolicyAdapter(task, run.policy)
    found = gepa.optimize(adapter.candidate, trainset, valset, adapter=adapter, ...)
    policy = adapter.policy(found.best_candidate)

A composed prompt precedes a component's own text, which stays what the seed candidate says ("" =
the prompt is the whole text), so the row `present` of a verdict is the seed candidate. What an
adapter asks of a model is past our budget, unless it was given a `TaskModel`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from promptcodebook.calls import Chat, Message, Reply, read_message
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, DataError, LMError, import_extra
from promptcodebook.integrations import read_score, scored_output
from promptcodebook.method.policy import join_prompts
from promptcodebook.policy.policy import Policy
from promptcodebook.types import Example, Output, Prompt, Route, Score, Stage

_log = logging.getLogger(__name__)
_Ask = Callable[[Sequence[Message]], Reply]
_asking: ContextVar[_Ask | None] = ContextVar("promptcodebook_task_model", default=None)
_INPUTS = ("input", "question", "query")
_ANSWERS = ("answer", "target", "ground_truth_answer")
_INSTINCT = "instinct "


class TaskModel:
    """A model for adapters, messages -> text: the executor of the run or policy that the example in
    hand is evaluated for; so within its budget, journal and meter."""

    def __call__(self, messages: str | Sequence[Mapping[str, Any]]) -> str:
        """ConfigError outside of an evaluation, or in a thread that an adapter started itself."""
        ask = _asking.get()
        if ask is None:
            message = "a TaskModel was asked outside of an evaluation"
            raise ConfigError(message, hint="ask it in the thread that calls adapter.evaluate")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return ask(list(map(read_message, turns))).text


def read_instance(instance: Any) -> tuple[str, str | None]:
    """An instance's input and reference as texts: a text, or a mapping with `input`, `question` or
    `query`, and `answer`, `target` or `ground_truth_answer`. DataError for any other."""
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
            for split, instances in self._splits.items()
        )
        return Dataset(train, val, test, "gepa")

    @property
    def reward(self) -> Any:
        return read_score

    @property
    def executor(self) -> Any:
        return _Executor(self)

    def evaluate(self, instance: Any, prompt: Prompt, ask: _Ask | None) -> Output:
        """One instance under the prompt, scored; `ask` is the model of a TaskModel meanwhile."""
        candidate = {
            name: join_prompts(prompt.of(name), text) for name, text in self.seed_candidate.items()
        }
        token = _asking.set(ask)
        try:
            made = self.adapter.evaluate([instance], candidate, capture_traces=True)
            records = {name: self._records(candidate, made, name) for name in candidate}
        finally:
            _asking.reset(token)
        several = len(candidate) > 1
        stages = [
            Stage(name, _text(record.get("Inputs", "")), _text(record.get("Generated Outputs", "")))
            for name, shown in records.items()
            for record in shown
            if several
        ]
        said = dict.fromkeys(_feedback(record) for shown in records.values() for record in shown)
        score = Score(float(made.scores[0]), "\n".join(text for text in said if text))
        return scored_output(_text(made.outputs[0]), stages, score)

    def instance(self, id: str) -> Any:
        split, _, index = id.partition("-")
        return self._splits[split][int(index)]

    @property
    def _splits(self) -> dict[str, Sequence[Any]]:
        return {"train": self.trainset, "val": self.valset, "test": self.testset}

    def _records(self, candidate: dict[str, str], made: Any, name: str) -> list[dict[str, Any]]:
        try:
            shown = self.adapter.make_reflective_dataset(candidate, made, [name])
        except Exception as error:  # some raise for a batch in which nothing can be shown
            _log.warning("no feedback on %s: %s: %s", name, type(error).__name__, error)
            return []
        return [dict(record) for record in shown.get(name, ())]


class _Executor:
    def __init__(self, task: AdapterTask) -> None:
        self.__qualname__ = type(task.adapter).__qualname__
        self.stages = tuple(task.seed_candidate)
        self._task = task

    def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        def ask(messages: Sequence[Message]) -> Reply:
            return cast("Reply", lm(messages))  # in a thread it is the reply itself

        return self._task.evaluate(self._task.instance(example.id), prompt, ask)


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


@dataclass(frozen=True, slots=True)
class _Seen:
    text: str
    route: Route
    prompt: str
    output: Output
    score: Score


class PolicyAdapter:
    """A policy as a candidate of gepa's, to evaluate or to start from; an adapter around a task's.
    Its components are the texts that the policy learned: θ ('encoder') and φ ('generator') where
    they are asked, and each instinct that is not frozen ('instinct 0', ...). Instances are
    evaluated by the task's own adapter, up to `threads` at once (1 where it is not thread-safe). An
    instinct's reflective dataset has the instances that were routed to it."""

    propose_new_texts = None

    def __init__(self, task: AdapterTask, policy: Policy, *, threads: int = 8) -> None:
        self._batch: Any = import_extra("gepa", __name__, "baselines").EvaluationBatch
        self._task, self._policy, self._threads = task, policy, threads

    @property
    def candidate(self) -> dict[str, str]:
        """The policy's texts: a seed candidate for `gepa.optimize`."""
        file = self._policy.file
        texts = {
            "encoder": file.encoder if file.router is None else "",
            "generator": file.generator if file.compose == "generator" else "",
        }
        asked = {name: text for name, text in texts.items() if text}
        book = enumerate(file.codebook)
        return asked | {f"{_INSTINCT}{k}": each.text for k, each in book if not each.frozen}

    def policy(self, candidate: Mapping[str, str]) -> Policy:
        """The policy that a candidate's texts make; a blank one stays what it was."""
        file, kept = self._policy.file, self.candidate
        new = {name: text.strip() or kept[name] for name, text in candidate.items()}
        entries = (
            entry.model_copy(update={"text": new.get(f"{_INSTINCT}{k}", entry.text)})
            for k, entry in enumerate(file.codebook)
        )
        update = {
            "encoder": new.get("encoder", file.encoder),
            "generator": new.get("generator", file.generator),
            "codebook": tuple(entries),
        }
        return self._policy.with_file(file.model_copy(update=update))

    def evaluate(
        self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        """Scores under the policy that the candidate makes. LMError where no model can be asked; a
        single prompt that failed is an example that earned nothing."""
        with self.policy(candidate) as policy, ThreadPoolExecutor(self._threads) as pool:
            seen = list(pool.map(partial(self._one, policy), batch))
        return self._batch(
            outputs=[each.output.text for each in seen],
            scores=[each.score.value for each in seen],
            trajectories=seen if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        seen: Sequence[_Seen] = eval_batch.trajectories
        return {name: _records(name, candidate, seen) for name in components_to_update}

    def _one(self, policy: Policy, instance: Any) -> _Seen:
        text, _ = self._task.read(instance)
        try:
            route, prompt = policy.compose(text)
        except LMError as error:
            if not error.answered:
                raise
            failed = Score(0.0, f"No prompt was composed: {error}")
            return _Seen(text, Route(()), "", Output(""), failed)
        output = self._task.evaluate(instance, prompt, policy.reply)
        return _Seen(text, route, prompt.text, output, read_score(Example("", text), output))


def _records(
    name: str, candidate: Mapping[str, str], seen: Sequence[_Seen]
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for each in seen:
        routed = {f"{_INSTINCT}{k}": k for k in each.route.indices}
        chosen = {str(k): candidate.get(key, "") for key, k in routed.items()}
        inputs: dict[str, Any] = {"input": each.text}
        if name == "encoder":
            outputs: object = {"route": ", ".join(chosen)}
        elif name == "generator":
            inputs, outputs = {**inputs, "instincts": chosen}, {"prompt": each.prompt}
        elif name in routed:
            inputs, outputs = {**inputs, "prompt": each.prompt}, each.output.text
        else:
            continue
        feedback = f"Score {each.score.value:g}. {each.score.feedback}".strip()
        records.append({"Inputs": inputs, "Generated Outputs": outputs, "Feedback": feedback})
    return records
