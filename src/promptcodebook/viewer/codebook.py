"""The codebook of a run: a card for each instinct, how all were used, and the life of one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from promptcodebook.intervals import Interval, unpaired_interval
from promptcodebook.method.state import selected_since
from promptcodebook.report.codebook import RoutingSection, codebook_values
from promptcodebook.report.context import render_sections, step_name
from promptcodebook.report.history import DIRECTIVES
from promptcodebook.report.pages import address, render
from promptcodebook.store.events import Started
from promptcodebook.types import Directive, Parameters, Rollout, Step, Variable
from promptcodebook.units import percent
from promptcodebook.viewer.effect import (
    effect_values,
    latest_effects,
    measured_mark,
    measured_words,
)
from promptcodebook.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.viewer.page import Screen, missing

_LATELY = 10
"""Steps without a selection after which an instinct is said to be unused lately."""
_ENOUGH = 5
"""Examples with an instinct, and without it, that a difference of rewards takes."""
_MOST_ROUTED = 40
_WORDS: dict[Directive, str] = {name: f"{symbol} {words}" for name, symbol, words in DIRECTIVES}


def codebook_screen(followed: FollowedRun) -> Screen:
    """All instincts as they are deployed."""
    look = followed.look()
    context = look.context
    values = codebook_values(context)
    if context.deployed is not None:
        effects = latest_effects(followed, look)
        latest = context.state.parameters
        values |= {
            "tags": [_tags(look.steps, k) for k in range(len(context.codebook))],
            "effects": [_effect_words(_effect(look, k)) for k in range(len(context.codebook))],
            "measured": {
                k: measured_words(each)
                for (k, text), each in effects.items()
                if text == context.codebook[k].text
            },
            "later": latest.codebook if latest is not None else context.codebook,
            "routing": render_sections([RoutingSection(context)], look.events),
            "directives": _WORDS,
        }
    body = render("viewer/templates/codebook.html.jinja", context=context, key=look.key, **values)
    return screen_of(look, "Codebook", body)


def _tags(steps: Sequence[Step], k: int) -> list[str]:
    if steps and not steps[-1].selected[k]:
        return ["dead: never selected"]
    if len(steps) > _LATELY:
        recent = selected_since(steps[-1 - _LATELY].selected, steps[-1].selected)
        return [] if recent[k] else [f"dead: not in the last {_LATELY} steps"]
    return []


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
    context = look.context
    # Before the rest: a page may be newer than it says, never older.
    mark = measured_mark(followed, look.mark)
    start = next((e.parameters for e in look.events if isinstance(e, Started)), None)
    variable = _variable(name, start)
    if start is None or variable is None:
        hint = f"pco codebook show {context.header.id}"
        return missing(f"This run has no text called {name}.", hint)
    values = _versions(look, start, variable)
    if isinstance(variable, int):
        values |= _facts(look, variable) | effect_values(followed, look, variable)
    body = render(
        "viewer/templates/biography.html.jinja",
        context=context,
        key=look.key,
        variable=variable,
        step_name=step_name,
        **values,
    )
    title = f"Instinct {variable}" if isinstance(variable, int) else _WORDS[variable]
    screen = screen_of(look, title, body, (("Codebook", address("run", look.key, "codebook")),))
    return replace(screen, live=address("live", "measured", look.key), mark=mark)


def _variable(name: str, start: Parameters | None) -> Variable | None:
    if name in ("encoder", "generator", "critic"):
        return name
    size = len(start.codebook) if start is not None else 0
    inside = name.isascii() and name.isdecimal() and len(name) < 6 and int(name) < size
    return int(name) if inside else None


def _read_text(parameters: Parameters, variable: Variable) -> str:
    if isinstance(variable, int):
        return parameters.codebook[variable].text
    texts: dict[Directive, str] = {
        "encoder": parameters.encoder,
        "generator": parameters.generator,
        "critic": parameters.critic,
    }
    return texts[variable]


def _facts(look: Look, k: int) -> dict[str, Any]:
    effect = _effect(look, k)
    routed = effect.held + effect.others
    share = percent(effect.held / routed) if routed else "nothing was routed"
    found = [
        (step, r) for step, r in _routed(look.steps) if r.route is not None and k in r.route.indices
    ]
    return {
        "facts": [
            ("rollouts with it", f"{effect.held:,} of {routed:,} ({share})"),
            ("difference (with − without)", _effect_words(effect)),
        ],
        "count": len(found),
        "routed": found[::-1][:_MOST_ROUTED],
    }


def _versions(look: Look, start: Parameters, variable: Variable) -> dict[str, Any]:
    """The text as it is deployed and as the latest step left it; every version with the step that
    wrote it (-1 = the first) and the rewards of rollouts with it, refused ones between."""
    deployed, latest = look.context.deployed, look.context.state.parameters
    shown = deployed.state.parameters if deployed is not None else latest
    assert shown is not None, "a run with a first codebook has a state"
    changes = [(s.index, r) for s in look.steps for r in s.rewrites if r.variable == variable]
    kept = [step for step, rewrite in changes if rewrite.kept]
    ends = iter([*kept, look.context.state.step + 1])  # each version's, in order
    return {
        "text": _read_text(shown, variable),
        "later": _read_text(latest, variable) if latest is not None else "",
        "origin": _read_text(start, variable),
        "origin_earned": _earned(look, variable, -1, next(ends)),
        "deployed": deployed.step if deployed is not None else -1,
        "kept": len(kept),
        "changes": [
            (step, r, _earned(look, variable, step, next(ends)) if r.kept else [])
            for step, r in changes
        ],
    }


def _earned(look: Look, variable: Variable, after: int, until: int) -> list[float]:
    """The rewards of rollouts with the instinct while this version was current."""
    return [
        rollout.reward
        for step, rollout in _routed(look.steps)
        if after < step <= until
        and rollout.reward is not None
        and rollout.route is not None
        and variable in rollout.route.indices
    ]
