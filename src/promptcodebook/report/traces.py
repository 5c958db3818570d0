"""How one rollout is shown: a list of its parts.

What a run has on record of one example: when training drew it, and the verdict's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcodebook.policy.references import kept_state
from promptcodebook.policy.response import Span, prompt_spans
from promptcodebook.report.private import withhold
from promptcodebook.store.run import RunStore
from promptcodebook.text import shorten
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Failure,
    Gradients,
    Rewrite,
    Rollout,
    Step,
    Trace,
    Variable,
)
from promptcodebook.units import number

_LONG, _SHORT = 4000, 1500
"""Characters shown of a text."""
_MOST_STAGES = 8
_COLOURS = 6
"""Of spans; the number beside each tells instincts apart where there are more."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in pieces: each with its source, and the place of its instinct in the colours."""

    spans: Sequence[Span]
    places: Mapping[int, int]

    @property
    def likely(self) -> bool:
        """Whether a piece is matched by words alone."""
        return any(span.instinct is not None and not span.exact for span in self.spans)


def parts_of(
    rollout: Rollout, instincts: Sequence[tuple[int, str]], own: tuple[str, str] = ("", "")
) -> list[tuple[str, Any]]:
    """Route, prompt, stages, output and feedback by name, those that are there. `instincts` are the
    texts that it was routed over, `own` the base prompt and output format that prompts hold."""
    prompt: Any = shorten(rollout.prompt, _LONG)
    if instincts and prompt:
        places = {k: place % _COLOURS for place, (k, _) in enumerate(instincts)}
        prompt = Prompt(prompt_spans(prompt, instincts, *own), places)
    stages = [
        (f"stage {s.name}", f"{shorten(s.input, _SHORT)}\n→ {shorten(s.output, _SHORT)}")
        for s in rollout.stages[:_MOST_STAGES]
    ]
    return _there(
        ("route", _route(rollout)),
        ("instincts", tuple(instincts)),
        ("prompt", prompt),
        *stages,
        ("output", shorten(rollout.output, _LONG)),
        ("truncated", "the output was cut at its length cap" if rollout.truncated else ""),
        ("feedback", shorten(rollout.feedback, _SHORT)),
        ("failure", _failure(rollout.failure)),
    )


def parts_of_trace(
    trace: Trace, known: str | None, instincts: Sequence[tuple[int, str]], own: tuple[str, str]
) -> list[tuple[str, Any]]:
    """All of a trace; `known` is the input where that is at hand."""
    verdict = ""
    if trace.verdict is not None:
        figures = f"critic {number(trace.verdict.score, 2)}, penalty ρ {number(trace.penalty, 2)}"
        verdict = f"{figures}\n\n{shorten(trace.verdict.feedback, _SHORT)}".rstrip()
    gradients = trace.gradients
    named = [("g θ", gradients.encoder), ("g φ", gradients.generator)]
    named += [(f"g c{k}", text) for k, text in gradients.codebook.items()]
    return _there(
        ("input", shorten(known or "", _LONG)),
        *parts_of(trace.rollout, instincts, own),
        ("verdict", verdict),
        *((name, shorten(text, _SHORT)) for name, text in (*named, ("g ψ", gradients.critic))),
        ("failure", _failure(trace.failure)),
    )


def _there(*parts: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [(name, body) for name, body in parts if body]


def reward_text(rollout: Rollout) -> str:
    """'reward 0.50', or that it failed."""
    return "failed" if rollout.reward is None else f"reward {number(rollout.reward, 2)}"


def _route(rollout: Rollout) -> str:
    route = rollout.route
    if route is None:
        return ""
    how = ["explored" if route.explored else "chosen by the encoder"]
    how += ["repaired"] if route.repaired else []
    how += ["partly filled in"] if route.fallback else []
    how += [route.fault] if route.fault else []
    lines = [f"{', '.join(map(str, route.indices))} ({', '.join(how)})"]
    lines += [f"constraints: {'; '.join(route.constraints)}"] if route.constraints else []
    lines += [route.analysis] if route.analysis else []
    return shorten("\n".join(lines), _SHORT)


def _failure(failure: Failure | None) -> str:
    if failure is None:
        return ""
    return shorten(f"{failure.stage}: {failure.kind}: {failure.message}", _SHORT)


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
        trained = store.outline().parameters is not None
        found = store.validation_at(kept_state(store)[1].step) if trained else None
        validated = _of_example(found.evaluation if found else None, example_id)
        rows = [(e.name, _of_example(e, example_id)) for e in store.test_evaluations()]
        judged = tuple((name, rollout) for name, of in rows for rollout in of)
        trainings = tuple(_trainings(store, example_id)) if trained else ()
        if store.header.private:
            validated, judged = withhold(validated), withhold(judged)
    finally:
        store.close()
    if not (trainings or validated or judged):
        return None
    return Record(example_id, trainings, next(iter(validated), None), judged)


def _of_example(evaluation: Evaluation | None, example_id: str) -> tuple[Rollout, ...]:
    rollouts = evaluation.rollouts if evaluation is not None else ()
    return tuple(r for r in rollouts if r.example_id == example_id)


def _trainings(store: RunStore, example_id: str) -> Iterator[Training]:
    codebook = store.started().parameters.codebook
    for step in store.steps(traces=True):
        for trace in step.traces:
            if trace.rollout.example_id == example_id:
                alone = replace(step, traces=(trace,))
                yield _training(withhold(alone) if store.header.private else alone, codebook)
        codebook = step.parameters.codebook


def _training(step: Step, codebook: Codebook) -> Training:
    [trace] = step.traces
    routed = () if trace.rollout.route is None else trace.rollout.route.indices
    blamed = dict(_blamed(trace.gradients))
    return Training(
        step.index,
        trace,
        tuple((k, codebook[k].text) for k in routed if k < len(codebook)),
        tuple(r for r in step.rewrites if r.variable in blamed),
        step.reverted,
    )


def _blamed(gradients: Gradients) -> Iterator[tuple[Variable, str]]:
    texts: dict[Variable, str] = {
        "encoder": gradients.encoder,
        "generator": gradients.generator,
        **gradients.codebook,
        "critic": gradients.critic,
    }
    return ((variable, text) for variable, text in texts.items() if text)
