"""The codebook of a run: a card for each instinct, how all were used, and the life of one text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from promptcodebook.assemble import OWN_LM
from promptcodebook.base.intervals import DIGITS, Bounds, Interval, mean_interval
from promptcodebook.base.paths import run_reference
from promptcodebook.base.units import percent
from promptcodebook.deploy.viewer.following import FollowedRun, Look, screen_of
from promptcodebook.deploy.viewer.page import Screen, missing
from promptcodebook.errors import PolicyError
from promptcodebook.method.state import selected_since
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import render_sections, step_name, without_credentials
from promptcodebook.report.history import DIRECTIVES
from promptcodebook.report.pages import address, render
from promptcodebook.report.training import Earned, RoutingSection, codebook_values
from promptcodebook.store.effects import Effect, effects_mark, read_effects, signed
from promptcodebook.store.events import Started
from promptcodebook.types import Parameters, Rollout, Step, Variable

_LATELY = 10  # steps without a selection after which an instinct is said to be unused lately
_ENOUGH = 5  # examples with an instinct, and without it, that a difference of rewards takes
_MOST_ROUTED = 40
_WORDS: dict[str, str] = dict(DIRECTIVES)


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
            "directives": _WORDS,
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


def biography_screen(followed: FollowedRun, name: str) -> Screen:
    """One text of Θ: an instinct by its number, or a directive by its name."""
    look = followed.look()
    context = look.context
    # Before the rest: a page may be newer than it says, never older.
    mark = measured_mark(followed, look.mark)
    start = next((e.parameters for e in look.events if isinstance(e, Started)), None)
    known = start.texts if start is not None else {}
    variable: Variable | None = next((v for v in known if str(v) == name), None)
    if start is None or variable is None:
        hint = f"pco codebook show {context.header.id}"
        return missing(f"This run has no text called {name}.", hint)
    values = _versions(look, start, variable)
    title = _WORDS.get(name, f"Instinct {name}")
    if isinstance(variable, int):
        held, others, words = _difference(look, variable)
        total = held + others
        share = percent(held / total) if total else "nothing was routed"
        found = [(step, r) for step, indices, r in _routed(look.steps) if variable in indices]
        values |= {
            "facts": [
                ("rollouts with it", f"{held:,} of {total:,} ({share})"),
                ("difference (with − without)", words),
            ],
            "count": len(found),
            "routed": found[::-1][:_MOST_ROUTED],
            **_effects(followed, look, variable),
        }
    body = render(
        "deploy/viewer/templates/biography.html.jinja",
        context=context,
        key=look.key,
        variable=variable,
        step_name=step_name,
        **values,
    )
    screen = screen_of(look, title, body, (("Codebook", address("run", look.key, "codebook")),))
    return replace(screen, live=address("live", "measured", look.key), mark=mark)


def _versions(look: Look, start: Parameters, variable: Variable) -> dict[str, Any]:
    """The text as it is deployed and as the latest step left it; every version with its step (-1 =
    the first) and the rewards of rollouts with it, refused ones between."""
    deployed, latest = look.context.deployed, look.context.state.parameters
    shown = deployed.parameters if deployed is not None else latest
    assert shown is not None, "a run with a first codebook has a state"
    changes = [(s.index, r) for s in look.steps for r in s.rewrites if r.variable == variable]
    kept = [step for step, rewrite in changes if rewrite.kept]
    ends = iter([*kept, look.context.state.step + 1])  # each version's, in order

    def earned(after: int) -> list[float]:
        """The rewards of rollouts with the instinct while this version was current."""
        until = next(ends)
        return [
            rollout.reward
            for step, indices, rollout in _routed(look.steps)
            if after < step <= until and rollout.reward is not None and variable in indices
        ]

    return {
        "text": shown.texts[variable],
        "later": latest.texts[variable] if latest is not None else "",
        "origin": start.texts[variable],
        "origin_earned": earned(-1),
        "deployed": look.context.deployed_as.step,
        "kept": len(kept),
        "changes": [(step, r, earned(step) if r.kept else []) for step, r in changes],
    }


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


def measured_mark(followed: FollowedRun, own: str) -> str:
    """Changes whenever a page about this run's instincts would; `own` is the run's mark."""
    return f"{effects_mark(followed.path)}-{own}"


def _effects(followed: FollowedRun, look: Look, k: int) -> dict[str, Any]:
    """What was measured of instinct k, the latest first, and what to type to measure it."""
    header, fits = look.context.header, _fits(followed)
    trust = "" if followed.usable else " --trust"
    typed = f"pco codebook effect {run_reference(followed.path)} {k}{trust}"
    settings = header.settings
    data: Mapping[str, Any] = settings.get("data") or {}
    stored = (data.get("path") or data.get("train")) and settings.get("reward")
    if not settings.get("task") and (not stored or settings.get("lm") == OWN_LM):
        # It took data, reward or model as objects of a program.
        typed = f"pco.effect({header.id!r}, {k}, data, reward, lm)"
    measured = [
        {
            "effect": each,
            "difference": "none" if each.difference is None else signed(each.difference),
            "split": each.split if fits(each)[1] else f"{each.split} of other data",
            "text": "" if (k, each.text) in enumerate(look.context.codebook.texts) else each.text,
            "deployed": "as deployed" + ("" if fits(each)[0] else ", in another codebook"),
            "executor": without_credentials(each.models.get("executor", "")),
            "at": each.at.replace("T", " ").removesuffix("+00:00"),
        }
        for each in read_effects(followed.path)[::-1]
        if each.instinct == k
    ]
    return {"typed": typed, "measured": measured}
