"""What a report shows of a run on private data: figures, routes, and texts that are shared anyway.

A report is a file that is handed on. Of a run whose data are real people's, it shows no input,
prompt, stage, output or feedback, nor what models said of them: their lengths replace them.
The texts of the codebook and the directives stay, since every rewrite of them was checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from promptcodebook.store.events import (
    Broke,
    Compared,
    Concluded,
    Event,
    RunState,
    Stepped,
    Validated,
)
from promptcodebook.types import (
    Evaluation,
    Failure,
    Gradients,
    Refused,
    Rewrite,
    Rollout,
    Route,
    Stage,
    Trace,
    Verdict,
)

_QUOTATION = re.compile(r"""(?:^|\s)["'`‘“«]""")


def withhold_ending(state: RunState, run: str) -> RunState:
    """The state without what the error that ended the run of this id may have quoted (a run of
    version 0.1 kept the server's words), and without the prompts of another optimizer, which saw
    the data. How to resume a failed run is no secret."""
    hint = f"pco train --resume {run}" if state.ended == "failed" else state.hint
    concluded = state.conclusion and _conclusion(state.conclusion)
    return replace(state, detail=_kind(state.detail), hint=hint, conclusion=concluded)


def withhold(event: Event) -> Event:
    """The event with every text that may repeat private data replaced by its length."""
    match event:
        case Stepped(step):
            rewrites = tuple(map(_rewrite, step.rewrites))
            harmful = tuple(map(_length, step.harmful))  # it may be called so for what it repeats
            traces = _traces(step.traces)
            return Stepped(replace(step, traces=traces, rewrites=rewrites, harmful=harmful))
        case Broke():
            return replace(event, traces=_traces(event.traces))
        case Validated():
            return replace(event, evaluation=_evaluation(event.evaluation))
        case Compared():
            return replace(event, evaluation=_evaluation(event.evaluation))
        case Concluded():
            return _conclusion(event)
        case _:
            return event


def _length(text: str) -> str:
    return f"(private: {len(text)} characters)" if text else ""


def _conclusion(concluded: Concluded) -> Concluded:
    tried = (replace(each, prompt=_length(each.prompt)) for each in concluded.candidates)
    return replace(concluded, candidates=tuple(tried))


def _traces(traces: Iterable[Trace]) -> tuple[Trace, ...]:
    return tuple(map(_trace, traces))


def _trace(trace: Trace) -> Trace:
    verdict = trace.verdict
    return replace(
        trace,
        rollout=_rollout(trace.rollout),
        verdict=None if verdict is None else _verdict(verdict),
        gradients=_gradients(trace.gradients),
        failure=_failure(trace.failure),
    )


def _verdict(verdict: Verdict) -> Verdict:
    harmful = {name: _length(reason) for name, reason in verdict.harmful.items()}
    return Verdict(verdict.score, _length(verdict.feedback), harmful)


def _evaluation(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, rollouts=tuple(map(_rollout, evaluation.rollouts)))


def _rollout(rollout: Rollout) -> Rollout:
    return replace(
        rollout,
        route=_route(rollout.route),
        prompt=_length(rollout.prompt),
        output=_length(rollout.output),
        stages=tuple(Stage(s.name, _length(s.input), _length(s.output)) for s in rollout.stages),
        fields={},
        feedback=_length(rollout.feedback),
        failure=_failure(rollout.failure),
    )


def _route(route: Route | None) -> Route | None:
    if route is None:
        return None
    return replace(
        route,
        constraints=tuple(map(_length, route.constraints)),
        analysis=_length(route.analysis),
        fault=_kind(route.fault),
    )


def _gradients(gradients: Gradients) -> Gradients:
    return replace(
        gradients,
        encoder=_length(gradients.encoder),
        generator=_length(gradients.generator),
        codebook={k: _length(text) for k, text in gradients.codebook.items()},
        critic=_length(gradients.critic),
    )


def _rewrite(rewrite: Rewrite) -> Rewrite:
    """A refused text may have been refused for what it gave away."""
    after = rewrite.after if rewrite.kept else _length(rewrite.after)
    earlier = rewrite.earlier and Refused(
        _length(rewrite.earlier.text), _kind(rewrite.earlier.reason)
    )
    return replace(
        rewrite,
        after=after,
        gradient=_length(rewrite.gradient),
        reason=_kind(rewrite.reason),
        failure=_failure(rewrite.failure),
        earlier=earlier,
    )


def _kind(reason: str) -> str:
    """What sort of reason it is: a quotation follows a colon, or is in quotation marks."""
    return _QUOTATION.split(reason.partition(":")[0], maxsplit=1)[0].rstrip()


def _failure(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    return Failure(failure.stage, failure.kind, _length(failure.message), hint=failure.hint)
