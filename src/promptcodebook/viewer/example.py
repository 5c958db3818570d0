"""One example from its input to what changed because of it, and the list of all examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from promptcodebook.report.judged import UNJUDGED, pairs_of, result_of
from promptcodebook.report.pages import address, render
from promptcodebook.report.traces import parts_of, parts_of_trace, reward_text
from promptcodebook.store.events import Started
from promptcodebook.text import printable, shorten
from promptcodebook.types import Codebook, Evaluation, Gradients, Rewrite, Rollout, Step
from promptcodebook.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.viewer.page import Screen, missing

TEST = "test"
"""The last part of an example's address where its rows of the verdict are shown."""
_TITLE, _MOST = 120, 1000


@dataclass
class _Tally:
    """An example in training: its rewards, the steps it was in, how often it failed, and the reward
    of its latest rollout (None = that failed)."""

    rewards: list[float] = field(default_factory=lambda: list[float]())
    steps: list[int] = field(default_factory=lambda: list[int]())
    failed: int = 0
    latest: float | None = None


def examples_screen(followed: FollowedRun) -> Screen:
    """Training examples with what they earned, and test examples under the first and last row."""
    look = followed.look()
    tallies = _tallies(look.steps)
    body = render(
        "viewer/templates/examples.html.jinja",
        context=look.context,
        key=look.key,
        tallies=[(name, input_of(look, name), tally) for name, tally in tallies.items()][:_MOST],
        count=len(tallies),
        **_tested(look, followed.tests()),
    )
    return screen_of(look, "Examples", body)


def _tallies(steps: Sequence[Step]) -> dict[str, _Tally]:
    tallies: dict[str, _Tally] = {}
    for step in steps:
        for trace in step.traces:
            rollout = trace.rollout
            tally = tallies.setdefault(rollout.example_id, _Tally())
            tally.steps.append(step.index)
            tally.latest = rollout.reward
            if rollout.reward is None:
                tally.failed += 1
            else:
                tally.rewards.append(rollout.reward)
    return tallies


def input_of(look: Look, name: str) -> str:
    """The beginning of an example's input; '' where it is not at hand."""
    return shorten(" ".join(look.context.inputs.get(name, "").split()), _TITLE)


def _tested(look: Look, rows: Sequence[Evaluation]) -> dict[str, Any]:
    if rows and look.context.state.conclusion is None:
        return {"empty": UNJUDGED}
    result = result_of(look.context.state, rows)
    if len(rows) < 2 or result is None:
        return {"empty": "Nothing was compared on the test split yet."}
    pairs = {pair.second.example_id: pair for pair in pairs_of(rows[0], result)}
    return {
        "empty": "",
        "first_row": rows[0].name,
        "result": result,
        "tested": [
            (r, input_of(look, r.example_id), pairs.get(r.example_id))
            for r in result.rollouts[:_MOST]
        ],
    }


def example_screen(followed: FollowedRun, name: str, at: str = "") -> Screen:
    """One example in a step (counted from 1), in its latest one, or in the verdict's rows."""
    look = followed.look()
    steps = {
        step.index: trace.rollout.example_id
        for step in look.steps
        for trace in step.traces
        if printable(trace.rollout.example_id) == name
    }
    tests = [
        (row, rollout)
        for row in followed.tests()
        for rollout in row.rollouts
        if printable(rollout.example_id) == name
    ]
    if not steps and not tests:
        return missing(f"No example {name} was run.", f"pco runs show {look.context.header.id}")
    known = next((look.context.inputs.get(n) for n in steps.values()), None)
    known = known or next((look.context.inputs.get(r.example_id) for _, r in tests), None)
    if at == TEST or not steps:
        values = _judged(look, tests)
    else:
        index = int(at) - 1 if at.isascii() and at.isdecimal() and len(at) < 9 else max(steps)
        if index not in steps:
            first, *rest = [f"{step + 1:,}" for step in steps]
            where = f"it was in step {first}" + (f" and {len(rest):,} more" if rest else "")
            hint = f"pco runs show {look.context.header.id}"
            return missing(f"The example {name} was not in step {at}: {where}.", hint)
        values = _trained(followed, look, index, name, known)
    places = [(f"step {step + 1}", str(step + 1)) for step in steps]
    body = render(
        "viewer/templates/example.html.jinja",
        context=look.context,
        key=look.key,
        name=name,
        known=known,
        places=[*places, *([("test", TEST)] if tests else [])],
        at=at or str(max(steps, default=-1) + 1),
        **values,
    )
    above = (("Examples", address("run", look.key, "examples")),)
    return screen_of(look, f"Example {name}", body, above)


def _judged(look: Look, rows: Sequence[tuple[Evaluation, Rollout]]) -> dict[str, Any]:
    first, own = _codebook_before(look, 0), look.context.own_words
    return {
        "step": None,
        "sides": [
            (
                f"{row.name}: {reward_text(rollout)}",
                parts_of(rollout, look.context.instincts_of(row.name, rollout, first), own),
            )
            for row, rollout in rows
        ],
    }


def _trained(
    followed: FollowedRun, look: Look, index: int, name: str, known: str | None
) -> dict[str, Any]:
    step, before = followed.step(index), _codebook_before(look, index)
    traces: list[dict[str, Any]] = []
    for trace in step.traces:
        if printable(trace.rollout.example_id) == name:
            indices = trace.rollout.route.indices if trace.rollout.route is not None else ()
            texts = [(k, before[k].text) for k in indices if k < len(before)]
            traces.append(
                {
                    "reward": reward_text(trace.rollout),
                    "parts": parts_of_trace(trace, known, texts, look.context.own_words),
                    "changes": [r for r in step.rewrites if _blames(trace.gradients, r)],
                }
            )
    return {"step": index + 1, "traces": traces}


def _codebook_before(look: Look, index: int) -> Codebook:
    """The codebook that the step began with."""
    if index > 0:
        return look.steps[index - 1].parameters.codebook
    first = next((event for event in look.events if isinstance(event, Started)), None)
    return first.parameters.codebook if first is not None else Codebook(())


def _blames(gradients: Gradients, rewrite: Rewrite) -> bool:
    """Whether the trace's gradients were among those that asked for this rewrite."""
    given: Mapping[str | int, str] = {
        "encoder": gradients.encoder,
        "generator": gradients.generator,
        "critic": gradients.critic,
        **gradients.codebook,
    }
    return bool(given.get(rewrite.variable)) and rewrite.origin in ("gradient", "safety")
