"""The codebook of a run: a card for each instinct, how all were used, and the life of one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.intervals import Interval, unpaired_interval
from promptcodebook.method.state import State, selected_since
from promptcodebook.report.codebook import RoutingSection, deployed_words, sums, usage_chart
from promptcodebook.report.context import render_sections, step_name
from promptcodebook.report.history import DIRECTIVES, kept_entry, refused_entry
from promptcodebook.report.html import Column, Content, Html, el, table, together
from promptcodebook.report.svg import meter
from promptcodebook.store.effects import Effect
from promptcodebook.store.events import Started
from promptcodebook.types import Directive, Parameters, Rollout, Step, Variable, variable_name
from promptcodebook.units import number, percent, plural
from promptcodebook.viewer.effect import (
    effects_section,
    latest_effects,
    measured_mark,
    measured_words,
)
from promptcodebook.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.viewer.page import Screen, address, filter_box, link, missing

_LATELY = 10
"""Steps without a selection after which an instinct is said to be unused lately."""
_ENOUGH = 5
"""Examples with an instinct, and without it, that a difference of rewards takes."""
_MOST_ROUTED = 40
_ROUTED = (
    Column("example", numeric=False),
    Column("step"),
    Column("reward"),
    Column("route", numeric=False),
)


def codebook_screen(followed: FollowedRun) -> Screen:
    """All instincts as they are deployed."""
    look = followed.look()
    context = look.context
    deployed = context.deployed
    if deployed is None:
        return screen_of(look, "Codebook", el("p.empty", "This run has no codebook."))
    effects = latest_effects(followed, look)
    cards = [_card(look, deployed.state, k, effects) for k in range(len(context.codebook))]
    shown = [
        filter_box("instincts"),
        context.figure(deployed_words(deployed), el("div.cards", cards)),
        sums(deployed.state),
        usage_chart(context),
        render_sections([RoutingSection(context)], look.events),
        el(
            "section", el("h2", "Directives"), el("ul.plain", [_directive(look, d) for d in _WORDS])
        ),
    ]
    return screen_of(look, "Codebook", shown)


_WORDS: dict[Directive, str] = {name: f"{symbol} {words}" for name, symbol, words in DIRECTIVES}


def _directive(look: Look, name: Directive) -> Html:
    return el("li", link(_WORDS[name], "run", look.key, "codebook", name, look=".stop"))


def _card(look: Look, state: State, k: int, effects: Mapping[tuple[int, str], Effect]) -> Html:
    statistics, instinct = state.statistics, state.parameters.codebook[k]
    times, most = statistics.selected[k], max(statistics.selected)
    latest = look.context.state.parameters
    later = latest is not None and latest.codebook[k].text != instinct.text
    facts: list[tuple[str, Content]] = [
        ("success", number(statistics.success[k], 2) if times else "untried"),
        ("r̄", number(statistics.ema[k], 2, signed=True) if times else "untried"),
        ("selected", f"{times:,} times"),
        ("reward with it less without", _effect_words(_effect(look, k))),
    ]
    measured = effects.get((k, instinct.text))
    if measured is not None:
        facts.append(("measured", measured_words(measured)))
    tags = [el("span.tag", words) for words in _tags(look.steps, k, frozen=instinct.frozen)]
    return el(
        "article.card",
        el("h3", link(f"Instinct {k}", "run", look.key, "codebook", k, look=".stop"), tags),
        el("p.pre", instinct.text),
        el("p.note", "Reworded since, and that is not deployed.") if later else None,
        meter(times / most if most else 0.0, f"instinct {k} was selected {times} times"),
        el("dl.facts", [el("div", el("dt", name), el("dd", value)) for name, value in facts]),
    )


def _tags(steps: Sequence[Step], k: int, *, frozen: bool) -> list[str]:
    tags = ["frozen"] if frozen else []
    if steps and not steps[-1].selected[k]:
        tags.append("dead: never selected")
    elif len(steps) > _LATELY:
        recent = selected_since(steps[-1 - _LATELY].selected, steps[-1].selected)
        tags += [] if recent[k] else [f"dead: not in the last {_LATELY} steps"]
    return tags


@dataclass(frozen=True, slots=True)
class _Effect:
    """Rollouts with an instinct and without it, how many examples they are of, and how the mean
    rewards of these differ (None = too few of either)."""

    held: int
    others: int
    examples: tuple[int, int]
    difference: Interval | None


def _effect(look: Look, k: int) -> _Effect:
    """Of all training rollouts that were routed. No experiment: routes went by the input. An
    example that came again is no independent one: each counts once, with the mean of its
    rollouts."""
    held: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    for _, rollout in _routed(look.steps):
        if rollout.route is not None and rollout.reward is not None:
            group = held if k in rollout.route.indices else others
            group.setdefault(rollout.example_id, []).append(rollout.reward)
    context = look.context
    enough = min(len(held), len(others)) >= _ENOUGH
    found = (
        unpaired_interval(_means(held), _means(others), context.seed, context.reward_range)
        if enough
        else None
    )
    rollouts = [sum(map(len, group.values())) for group in (held, others)]
    return _Effect(rollouts[0], rollouts[1], (len(held), len(others)), found)


def _means(rewards: Mapping[str, Sequence[float]]) -> list[float]:
    return [sum(each) / len(each) for each in rewards.values()]


def _effect_words(effect: _Effect) -> str:
    n = f"n = {effect.examples[0]:,} and {effect.examples[1]:,} examples"
    rollouts = f"{effect.held:,} and {effect.others:,} rollouts"
    if effect.difference is None:
        return f"too few ({n}, {rollouts})"
    return effect.difference.text(signed=True, level="", more=f"{n}, {rollouts}")


def _routed(steps: Sequence[Step]) -> Iterator[tuple[int, Rollout]]:
    """Every rollout with the step that it belongs to."""
    for step in steps:
        for trace in step.traces:
            if trace.rollout.route is not None:
                yield step.index, trace.rollout


def biography_screen(followed: FollowedRun, name: str) -> Screen:
    """One text of Θ: an instinct by its number, or a directive by its name."""
    look = followed.look()
    # Before the rest: a page may be newer than it says, never older.
    mark = measured_mark(followed, look.mark)
    start = next((e.parameters for e in look.events if isinstance(e, Started)), None)
    variable = _variable(name, start)
    if start is None or variable is None:
        hint = f"pco codebook show {look.context.header.id}"
        return missing(f"This run has no text called {name}.", hint)
    parts: list[Content] = [_text(look, variable)]
    if isinstance(variable, int):
        parts.append(_facts(look, variable))
    parts.append(el("section", el("h2", "Versions"), _versions(look, start, variable)))
    if isinstance(variable, int):
        routed = _routed_table(look, variable)
        parts.append(effects_section(followed, look, variable))
        parts.append(el("section", el("h2", "Inputs routed to it"), routed))
    title = f"Instinct {variable}" if isinstance(variable, int) else _WORDS[variable]
    above = (("Codebook", address("run", look.key, "codebook")),)
    screen = screen_of(look, title, parts, above)
    live = address("live", "measured", look.key)
    return replace(screen, live=live, mark=mark)


def _variable(name: str, start: Parameters | None) -> Variable | None:
    if name in ("encoder", "generator", "critic"):
        return name
    size = len(start.codebook) if start is not None else 0
    inside = name.isascii() and name.isdecimal() and len(name) < 6 and int(name) < size
    return int(name) if inside else None


def _read_text(parameters: Parameters, variable: Variable) -> str:
    if isinstance(variable, int):
        return parameters.codebook[variable].text
    return {
        "encoder": parameters.encoder,
        "generator": parameters.generator,
        "critic": parameters.critic,
    }[variable]


def _text(look: Look, variable: Variable) -> Html:
    deployed, latest = look.context.deployed, look.context.state.parameters
    shown = deployed.state.parameters if deployed is not None else latest
    assert shown is not None, "a run with a first codebook has a state"
    text = _read_text(shown, variable)
    later = _read_text(latest, variable) if latest is not None else text
    return together(
        el("blockquote.now", text),
        el(
            "p.note",
            "As it stood at the step that is deployed. No policy carries it: it judges in training."
            if variable == "critic"
            else "As it is deployed.",
        ),
        el("blockquote", later) if later != text else None,
        el("p.note", "As the latest step left it, which is not deployed.")
        if later != text
        else None,
    )


def _facts(look: Look, k: int) -> Html:
    effect = _effect(look, k)
    routed = effect.held + effect.others
    share = percent(effect.held / routed) if routed else "nothing was routed"
    facts: list[tuple[str, Content]] = [
        ("rollouts with it", f"{effect.held:,} of {routed:,} ({share})"),
        ("reward with it less without", _effect_words(effect)),
    ]
    return together(
        el("dl.facts", [el("div", el("dt", name), el("dd", value)) for name, value in facts]),
        el(
            "p.note",
            "The difference is of training rollouts as they came, at 95 %, one mean for each "
            "example. Routes went by the input, so it is no proof that the instinct makes the "
            "difference: what it adds is measured by leaving it out.",
        ),
    )


def _versions(look: Look, start: Parameters, variable: Variable) -> Html:
    """The timeline: every version with what it earned, refused ones between, and the mark."""
    deployed = look.context.deployed.step if look.context.deployed else -1
    changes = [(s.index, r) for s in look.steps for r in s.rewrites if r.variable == variable]
    kept = [step for step, rewrite in changes if rewrite.kept]
    ends = iter([*kept, look.context.state.step + 1])  # each version's, in order
    items: list[Content] = [
        el(
            "li",
            el("b.when", "at first"),
            _earned(look, variable, -1, next(ends)),
            el("blockquote", _read_text(start, variable)),
        )
    ]
    marked = variable == "critic"  # no policy carries it
    for step, rewrite in changes:
        if step > deployed and not marked:
            items.append(_mark(deployed))
            marked = True
        if rewrite.kept:
            earned = _earned(look, variable, step, next(ends))
            items.append(kept_entry(step, rewrite, "li.later" if step > deployed else "li", earned))
        else:
            items.append(refused_entry(step, rewrite))
    if not marked:
        items.append(_mark(deployed))
    count = f"{plural(len(kept), 'rewrite')} kept, {len(changes) - len(kept)} refused"
    return together(el("p.note", f"{count}."), el("ol.timeline", items))


def _mark(deployed: int) -> Html:
    return el("li.deployed", f"deployed up to here ({step_name(deployed)})")


def _earned(look: Look, variable: Variable, after: int, until: int) -> Html | None:
    """The mean reward of rollouts with the instinct while this version stood."""
    if not isinstance(variable, int):
        return None
    rewards = [
        rollout.reward
        for step, rollout in _routed(look.steps)
        if after < step <= until
        and rollout.reward is not None
        and rollout.route is not None
        and variable in rollout.route.indices
    ]
    mean = number(sum(rewards) / len(rewards)) if rewards else "none"
    return el("span.earned", f" reward with it {mean} (n = {len(rewards)})")


def _routed_table(look: Look, k: int) -> Html:
    found = [
        (step, r) for step, r in _routed(look.steps) if r.route is not None and k in r.route.indices
    ]
    if not found:
        return el("p.empty", f"No input was routed to {variable_name(k)} yet.")
    rows = [_routed_cells(look, step, rollout) for step, rollout in found[::-1][:_MOST_ROUTED]]
    caption = f"The latest {len(rows)} of {len(found):,}."
    return look.context.figure(caption, table(_ROUTED, rows))


def _routed_cells(look: Look, step: int, rollout: Rollout) -> tuple[Content, ...]:
    route = rollout.route
    how = "" if route is None else ("explored" if route.explored else "by the encoder")
    name = rollout.example_id
    return (
        link(name, "run", look.key, "example", name, step + 1, look=".stop"),
        step + 1,
        number(rollout.reward, 2, missing="failed"),
        f"{', '.join(map(str, route.indices)) if route else ''} {how}",
    )
