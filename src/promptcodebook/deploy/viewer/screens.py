"""The screens of one run, and the page around a screen: where the reader is, where to go, what is
simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from promptcodebook.base.text import printable, shell
from promptcodebook.base.units import duration, plural
from promptcodebook.deploy.viewer.following import FollowedRun, Look
from promptcodebook.progress import ENOUGH_ANSWERS
from promptcodebook.report import learned, page, training, verdict
from promptcodebook.report.context import Context, facts, render_sections
from promptcodebook.report.pages import address, render
from promptcodebook.report.traces import Training, judged_parts, parts_of_trace, reward_text
from promptcodebook.store.events import Compared, Event, Started
from promptcodebook.types import Codebook

_TABS = ("Grid", "Examples")
TEST = "test"  # The last part of an example's address where its rows of the verdict are shown.
_MOST = 1000
ALL_SIMULATED = (
    "Every number here comes from a simulated model: it shows that the machinery works and says "
    "nothing about any real model."
)
SOME_SIMULATED = "Some of the numbers here come from a simulated model; they are marked."


@dataclass(frozen=True, slots=True)
class Screen:
    """`above` and `tabs` are (words, address); `live` is where to hear that a page is out of date,
    `mark` what it was made of; `simulated` says that figures on it are simulated."""

    title: str
    body: Markup
    above: Sequence[tuple[str, str]] = ()
    tabs: Sequence[tuple[str, str]] = ()
    live: str = ""
    mark: str = ""
    simulated: str = ""
    status: int = 200


def missing(what: str, hint: str = "") -> Screen:
    """There is nothing here; `hint` is what to type next."""
    body = render("deploy/viewer/templates/missing.html.jinja", what=what, hint=hint)
    return Screen("Nothing here", body, status=404)


def page_of(screen: Screen, here: str) -> bytes:
    """The whole page; `here` is its own path, without a query."""
    page = render("deploy/viewer/templates/page.html.jinja", screen=screen, here=here)
    return page.encode("utf-8", "replace")


def run_screen(followed: FollowedRun) -> Screen:
    """The verdict and what was learned, then how it came to that."""
    look = followed.look()
    context = look.context
    sections = (
        verdict.VerdictSection(context),
        learned.LearnedSection(context),
        verdict.JudgedSection(context, look.key),
        training.CurvesSection(context),
        learned.CandidatesSection(context),
        verdict.PromptsSection(context),
        page.SpendSection(context),
        page.IncidentsSection(context),
        page.SettingsSection(context),
    )
    body = render(
        "deploy/viewer/templates/run.html.jinja",
        context=context,
        key=look.key,
        facts=facts(context),
        left=time_left(context),
        sections=render_sections(sections, with_tests(followed, look)),
    )
    return screen_of(look, context.header.name or context.header.id, body)


def time_left(context: Context) -> str:
    """How long a run that is at work still takes, by its pace so far; '' where that is unknown."""
    done, planned = context.state.step + 1, context.planned
    if not context.running:
        return ""
    if context.state.tests or context.state.ended:
        return f"Training is done; {plural(len(context.state.tests), 'row')} judged so far."
    answers = done * int(context.setting("update.batch_size"))
    if planned is None or answers < ENOUGH_ANSWERS:
        return "It has just begun." if not done else f"{plural(done, 'step')} done."
    rest = duration(context.elapsed_s / done * max(0, planned - done))
    return f"Step {done:,} of {planned:,}: about {rest} of training left, then the verdict."


def with_tests(followed: FollowedRun, look: Look) -> list[Event]:
    """The run's events, the rows of its present verdict with their texts."""
    others = (event for event in look.events if not isinstance(event, Compared))
    return [*others, *map(Compared, followed.tests())]


def screen_of(
    look: Look, title: str, body: Markup, above: tuple[tuple[str, str], ...] = ()
) -> Screen:
    """A screen of this run, which follows it while it is written; `above` are those between."""
    key, header = look.key, look.context.header
    own = header.name or header.id
    run = address("run", key)
    return Screen(
        title,
        body,
        above=[("Runs", "/"), *([(own, run)] if title != own else []), *above],
        tabs=[("Run", run), *((name, f"{run}/{name.lower()}") for name in _TABS)],
        live=address("live", "run", key),
        mark=look.mark,
        simulated=ALL_SIMULATED if look.context.simulated else "",
    )


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
            f"Example {name} was not run.", f"pco runs show {shell(look.context.header.id)}"
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
            where = f"it was in step {first}" + (f" and in {len(rest):,} more" if rest else "")
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
