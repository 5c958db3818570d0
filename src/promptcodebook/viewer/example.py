"""One example from its input to what changed because of it, and the list of all examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from promptcodebook.report.history import kept_entry, refused_entry
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.report.judged import UNJUDGED, Pair, pairs_of, result_of
from promptcodebook.report.traces import part, pre, reward_text, rollout_parts, trace_body
from promptcodebook.store.events import Started
from promptcodebook.text import printable, shorten
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Gradients,
    Rewrite,
    Rollout,
    Step,
    Trace,
    variable_name,
)
from promptcodebook.units import number, plural
from promptcodebook.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.viewer.page import Screen, address, filter_box, link, missing

TEST = "test"
"""The last part of an example's address where its rows of the verdict are shown."""
_TITLE, _MOST = 120, 1000
_COLUMNS = (
    Column("example", numeric=False),
    Column("input", numeric=False),
    Column("rollouts"),
    Column("mean reward"),
    Column("latest"),
    Column("at step"),
    Column("failed"),
)
_TESTED = (
    Column("example", numeric=False),
    Column("input", numeric=False),
    Column("first row"),
    Column("result"),
    Column("difference"),
)


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
    shown = list(tallies.items())[:_MOST]
    training = el("p.empty", "No step was finished, so there is nothing to show.")
    if shown:
        caption = f"{plural(len(shown), 'example')} of {len(tallies):,} that were trained on."
        rows = [_cells(look, name, tally) for name, tally in shown]
        training = look.context.figure(caption, table(_COLUMNS, rows))
    body = [
        filter_box("examples"),
        el("section", el("h2", "Training"), training, attrs={"id": "training"}),
        el("section", el("h2", "Test"), _tested(look, followed.tests()), attrs={"id": "test"}),
    ]
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


def _cells(look: Look, name: str, tally: _Tally) -> tuple[Content, ...]:
    rewards = tally.rewards
    return (
        link(name, "run", look.key, "example", name, look=".stop"),
        input_of(look, name),
        len(tally.steps),
        number(sum(rewards) / len(rewards), 2) if rewards else MISSING,
        number(tally.latest, 2, missing="failed"),
        tally.steps[-1] + 1,
        tally.failed,
    )


def input_of(look: Look, name: str) -> str:
    """The beginning of an example's input; '' where it is not at hand."""
    return shorten(" ".join(look.context.inputs.get(name, "").split()), _TITLE)


def _tested(look: Look, rows: Sequence[Evaluation]) -> Html:
    if rows and look.context.state.conclusion is None:
        return el("p.empty", UNJUDGED)
    result = result_of(look.context.state, rows)
    if len(rows) < 2 or result is None:
        return el("p.empty", "Nothing was compared on the test split yet.")
    pairs = {pair.second.example_id: pair for pair in pairs_of(rows[0], result)}
    shown = result.rollouts[:_MOST]
    cells = [_test_cells(look, r, pairs.get(r.example_id)) for r in shown]
    caption = (
        f"{plural(len(cells), 'example')} of {len(result.rollouts):,}: the row {rows[0].name} and "
        f"the result, {result.name}."
    )
    return look.context.figure(caption, table(_TESTED, cells))


def _test_cells(look: Look, rollout: Rollout, pair: Pair | None) -> tuple[Content, ...]:
    """Of one example; a failed rollout counts as the bottom of the range in the difference."""
    name = rollout.example_id
    return (
        link(name, "run", look.key, "example", name, TEST, look=".stop"),
        input_of(look, name),
        MISSING if pair is None else number(pair.first.reward, 2, missing="failed"),
        number(rollout.reward, 2, missing="failed"),
        MISSING if pair is None else number(pair.difference, 2, signed=True),
    )


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
        body = _judged(look, known, tests)
    else:
        index = int(at) - 1 if at.isascii() and at.isdecimal() and len(at) < 9 else max(steps)
        if index not in steps:
            hint = f"pco runs show {look.context.header.id}"
            return missing(f"The example {name} was not in step {at}: {_whereabouts(steps)}.", hint)
        body = _trained(followed, look, index, name, known)
    above = (("Examples", address("run", look.key, "examples")),)
    places = _places(look, name, list(steps), at or str(max(steps, default=-1) + 1), bool(tests))
    return screen_of(look, f"Example {name}", [places, body], above)


def _whereabouts(steps: Iterable[int]) -> str:
    first, *rest = [f"{step + 1:,}" for step in steps]
    more = f" and {len(rest):,} more" if rest else ""
    return f"it was in step {first}{more}"


def _places(look: Look, name: str, steps: list[int], at: str, tested: bool) -> Html:
    """Where else the example is."""
    to = [(f"step {step + 1}", str(step + 1)) for step in steps]
    to += [("test", TEST)] if tested else []
    links = [
        el(
            "a.stop",
            words,
            attrs={
                "href": address("run", look.key, "example", name, part),
                **({"aria-current": "page"} if part == at else {}),
            },
        )
        for words, part in to
    ]
    return el("nav.pages", links, attrs={"aria-label": "Rollouts of this example"})


def _judged(look: Look, known: str | None, rows: Sequence[tuple[Evaluation, Rollout]]) -> Html:
    if not rows:
        return el("p.empty", "It was not judged on the test split.")
    first = _codebook_before(look, 0)
    sides: list[Content] = []
    for row, rollout in rows:
        texts = look.context.instincts_of(row.name, rollout, first)
        parts = rollout_parts(rollout, texts, look.context.own_words)
        heading = el("h2", f"{row.name}: {reward_text(rollout)}")
        sides.append(el("section.side", heading, el("dl.trace", parts)))
    asked = el("dl.trace", part("input", None if known is None else pre(known)))
    return together(asked, sides)


def _trained(followed: FollowedRun, look: Look, index: int, name: str, known: str | None) -> Html:
    step = followed.step(index)
    before = _codebook_before(look, index)
    traces = [t for t in step.traces if printable(t.rollout.example_id) == name]
    return together([_trace(look, step, trace, before, known) for trace in traces])


def _codebook_before(look: Look, index: int) -> Codebook:
    """The codebook that the step began with."""
    if index > 0:
        return look.steps[index - 1].parameters.codebook
    first = next((event for event in look.events if isinstance(event, Started)), None)
    return first.parameters.codebook if first is not None else Codebook(())


def _trace(look: Look, step: Step, trace: Trace, before: Codebook, known: str | None) -> Html:
    indices = trace.rollout.route.indices if trace.rollout.route is not None else ()
    texts = [(k, before[k].text) for k in indices if k < len(before)]
    badge = el("span.badge", "simulated") if look.context.simulated else None
    heading = el("h2", badge, f"Step {step.index + 1}: {reward_text(trace.rollout)}")
    caused = [r for r in step.rewrites if _blames(trace.gradients, r)]
    return el(
        "section",
        heading,
        trace_body(trace, known, texts, look.context.own_words),
        el("h3", "What changed because of it"),
        _changes(look, step.index, caused),
    )


def _blames(gradients: Gradients, rewrite: Rewrite) -> bool:
    """Whether the trace's gradients were among those that asked for this rewrite."""
    given: Mapping[str | int, str] = {
        "encoder": gradients.encoder,
        "generator": gradients.generator,
        "critic": gradients.critic,
        **gradients.codebook,
    }
    return bool(given.get(rewrite.variable)) and rewrite.origin in ("gradient", "safety")


def _changes(look: Look, step: int, rewrites: Sequence[Rewrite]) -> Html:
    if not rewrites:
        return el("p.empty", "Nothing: it gave no gradient to a text that was rewritten.")
    items: list[Content] = []
    for rewrite in rewrites:
        variable = rewrite.variable
        to = link(variable_name(variable), "run", look.key, "codebook", variable, look=".stop")
        shown = kept_entry(step, rewrite) if rewrite.kept else refused_entry(step, rewrite)
        items.append(together(el("h4", to), el("ol.timeline", shown)))
    note = "The gradients of a batch are gathered, so other examples may have asked for these too."
    return together(el("p.note", note), items)
