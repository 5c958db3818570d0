"""How one rollout is shown, and the whole trace that training made of it: a list of its parts.

What a run has on record of one example: when training drew it, and the verdict's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptcodebook.policy.references import kept_state
from promptcodebook.policy.response import Span, prompt_spans
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.report.private import withhold
from promptcodebook.store.events import Compared, Stepped
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

OwnWords = tuple[str, str]
"""The base prompt and the output format of a run: what prompts hold beside instincts."""


def trace_body(
    trace: Trace, known: str | None, instincts: Sequence[tuple[int, str]], own: OwnWords = ("", "")
) -> Html:
    """All of a trace: `known` is the input where that is at hand, `instincts` are the codebook's
    texts that the input was routed over, `own` what else every prompt holds."""
    verdict = None if trace.verdict is None else _verdict(trace)
    return el(
        "dl.trace",
        part("input", None if known is None else pre(known)),
        rollout_parts(trace.rollout, instincts, own),
        part("verdict", verdict),
        _gradients(trace.gradients),
        part("failure", _failure(trace.failure)),
    )


def rollout_parts(
    rollout: Rollout, instincts: Sequence[tuple[int, str]] = (), own: OwnWords = ("", "")
) -> list[Content]:
    """Route, prompt, stages, output and reward, as parts of a list."""
    return [
        part("route", _route(rollout)),
        part("instincts", _instincts(instincts)),
        part("prompt", _prompt(rollout.prompt, instincts, own)),
        [part(f"stage {s.name}", _stage(s.input, s.output)) for s in rollout.stages[:_MOST_STAGES]],
        part("output", pre(rollout.output)),
        part("truncated", "the output was cut at its length cap" if rollout.truncated else ""),
        part("feedback", pre(rollout.feedback, _SHORT)),
        part("failure", _failure(rollout.failure)),
    ]


def part(name: str, body: Content) -> Html | None:
    """One named part; None where there is nothing in it."""
    if body is None or body == "":
        return None
    return el("div", el("dt", name), el("dd", body))


def pre(text: str, limit: int = _LONG) -> Html | None:
    """A text as it was written, its middle cut out where it is too long; None where it is empty."""
    return el("p.pre", shorten(text, limit)) if text else None


def reward_text(rollout: Rollout) -> str:
    """'reward 0.50', or that it failed."""
    return "failed" if rollout.reward is None else f"reward {number(rollout.reward, 2)}"


def _route(rollout: Rollout) -> Html | None:
    route = rollout.route
    if route is None:
        return None
    how = ["explored" if route.explored else "chosen by the encoder"]
    how += ["repaired"] if route.repaired else []
    how += ["partly filled in"] if route.fallback else []
    how += [route.fault] if route.fault else []
    lines = [f"{', '.join(map(str, route.indices))} ({', '.join(how)})"]
    lines += [f"constraints: {'; '.join(route.constraints)}"] if route.constraints else []
    lines += [route.analysis] if route.analysis else []
    return el("p.pre", shorten("\n".join(lines), _SHORT))


def _instincts(instincts: Sequence[tuple[int, str]]) -> Html | None:
    if not instincts:
        return None
    return el("ul.plain", [el("li", el("b.index", k), text) for k, text in instincts])


def _prompt(text: str, instincts: Sequence[tuple[int, str]], own: OwnWords) -> Html | None:
    """The prompt, each piece marked by the instinct that it comes from: by number and colour."""
    if not instincts or not text:
        return pre(text)
    places = {k: place for place, (k, _) in enumerate(instincts)}
    spans = prompt_spans(shorten(text, _LONG), instincts, *own)
    likeness = any(span.instinct is not None and not span.exact for span in spans)
    note = "Pieces with ~ are matched by the words they share with an instinct, not by a record."
    return together(
        el("p.pre", [_span(span, places) for span in spans]),
        el("p.note", note) if likeness else None,
    )


def _span(span: Span, places: Mapping[int, int]) -> Content:
    if span.source == "generator":
        return span.text
    look = f".s{places[span.instinct] % _COLOURS}" if span.instinct is not None else ""
    return el(f"span.span{look}", el("b.from", span.label), span.text)


def _stage(asked: str, answered: str) -> Html:
    return el("p.pre", f"{shorten(asked, _SHORT)}\n→ {shorten(answered, _SHORT)}")


def _verdict(trace: Trace) -> Html | None:
    if trace.verdict is None:
        return None
    figures = f"critic {number(trace.verdict.score, 2)}, penalty ρ {number(trace.penalty, 2)}"
    return together(el("p", figures), pre(trace.verdict.feedback, _SHORT))


def _gradients(gradients: Gradients) -> list[Content]:
    named = [("g θ", gradients.encoder), ("g φ", gradients.generator)]
    named += [(f"g c{k}", text) for k, text in gradients.codebook.items()]
    named += [("g ψ", gradients.critic)]
    return [part(name, pre(text, _SHORT)) for name, text in named]


def _failure(failure: Failure | None) -> Html | None:
    if failure is None:
        return None
    return el("p.pre", shorten(f"{failure.stage}: {failure.kind}: {failure.message}", _SHORT))


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
