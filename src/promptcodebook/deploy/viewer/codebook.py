"""The codebook of a run: a card for each instinct, and how all were used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from promptcodebook.base.intervals import DIGITS, Bounds, Interval, mean_interval
from promptcodebook.deploy.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.deploy.viewer.page import Screen
from promptcodebook.errors import PolicyError
from promptcodebook.method.state import selected_since
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import render_sections
from promptcodebook.report.pages import render
from promptcodebook.report.training import Earned, RoutingSection, codebook_values
from promptcodebook.store.effects import Effect, read_effects, signed
from promptcodebook.types import Rollout, Step

_LATELY = 10  # steps without a selection after which an instinct is said to be unused lately
_ENOUGH = 5  # examples with an instinct, and without it, that a difference of rewards takes


def codebook_screen(followed: FollowedRun) -> Screen:
    look = followed.look()
    context = look.context
    known = [step for step in look.steps if step.index <= context.deployed_as.step]
    values = codebook_values(context, Earned(known))
    if context.deployed is not None:
        texts, latest, fits = context.codebook.texts, context.state.parameters, _fits(followed)
        values |= {
            "tags": [_tags(look.steps, k) for k in range(len(texts))],
            "effects": [_difference(look, k)[-1] for k in range(len(texts))],
            # The latest of each, where it has a pair: in this codebook, on the run's own data.
            "measured": {
                each.instinct: f"{signed(each.difference)}, n = {each.n}, {each.split}"
                f"{', simulated' if each.simulated else ''}"
                for each in read_effects(followed.path)
                if each.difference is not None and all(fits(each))
                if (each.instinct, each.text) in enumerate(texts)
            },
            "later": latest.codebook if latest is not None else context.codebook,
            "routing": render_sections([RoutingSection(context)], look.events),
        }
    body = render(
        "deploy/viewer/templates/codebook.html.jinja", context=context, key=look.key, **values
    )
    return screen_of(look, "Codebook", body)


def _tags(steps: Sequence[Step], k: int) -> list[str]:
    if steps and not steps[-1].selected[k]:
        return ["dead: never selected"]
    if len(steps) > _LATELY:
        recent = selected_since(steps[-1 - _LATELY].selected, steps[-1].selected)
        return [] if recent[k] else [f"dead: not in the last {_LATELY} steps"]
    return []


def _routed(steps: Sequence[Step]) -> Iterator[tuple[int, tuple[int, ...], Rollout]]:
    """Every rollout that was routed, with its step and its route."""
    for step in steps:
        for trace in step.traces:
            if trace.rollout.route is not None:
                yield step.index, trace.rollout.route.indices, trace.rollout


def _difference(look: Look, k: int) -> tuple[int, int, str]:
    """How many rollouts had the instinct and how many did not, and how their rewards differ. Each
    example counts once, with the mean of its rollouts: those of one are not independent."""
    groups: tuple[dict[str, list[float]], dict[str, list[float]]] = {}, {}
    for _, indices, rollout in _routed(look.steps):
        if rollout.reward is not None:
            group = groups[k not in indices]
            group.setdefault(rollout.example_id, []).append(rollout.reward)
    held, others = (sum(map(len, group.values())) for group in groups)
    of = "n = {:,} and {:,} examples, ".format(*map(len, groups))
    of += f"{held:,} and {others:,} rollouts"
    if min(map(len, groups)) < _ENOUGH:
        return held, others, f"too few ({of})"
    one, other = ([sum(each) / len(each) for each in group.values()] for group in groups)
    found = unpaired_interval(one, other, look.context.reward_range)
    return held, others, found.text(signed=True, level="", more=of)


def unpaired_interval(
    a: Sequence[float], b: Sequence[float], bounds: Bounds = (0.0, 1.0)
) -> Interval:
    """Difference of two means (Zou and Donner 2008, MOVER); n of the smaller group. ValueError."""
    first, second = mean_interval(a, bounds), mean_interval(b, bounds)
    mean = first.mean - second.mean
    below = math.hypot(first.mean - first.low, second.high - second.mean)
    above = math.hypot(first.high - first.mean, second.mean - second.low)
    width = bounds[1] - bounds[0]
    low, high = max(-width, mean - below), min(width, mean + above)
    return Interval(mean, round(low, DIGITS), round(high, DIGITS), min(len(a), len(b)))


def _fits(followed: FollowedRun) -> Callable[[Effect], tuple[bool, bool]]:
    """Whether an effect is of the policy that the run has now, and of its data."""
    data = followed.header.fingerprints
    try:
        policy = read_policy_file(followed.path / POLICY).digest
    except PolicyError:
        policy = ""  # it wrote none yet
    return lambda effect: (
        not policy or policy == effect.policy,
        effect.data in ("", data.get(effect.split, effect.data)),
    )
