"""A run's examples, and one of them from its input to what it changed."""

from __future__ import annotations

from typing import Any

from promptcodebook.base.text import printable, shell
from promptcodebook.deploy.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.deploy.viewer.page import Screen, missing
from promptcodebook.report.pages import address, render
from promptcodebook.report.traces import Training, judged_parts, parts_of_trace, reward_text
from promptcodebook.store.events import Started
from promptcodebook.types import Codebook

TEST = "test"  # The last part of an example's address where its rows of the verdict are shown.
_MOST = 1000


def examples_screen(followed: FollowedRun) -> Screen:
    """Training examples with what they earned. Those of the test are on the run's own screen."""
    look = followed.look()
    drawn: dict[str, list[tuple[int, float | None]]] = {}
    for step in look.steps:
        for trace in step.traces:
            rollouts = drawn.setdefault(trace.rollout.example_id, [])
            rollouts.append((step.index, trace.rollout.reward))
    body = render(
        "deploy/viewer/templates/examples.html.jinja",
        context=look.context,
        key=look.key,
        tallies=[
            (name, rollouts, [r for _, r in rollouts if r is not None])
            for name, rollouts in drawn.items()
        ][:_MOST],
        count=len(drawn),
    )
    return screen_of(look, "Examples", body)


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
        return missing(
            f"No example {name} was run.", f"pco runs show {shell(look.context.header.id)}"
        )
    own = [*steps.values(), *(rollout.example_id for _, rollout in tests)][0]
    if at == TEST or not steps:
        context, first = look.context, _codebook_before(look, 0)
        sides = [judged_parts(context, row.name, rollout, first) for row, rollout in tests]
        values = {"step": None, "sides": sides}
    else:
        index = int(at) - 1 if at.isascii() and at.isdecimal() and len(at) < 9 else max(steps)
        if index not in steps:
            first, *rest = [f"{step + 1:,}" for step in steps]
            where = f"it was in step {first}" + (f" and {len(rest):,} more" if rest else "")
            hint = f"pco runs show {shell(look.context.header.id)}"
            return missing(f"The example {name} was not in step {at}: {where}.", hint)
        values = _trained(followed, look, index, name)
    places = [(f"step {step + 1}", str(step + 1)) for step in steps]
    body = render(
        "deploy/viewer/templates/example.html.jinja",
        context=look.context,
        key=look.key,
        name=name,
        known=look.context.input_of(own),
        known_reference=getattr(look.context.examples.get(own), "target", None),
        note=look.context.notes.get(own),
        places=[*places, *([("test", TEST)] if tests else [])],
        at=at or str(max(steps, default=-1) + 1),
        **values,
    )
    above = (("Examples", address("run", look.key, "examples")),)
    return screen_of(look, look.context.title_of(own), body, above)


def _trained(followed: FollowedRun, look: Look, index: int, name: str) -> dict[str, Any]:
    step, before = followed.step(index), _codebook_before(look, index)
    own = (trace for trace in step.traces if printable(trace.rollout.example_id) == name)
    traces = [
        {
            "reward": reward_text(each.trace.rollout),
            "parts": parts_of_trace(
                each.trace,
                each.instincts,
                look.context.own_words,
                look.context.input_of(each.trace.rollout.example_id),
            ),
            "changes": [r for r in each.rewrites if r.origin in ("gradient", "safety")],
        }
        for each in (Training.of(step, trace, before) for trace in own)
    ]
    return {"step": index + 1, "traces": traces}


def _codebook_before(look: Look, index: int) -> Codebook:
    """The codebook that the step began with."""
    if index > 0:
        return look.steps[index - 1].parameters.codebook
    first = next((event for event in look.events if isinstance(event, Started)), None)
    return first.parameters.codebook if first is not None else Codebook(())
