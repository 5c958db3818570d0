"""What a canary's figures say: promote it, roll it back or wait. It may be asked after every
request: the intervals beneath hold at all moments at once.

No key ends a canary alone. A decision must hold too where the requests and the feedback of any one
key are left out. With one hostile key, what is left is honest, and its error is that of `decide`.
The key that gave most counts for no more than the second one did, or for a tenth of all, so that it
cannot hold a decision up for ever either.

Few requests get feedback, and content users of one version may give it more often than those of the
other. So a gain among those who answer promotes a canary in two cases. Either it is left if every
request without feedback counts against the canary. Or three more tests hold:

- About as many requests of both versions get feedback: neither share is `ALIKE` times the other.
- More of the canary's requests are praised (the sum of its rewards), and fewer are complained of
  (the sum of what the rewards lack of 1), of all requests with and without feedback.

A canary that is no better passes them only where its content users answer more often than those of
the other version, and its other users less often, and both nearly cancel out. No data can tell that
from a gain: `Decision.factor` says how unequal it must be. Feedback that is late is late for both
arms. Nothing of this holds a roll back up: users whom a canary angers do complain more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from promptcodebook.deploy.online.sequences import (
    Ends,
    ValueCounts,
    contrast,
    difference,
    rate_ratio,
)
from promptcodebook.errors import ConfigError

Action = Literal["promote", "roll back", "wait"]
REWARD_ALPHA, GUARD_ALPHA = 0.035, 0.005
"""The reward's two ends and three guards err in at most 5 % together."""
ANSWER_ALPHA, ALIKE = 0.1, 1.25
"""Each end of a ratio of rates errs in at most half of this, in a canary's whole life. A promotion
must pass all these tests: so each may err as if it were alone."""
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


def by_key(
    found: Mapping[tuple[str, str], ValueCounts], versions: Collection[str] | None = None
) -> ByKey:
    """What `ServedLog.spread` found, of these or all versions together."""
    whole: dict[str, ValueCounts] = {}
    for (version, caller), tally in found.items():
        if versions is None or version in versions:
            whole[caller] = whole.get(caller, ValueCounts()) + tally
    return whole


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
    answered: tuple[ByKey, ByKey] = ({}, {}),
) -> Decision:
    """`decide` on both arms by key: a decision that fails without some one key is to wait. Requests
    that users saw are `answered` with feedback (1) or not (0); by default all are."""

    def without(key: str | None) -> Decision:
        def fair_pair(arms: tuple[ByKey, ByKey]) -> tuple[ValueCounts, ValueCounts]:
            ours, theirs = (
                fair({of: each for of, each in arm.items() if of != key}, key_share) for arm in arms
            )
            return ours, theirs

        pairs = {name: fair_pair(arms) for name, arms in guards.items()}
        arms = fair_pair(rewards)
        ours, theirs = (
            each.n if not each.mean else arm.n / each.mean - arm.n
            for arm, each in zip(arms, fair_pair(answered), strict=True)
        )
        return decide(*arms, pairs, margin, (ours, theirs))

    whole, given = without(None), Counter[str]()
    for arm in (arm for arms in (rewards, *guards.values()) for arm in arms):
        given.update({key: each.n for key, each in arm.items()})
    if whole.action == "wait" or len(given) < 2 or key_share >= 1:
        return whole
    for key, _ in given.most_common(_ASKED):
        if without(key).action != whole.action:
            why = f"a single key could end the canary: {whole.why}"
            return replace(whole, action="wait", why=why)
    return whole


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why; `low` and `high` bound the canary's gain in reward, and `harm` says by
    guard how much worse the canary is at least. `answered` is the share of requests with feedback
    in both arms. A gain with `low` above 0 is one unless content users of one version are `factor`
    times as likely to answer (`contrast`)."""

    action: Action
    why: str
    margin: float
    low: float
    high: float
    rewards: tuple[int, int]
    means: tuple[float | None, float | None]
    harm: Mapping[str, float]
    answered: tuple[float, float]
    factor: float


def decide(
    canary: ValueCounts,
    control: ValueCounts,
    guards: Mapping[str, tuple[ValueCounts, ValueCounts]],
    margin: float = 0.0,
    silent: tuple[float, float] = (0.0, 0.0),
) -> Decision:
    """On the rewards of both arms and, by guard, a tally of the canary and one of the control;
    `silent` are each arm's requests without feedback. Promotes where the gain is above `margin`,
    and does not come from who answers; rolls back where it is below 0 and below `margin`, or where
    a guard shows harm. Over a canary's whole life, at any number of looks, that is wrong in at most
    5 % of cases. A failed request has no reward. Raises ConfigError for a margin outside -1 to
    1."""
    if not -1 < margin < 1:
        message = f"the margin {margin:g} is not between -1 and 1"
        raise ConfigError(message, hint="--margin 0.02, or -0.02 for 'at most 0.02 worse'")
    low, high, factor = contrast(canary, control, REWARD_ALPHA)
    harm = {name: difference(a, b, 2 * GUARD_ALPHA)[0] for name, (a, b) in guards.items()}
    harmed = [name for name, least in harm.items() if least > ALLOWED]
    rewards = canary.n, control.n
    action: Action = "wait"
    if harmed:
        action, why = "roll back", _harm_text(harmed[0], harm[harmed[0]])
    elif not all(rewards):
        why = f"no feedback on the {'control' if rewards[0] else 'canary'}"
    elif high < min(0.0, margin):
        action, why = "roll back", f"its reward is at least {-high:.3f} lower"
    elif low > margin:
        gain = f"its gain in reward is at least {low:+.3f}"
        claim = f"{gain}, above the margin of {margin:g}"
        worst = canary + ValueCounts.share(0.0, silent[0])
        best = control + ValueCounts.share(silent[1], silent[1])
        # No assumption is needed if it is a gain though all who are silent count against it.
        if difference(worst, best, REWARD_ALPHA)[0] > margin:
            action, why = "promote", f"{claim}, whatever users who gave no feedback would say"
        elif doubt := _doubt((canary, control), silent, margin):
            why = f"among users who give feedback, {gain}, but {doubt}"
        else:
            action, why = "promote", claim
            if factor > 1:
                why += f", {unless(factor, 'one version')}"
    else:
        why = f"the gain may be anything from {low:+.3f} to {high:+.3f}"
    means = canary.mean, control.mean
    share, other = (n / max(1, n + quiet) for n, quiet in zip(rewards, silent, strict=True))
    return Decision(action, why, margin, low, high, rewards, means, harm, (share, other), factor)


def _doubt(
    arms: tuple[ValueCounts, ValueCounts], silent: tuple[float, float], margin: float
) -> str:
    """Why a gain among those who answer may be none among all requests; '' if it is one. A margin
    m counts as m more for each piece of feedback of the control, or -m more for the canary's."""
    requests = [arm.n + quiet for arm, quiet in zip(arms, silent, strict=True)]
    share = requests[0] / sum(requests)

    def shares(counts: Sequence[float]) -> str:
        ours, theirs = (count / n for count, n in zip(counts, requests, strict=True))
        return f"{ours:.2%} of the canary's requests and {theirs:.2%} of the control's"

    def ratio(counts: Sequence[float], more: Sequence[float]) -> Ends:
        ours, theirs = (
            (count + extra * arm.n) / (1 + abs(margin))
            for count, extra, arm in zip(counts, more, arms, strict=True)
        )
        return rate_ratio(ours, theirs, share, ANSWER_ALPHA)

    less, most = rate_ratio(arms[0].n, arms[1].n, share, ANSWER_ALPHA)
    if not 1 / ALIKE < less <= most < ALIKE:
        early = "it is too early to say that both versions get feedback equally often"
        why = "the versions do not get feedback equally often" if less > 1 or most < 1 else early
        return f"{why}: {shares([arm.n for arm in arms])} got feedback"
    granted = max(0.0, -margin), max(0.0, margin)
    praise = [arm.n * (arm.mean or 0.0) for arm in arms]
    if ratio(praise, granted)[0] <= 1:
        return f"it does not clearly get more praise: {shares(praise)}"
    complaints = [arm.n - count for arm, count in zip(arms, praise, strict=True)]
    if ratio(complaints, granted[::-1])[1] >= 1:
        return f"it does not clearly get fewer complaints: {shares(complaints)}"
    return ""


def unless(factor: float, where: str) -> str:
    times = f"{min(factor, 100):.3g} times"
    return f"unless satisfied users of {where} are {times} as likely to give feedback"


def _harm_text(name: str, least: float) -> str:
    if name == "failed":
        return f"at least {least:.1%} more of its requests fail"
    return f"its requests take at least {least * FULL[name]:,.3g} more {name} on average"
