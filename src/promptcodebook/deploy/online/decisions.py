"""What a canary's figures say: promote it, roll it back or wait. It may be asked after every
request: the intervals beneath hold at all moments at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from promptcodebook.deploy.online.sequences import ValueCounts, difference
from promptcodebook.errors import ConfigError

Action = Literal["promote", "roll back", "wait"]
REWARD_ALPHA, GUARD_ALPHA = 0.035, 0.005
"""The reward's two ends and three guards err in at most 5 % together."""
FULL = {"failed": 1.0, "seconds": 30.0, "tokens": 16_000.0}
"""Per request: what counts as 1, the most that a guard sees."""
ALLOWED = 0.02  # how much worse a guard's mean may be, as a share of its `FULL`


def guard_tally(name: str, values: Iterable[float]) -> ValueCounts:
    """Of one guard, by request: 1 if it failed, seconds, tokens."""
    return ValueCounts.of(min(value / FULL[name], 1.0) for value in values)


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
    at most 5 % of cases. A failed request has no reward. ConfigError for a margin outside -1 to
    1."""
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
