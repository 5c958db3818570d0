"""Two runs side by side: what either wins on the same test examples, and what was set otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence

from promptcodebook.report.context import Context
from promptcodebook.report.html import Column, Content, Html, el, table
from promptcodebook.report.judged import Pair, pairs_of, result_of
from promptcodebook.report.operation import HIDDEN, value_text
from promptcodebook.report.summary import facts
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.store.header import Header, differences
from promptcodebook.tasks.rewards import describe_reward
from promptcodebook.types import Evaluation
from promptcodebook.units import number, plural
from promptcodebook.viewer.example import TEST, input_of
from promptcodebook.viewer.following import FollowedRun, Look
from promptcodebook.viewer.page import ALL_SIMULATED, SOME_SIMULATED, Screen, filter_box, link

_MOST, _MOST_SETTINGS = 300, 80
_EXAMPLES = (
    Column("", numeric=False),
    Column("example", numeric=False),
    Column("input", numeric=False),
    Column("first"),
    Column("second"),
    Column("difference"),
    Column("in the second", numeric=False),
)
_SETTINGS = (
    Column("setting", numeric=False),
    Column("first", numeric=False),
    Column("second", numeric=False),
)


def compare_screen(first: FollowedRun, second: FollowedRun) -> Screen:
    """The results of both on the test examples that they share."""
    looks = first.look(), second.look()
    results = [
        result_of(look.context.state, followed.tests())
        for look, followed in zip(looks, (first, second), strict=True)
    ]
    body: list[Content] = [
        el("div.grid", [_side(word, look) for word, look in zip(_WORDS, looks, strict=True)])
    ]
    if results[0] is not None and results[1] is not None:
        body.append(_judged(looks, (results[0], results[1])))
    else:
        body.append(el("p.empty", f"{_unjudged(results)} not judged to its end yet."))
    body.append(_settings(looks))
    marks = [look.context.simulated for look in looks]
    said = ALL_SIMULATED if all(marks) else SOME_SIMULATED if any(marks) else ""
    return Screen("Compare", body, above=(("Runs", "/"),), simulated=said)


_WORDS = ("First", "Second")


def _unjudged(results: Sequence[Evaluation | None]) -> str:
    words = [w for w, result in zip(_WORDS, results, strict=True) if result is None]
    return "Each of them is" if len(words) == 2 else f"The {words[0].lower()} is"


def _side(word: str, look: Look) -> Html:
    header = look.context.header
    conclusion = look.context.state.conclusion
    title = link(header.name or header.id, "run", look.key, look=".stop")
    return el(
        "section",
        el(
            "h2",
            el("span.badge", "simulated") if look.context.simulated else None,
            f"{word}: ",
            title,
        ),
        el("p", conclusion.text if conclusion is not None else "It has no verdict yet."),
        facts(look.context),
    )


def _judged(looks: tuple[Look, Look], results: tuple[Evaluation, Evaluation]) -> Html:
    pairs = pairs_of(*results)
    if not pairs:
        return el("p.empty", "No test example is in both: they were judged on other data.")
    contexts = [look.context for look in looks]
    between = _comparison(contexts, results)
    return el(
        "section",
        el("h2", "On the same test examples"),
        _warning(contexts),
        el("p.verdict.open", _difference(between, pairs)),
        filter_box("examples"),
        _examples(looks, pairs),
    )


def _warning(contexts: Sequence[Context]) -> list[Html]:
    """What stands in the way of comparing the two: other data, ranges or rewards."""
    prints = [context.header.fingerprints.get("test") for context in contexts]
    ranges = {context.reward_range for context in contexts}
    said = [_reward_warning([context.header for context in contexts])]
    if prints[0] != prints[1] or len(ranges) > 1:
        said.append(
            "Their test data or the ranges of their rewards are not the same: what stands here is "
            "of the examples with the same ids, and may not mean the same in both."
        )
    return [el("p.banner", each) for each in said if each]


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
    gain = between.gain
    figures = gain.text(signed=True, more=f"n = {gain.n}")
    counts = {kind: sum(p.outcome == kind for p in pairs) for kind in ("win", "loss", "tie")}
    return (
        f"{'Simulated: ' if between.simulated else ''}second less first: {figures}; "
        f"{plural(counts['win'], 'win')}, {plural(counts['loss'], 'loss', 'losses')}, "
        f"{plural(counts['tie'], 'tie')}."
    )


def _examples(looks: tuple[Look, Look], pairs: Sequence[Pair]) -> Html:
    shown = pairs[:_MOST]
    caption = (
        f"{plural(len(shown), 'example')} of {len(pairs):,}: wins of the second, losses, ties."
    )
    rows = [_cells(looks, pair) for pair in shown]
    marked = next((look.context for look in looks if look.context.simulated), looks[0].context)
    return marked.figure(caption, table(_EXAMPLES, rows))


def _cells(looks: tuple[Look, Look], pair: Pair) -> tuple[Content, ...]:
    name = pair.second.example_id
    first, second = looks
    return (
        el(f"span.tag.{pair.outcome}", pair.outcome),
        link(name, "run", first.key, "example", name, TEST, look=".stop"),
        input_of(looks[0], name) or input_of(looks[1], name),
        number(pair.first.reward, 2, missing="failed"),
        number(pair.second.reward, 2, missing="failed"),
        number(pair.difference, 2, signed=True),
        link("open", "run", second.key, "example", name, TEST),
    )


def _settings(looks: tuple[Look, Look]) -> Html:
    before, after = (look.context.header.settings for look in looks)
    changed = differences(before, after, HIDDEN)[:_MOST_SETTINGS]
    if not changed:
        return el("p.note", "Their settings are the same.")
    rows = [(el("code", d.key), value_text(d.old), value_text(d.new)) for d in changed]
    return el("section", el("h2", "Settings that differ"), table(_SETTINGS, rows))
