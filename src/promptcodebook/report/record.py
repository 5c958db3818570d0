"""What a run has on record of one example: when training drew it, and the verdict's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from promptcodebook.policy.references import kept_state
from promptcodebook.report.private import withhold
from promptcodebook.step import Rewrite, Step
from promptcodebook.store import Compared, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Evaluation, Gradients, Rollout, Trace, Variable


@dataclass(frozen=True, slots=True)
class Training:
    """One time that training drew the example. `instincts` are the texts that it was routed over;
    `rewrites` are those of the step whose text the example's gradients blamed: what changed because
    of it, and of the others of its batch that blamed the same. `reverted` were taken back."""

    step: int
    trace: Trace
    instincts: tuple[tuple[int, str], ...]
    rewrites: tuple[Rewrite, ...]
    reverted: tuple[Variable, ...]

    @property
    def blamed(self) -> tuple[tuple[Variable, str], ...]:
        """Each text that was blamed, with its gradient."""
        return tuple(_blamed(self.trace.gradients))


@dataclass(frozen=True, slots=True)
class Record:
    """`trainings` in order; for an example of the validation split `validated` is what the kept
    policy made of it, for one of the test split `judged` are the verdict's rows by name."""

    example_id: str
    trainings: tuple[Training, ...]
    validated: Rollout | None
    judged: tuple[tuple[str, Rollout], ...]


def read_record(run: Path, example_id: str) -> Record | None:
    """What the run in that folder has of the example; None where it has nothing. Of private data
    the texts are withheld. Raises RunNotFound, StoreError."""
    store = RunStore.open(run)
    try:
        record = Record(
            example_id,
            tuple(_trainings(store, example_id)),
            _validated(store, example_id),
            tuple(_judged(store, example_id)),
        )
    finally:
        store.close()
    known = record.trainings or record.validated or record.judged
    return record if known else None


def _trainings(store: RunStore, example_id: str) -> Iterator[Training]:
    if store.outline().parameters is None:
        return
    codebook = store.started().parameters.codebook
    for step in store.steps(traces=True):
        for trace in step.traces:
            if trace.rollout.example_id == example_id:
                yield _training(_shown(store, step, trace), codebook)
        codebook = step.parameters.codebook


def _shown(store: RunStore, step: Step, trace: Trace) -> Step:
    """The step with this trace alone, private texts withheld."""

    alone = Stepped(replace(step, traces=(trace,)))
    event = withhold(alone) if store.header.private else alone
    assert isinstance(event, Stepped)
    return event.step


def _training(step: Step, codebook: Codebook) -> Training:
    [trace] = step.traces
    route = trace.rollout.route
    routed = () if route is None else route.indices
    blamed = {variable for variable, _ in _blamed(trace.gradients)}
    return Training(
        step.index,
        trace,
        tuple((k, codebook[k].text) for k in routed if k < len(codebook)),
        tuple(r for r in step.rewrites if r.variable in blamed),
        step.reverted,
    )


def _blamed(gradients: Gradients) -> Iterator[tuple[Variable, str]]:
    if gradients.encoder:
        yield "encoder", gradients.encoder
    if gradients.generator:
        yield "generator", gradients.generator
    yield from gradients.codebook.items()
    if gradients.critic:
        yield "critic", gradients.critic


def _validated(store: RunStore, example_id: str) -> Rollout | None:
    if store.outline().parameters is None:
        return None
    validated = store.validation_at(kept_state(store)[1].step)
    if validated is None:
        return None
    return next(_of_example(store, validated.evaluation, example_id), None)


def _judged(store: RunStore, example_id: str) -> Iterator[tuple[str, Rollout]]:
    for evaluation in store.test_evaluations():
        for rollout in _of_example(store, evaluation, example_id):
            yield evaluation.name, rollout


def _of_example(store: RunStore, evaluation: Evaluation, example_id: str) -> Iterator[Rollout]:
    """Its rollouts in an evaluation, private texts withheld."""
    own = tuple(r for r in evaluation.rollouts if r.example_id == example_id)
    event = Compared(replace(evaluation, rollouts=own))
    shown = withhold(event) if store.header.private else event
    assert isinstance(shown, Compared)
    yield from shown.evaluation.rollouts
