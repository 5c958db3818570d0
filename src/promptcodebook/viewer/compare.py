"""Two runs side by side: what either wins on the same test examples, and what was set otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence

from promptcodebook.report.context import Context
from promptcodebook.report.judged import Pair, pairs_of, result_of, tally
from promptcodebook.report.operation import HIDDEN, value_text
from promptcodebook.report.pages import render
from promptcodebook.report.summary import facts
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.store.header import Header, differences
from promptcodebook.tasks.rewards import describe_reward
from promptcodebook.types import Evaluation
from promptcodebook.viewer.example import input_of
from promptcodebook.viewer.following import FollowedRun
from promptcodebook.viewer.page import ALL_SIMULATED, SOME_SIMULATED, Screen

_MOST, _MOST_SETTINGS = 300, 80


def compare_screen(first: FollowedRun, second: FollowedRun) -> Screen:
    """The results of both on the test examples that they share."""
    looks = first.look(), second.look()
    contexts = [look.context for look in looks]
    results = [
        result_of(context.state, followed.tests())
        for context, followed in zip(contexts, (first, second), strict=True)
    ]
    judged = [result for result in results if result is not None]
    pairs = pairs_of(*judged) if len(judged) == 2 else ()
    changed = differences(contexts[0].header.settings, contexts[1].header.settings, HIDDEN)
    marks = [context.simulated for context in contexts]
    said = ALL_SIMULATED if all(marks) else SOME_SIMULATED if any(marks) else ""
    body = render(
        "viewer/templates/compare.html.jinja",
        context=next((each for each in contexts if each.simulated), contexts[0]),
        sides=[
            (word, look.key, look.context, facts(look.context), result is not None)
            for word, look, result in zip(("First", "Second"), looks, results, strict=True)
        ],
        warnings=_warnings(contexts),
        difference=_difference(_comparison(contexts, judged), pairs) if pairs else "",
        pairs=[
            (pair, next(filter(None, (input_of(x, pair.second.example_id) for x in looks)), ""))
            for pair in pairs[:_MOST]
        ],
        count=len(pairs),
        changed=[(d.key, value_text(d.old), value_text(d.new)) for d in changed[:_MOST_SETTINGS]],
    )
    return Screen("Compare", body, above=(("Runs", "/"),), simulated=said)


def _warnings(contexts: Sequence[Context]) -> list[str]:
    """What makes the two hard to compare: other data, ranges or rewards."""
    prints = [context.header.fingerprints.get("test") for context in contexts]
    ranges = {context.reward_range for context in contexts}
    said = [_reward_warning([context.header for context in contexts])]
    if prints[0] != prints[1] or len(ranges) > 1:
        said.append(
            "Their test data or the ranges of their rewards differ: these figures compare the "
            "examples with the same ids, and may not mean the same in both."
        )
    return [each for each in said if each]


def _reward_warning(headers: Sequence[Header]) -> str:
    """In words whether the two were scored by different rewards, as far as a run knows its own;
    '' where they were not."""
    words = [
        describe_reward(h.settings.get("reward", ""), h.config.get("task", "")) for h in headers
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
    if _code(headers[0]) != _code(headers[1]):
        return f"Both were scored by {words[0]}, whose code was not the same: {unlike}"
    return ""


def _code(header: Header) -> frozenset[str]:
    """SHA-256 of the files of code that a run's reward names."""
    named = json.dumps(header.settings.get("reward", ""))
    return frozenset(mark for name, mark in header.files.items() if f"{name}:" in named)


def _comparison(contexts: Sequence[Context], results: Sequence[Evaluation]) -> Comparison:
    """The second against the first on the examples of both, in the second's order: what `pco
    compare` says of them."""
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
    return Comparison.of(second, first)


def _difference(between: Comparison, pairs: Sequence[Pair]) -> str:
    figures = between.gain.text(signed=True, more=f"n = {between.gain.n}")
    mark = "Simulated: " if between.simulated else ""
    return f"{mark}difference (second − first): {figures}; {tally(pairs)}."
