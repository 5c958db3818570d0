"""A run's examples, one from input to what it changed, and two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from promptcodebook.base.text import printable, shell
from promptcodebook.deploy.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.deploy.viewer.page import ALL_SIMULATED, SOME_SIMULATED, Screen, missing
from promptcodebook.report.context import Context, facts
from promptcodebook.report.page import HIDDEN, value_text
from promptcodebook.report.pages import address, render
from promptcodebook.report.traces import Training, judged_parts, parts_of_trace, reward_text
from promptcodebook.report.verdict import ComparedExample, pairs_of, result_of, tally
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.run.verdict import Conclusion
from promptcodebook.store.events import Started
from promptcodebook.store.header import Header, differences
from promptcodebook.tasks.rewards import describe_reward
from promptcodebook.types import Codebook, Evaluation

TEST = "test"  # The last part of an example's address where its rows of the verdict are shown.
_MOST = 1000
_MOST_PAIRS, _MOST_SETTINGS = 300, 80


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


def compare_screen(first: FollowedRun, second: FollowedRun) -> Screen:
    looks = first.look(), second.look()
    contexts = one, other = looks[0].context, looks[1].context
    results = [
        result_of(context, followed.tests())
        for context, followed in zip(contexts, (first, second), strict=True)
    ]
    judged = [result for result in results if result is not None]
    pairs = pairs_of(judged[0], judged[1], one.reward_range) if len(judged) == 2 else ()
    changed = differences(one.header.settings, other.header.settings, HIDDEN)
    marks = [context.simulated for context in contexts]
    simulated = ALL_SIMULATED if all(marks) else SOME_SIMULATED if any(marks) else ""
    said = [_reward_warning(one.header, other.header)]
    ranges = {context.reward_range for context in contexts}
    prints = {context.header.fingerprints.get("test") for context in contexts}
    if len(prints) > 1 or len(ranges) > 1:
        said.append(
            "Their test data or the ranges of their rewards differ: these figures compare the "
            "examples with the same ids, and may not mean the same in both."
        )
    body = render(
        "deploy/viewer/templates/compare.html.jinja",
        context=next((each for each in contexts if each.simulated), contexts[0]),
        sides=[
            (word, look.key, look.context, facts(look.context), result is not None)
            for word, look, result in zip(("First", "Second"), looks, results, strict=True)
        ],
        heads=[made and made.headline() for made in map(conclusion_of, contexts)],
        warnings=[each for each in said if each],
        difference=_between(contexts, judged, pairs) if pairs else "",
        pairs=pairs[:_MOST_PAIRS],
        known=max(contexts, key=lambda each: len(each.examples)),
        count=len(pairs),
        changed=[(d.key, value_text(d.old), value_text(d.new)) for d in changed[:_MOST_SETTINGS]],
    )
    return Screen("Compare", body, above=(("Runs", "/"),), simulated=simulated)


def conclusion_of(context: Context) -> Conclusion | None:
    return Conclusion.of(context.state, context.header)


def _reward_warning(one: Header, other: Header) -> str:
    """That the two had different rewards, as far as a run knows its own; '' where they had not."""
    words = [
        describe_reward(h.settings.get("reward", ""), h.config.get("task", ""))
        for h in (one, other)
    ]
    unlike = "what one earns by its reward is not what the other earns by its own."
    if words[0] != words[1]:
        named = " and ".join(each or "a function that Python handed over" for each in words)
        return f"They were scored by different rewards ({named}): {unlike}"
    if not words[0]:
        return (
            "Both were scored by a function that Python handed over: whether it was the same one "
            "is not known here."
        )
    code: list[set[str]] = []  # the SHA-256 of the files that each one's reward names
    for header in (one, other):
        named = json.dumps(header.settings.get("reward", ""))
        code.append({mark for name, mark in header.files.items() if f"{name}:" in named})
    if code[0] != code[1]:
        return f"Both were scored by {words[0]}, whose code was not the same: {unlike}"
    return ""


def _between(
    contexts: Sequence[Context], results: Sequence[Evaluation], pairs: Sequence[ComparedExample]
) -> str:
    """What `pco compare` says of the second against the first, on the examples of both."""
    rewards = [
        {r.example_id: x for r, x in zip(result.rollouts, result.rewards, strict=True)}
        for result in results
    ]
    first, second = (
        Side(
            result.name,
            {name: own[name] for name in rewards[1] if name in rewards[0]},
            result.split,
            context.simulated,
            context.reward_range,
        )
        for context, result, own in zip(contexts, results, rewards, strict=True)
    )
    between = Comparison.of(second, first)
    figures = between.gain.text(signed=True, more=f"n = {between.gain.n}")
    mark = "Simulated: " if between.simulated else ""
    return f"{mark}difference (second − first): {figures}; {tally(pairs)}."
