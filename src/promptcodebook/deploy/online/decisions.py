"""What a canary's figures say: promote it, roll it back or wait. It may be asked after every
request: the intervals beneath hold at all moments at once.

No key ends a canary alone. A decision must hold too where the requests and the feedback of any one
key are left out. With one hostile key, what is left is honest, and its error is that of `decide`.
The key that gave most counts for no more than the second one did, or for a tenth of all, so that it
cannot hold a decision up for ever either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from promptcodebook.deploy.online.sequences import ValueCounts, difference
from promptcodebook.errors import ConfigError

Action = Literal["promote", "roll back", "wait"]
REWARD_ALPHA, GUARD_ALPHA = 0.035, 0.005
"""The reward's two ends and three guards err in at most 5 % together."""
FULL = {"failed": 1.0, "seconds": 30.0, "tokens": 16_000.0}
"""Per request: what counts as 1, the most that a guard sees."""
KEY_SHARE = 0.1  # of what counts, the most that one key may give where no other gives as much
_ASKED = 20  # Keys that are left out in turn: those that gave most.
ALLOWED = 0.02  # how much worse a guard's mean may be, as a share of its `FULL`


ByKey = Mapping[str, ValueCounts]
"""What the requests of each key came to."""


def most_of_one(counts: Iterable[float], key_share: float = KEY_SHARE) -> float:
    """How many of the key that gave most count, by what each gave."""
    first, *others = sorted(counts, reverse=True)
    if not others or key_share >= 1:
        return first
    return min(first, max(others[0], sum(others) * key_share / (1 - key_share)))


def fair(tallies: ByKey, key_share: float = KEY_SHARE) -> ValueCounts:
    """The sum of what keys gave, the largest one scaled down to its share."""
    if not tallies:
        return ValueCounts()
    first, *others = sorted(tallies.values(), key=lambda each: each.n, reverse=True)
    most = most_of_one((each.n for each in (first, *others)), key_share)
    return sum(others, first.times(most / max(1, first.n)))


def decide_without_one(
    rewards: tuple[ByKey, ByKey],
    guards: Mapping[str, tuple[ByKey, ByKey]],
    margin: float = 0.0,
    key_share: float = KEY_SHARE,
) -> Decision:
    """`decide` on both arms by key: a decision that fails without some one key is to wait."""

    def without(key: str | None) -> Decision:
        def fair_pair(arms: tuple[ByKey, ByKey]) -> tuple[ValueCounts, ValueCounts]:
            ours, theirs = (
                fair({of: each for of, each in arm.items() if of != key}, key_share) for arm in arms
            )
            return ours, theirs

        pairs = {name: fair_pair(arms) for name, arms in guards.items()}
        return decide(*fair_pair(rewards), pairs, margin)

    whole, given = without(None), Counter[str]()
    for arm in (arm for arms in (rewards, *guards.values()) for arm in arms):
        given.update({key: each.n for key, each in arm.items()})
    if whole.action == "wait" or len(given) < 2 or key_share >= 1:
        return whole
    for key, _ in given.most_common(_ASKED):
        if without(key).action != whole.action:
            why = f"one key alone would end it: {whole.why}"
            return replace(whole, action="wait", why=why)
    return whole


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why; `low` and `high` bound the canary's gain in reward, and `harm` says by
    guard how much worse the canary is at least."""

    action: Action
    why: str
    margin: float
    low: float
    high: float
    rewards: tuple[int, int]
    means: tuple[float | None, float | None]
    harm: Mapping[str, float]


def decide(
    canary: ValueCounts,
    control: ValueCounts,
    guards: Mapping[str, tuple[ValueCounts, ValueCounts]],
    margin: float = 0.0,
) -> Decision:
    """On the rewards of both arms and, by guard, a tally of the canary and one of the control.
    Promotes where the gain is above `margin`; rolls back where it is below 0 and below `margin`, or
    where a guard shows harm. Over a canary's whole life, at any number of looks, that is wrong in
    at most 5 % of cases. A failed request has no reward. Raises ConfigError for a margin outside -1
    to 1."""
    if not -1 < margin < 1:
        raise ConfigError(
            f"a margin of {margin:g} is no difference of two rewards",
            hint="--margin 0.02, or --margin -0.02 for 'not worse than by 0.02'",
        )
    low, high = difference(canary, control, REWARD_ALPHA)
    harm = {name: difference(a, b, 2 * GUARD_ALPHA)[0] for name, (a, b) in guards.items()}
    harmed = [name for name, least in harm.items() if least > ALLOWED]
    rewards = canary.n, control.n
    action: Action = "wait"
    if harmed:
        action, why = "roll back", _harm_text(harmed[0], harm[harmed[0]])
    elif not all(rewards):
        why = f"no feedback on the {'control' if rewards[0] else 'canary'}"
    elif high < min(0.0, margin):
        action, why = "roll back", f"its reward is lower by {-high:.3f} or more"
    elif low > margin:
        action = "promote"
        why = f"its gain in reward is {low:+.3f} or more, above the margin of {margin:g}"
    else:
        why = f"the gain may be anything from {low:+.3f} to {high:+.3f}"
    means = canary.mean, control.mean
    return Decision(action, why, margin, low, high, rewards, means, harm)


def _harm_text(name: str, least: float) -> str:
    if name == "failed":
        return f"{least:.1%} more of its requests fail, or worse"
    return f"a request takes {least * FULL[name]:,.3g} {name} more, or worse"
