"""What a served ref did in the last window of time, and what differs from the window before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from promptcodebook.base.units import duration, number, percent, plural
from promptcodebook.deploy.online.canary import CanaryFigures, failed, said_of
from promptcodebook.deploy.online.decisions import Decision
from promptcodebook.deploy.online.log import Logged, ServedLog
from promptcodebook.deploy.online.sequences import Ends, ValueCounts, difference
from promptcodebook.deploy.registry.registry import Canary, Registry

_DRIFT_ALPHA = 0.05
_LEARNED = 2000  # Requests of the window before that say which words and letters are usual.


@dataclass(frozen=True, slots=True)
class DriftFinding:
    """A mean that moved; `ends` bound by how much."""

    name: str
    before: float
    after: float
    ends: Ends


@dataclass(frozen=True, slots=True)
class Status:
    """Counts and shares of the last `seconds`; `reward` is a mean, None without feedback. The
    `decision` on a canary is over its whole life; `drift` is as of `drift_of`."""

    ref: str
    seconds: float
    requests: int
    failed: int
    feedback: int
    reward: float | None
    versions: Mapping[str, int]
    instincts: Mapping[int, float]
    explored: float
    fallbacks: float
    canary: Canary | None
    decision: Decision | None
    drift: Sequence[DriftFinding]


def status_of(log: ServedLog, registry: Registry, ref: str, seconds: float) -> Status:
    """StoreError where the log or the registry cannot be read."""
    now = time.time()
    found = log.logged(ref, now - 2 * seconds)
    after = [each for each in found if each.served.time >= now - seconds]
    canary = registry.canary(ref)
    rewards = [each.reward for each in after if each.reward is not None]
    used = Counter(k for each in after for k in each.served.route)
    count = max(1, len(after))
    return Status(
        ref,
        seconds,
        len(after),
        sum(failed(each.served) for each in after),
        len(rewards),
        sum(rewards) / len(rewards) if rewards else None,
        dict(Counter(each.served.version for each in after)),
        {k: used[k] / count for k in sorted(used)},
        sum(each.served.arm == "explored" for each in after) / count,
        sum(each.served.fallback for each in after) / count,
        canary,
        CanaryFigures(log, canary).decide() if canary is not None else None,
        drift_of(found, seconds, now),
    )


def drift_of(found: Sequence[Logged], seconds: float, now: float) -> list[DriftFinding]:
    """What differs since the last multiple of `seconds` (since 1970) from the window before:
    "reward", "novelty" or an instinct as "instinct NUMBER". That window grows: one that moved with
    each look would be another test each time. Of all names together, one is wrong in at most 5 %.

    An input is new as far as its words and letters are rare in every second request of the window
    before. The other ones are what it is compared with."""
    begins = now - now % seconds
    before, after = windows = [
        [each for each in found if at <= each.served.time < at + seconds]
        for at in (begins - seconds, begins)
    ]
    usual, others = before[::2][-_LEARNED:], before[1::2]
    seen = Counter(bucket for each in usual for bucket in each.served.features)

    def novelty(logged: Logged) -> float:
        features = logged.served.features
        return 1 - sum(seen[each] for each in features) / (len(features) * len(usual))

    tallies = {
        "reward": [
            ValueCounts.of(r for each in w if (r := each.reward) is not None) for w in windows
        ],
        "novelty": [
            ValueCounts.of(novelty(each) for each in new if usual and each.served.features)
            for new in (others, after)
        ],
    }
    alphas = dict.fromkeys(tallies, _DRIFT_ALPHA / 3)
    uses = [Counter(k for each in window for k in each.served.route) for window in windows]
    used = sorted({*uses[0], *uses[1]})
    for k in used:
        shares = [
            ValueCounts.share(of[k], len(window)) for of, window in zip(uses, windows, strict=True)
        ]
        tallies[f"instinct {k}"], alphas[f"instinct {k}"] = shares, _DRIFT_ALPHA / 3 / len(used)
    findings: list[DriftFinding] = []
    for name, (then, since) in tallies.items():
        ends = difference(since, then, alphas[name])
        if (ends[0] > 0 or ends[1] < 0) and then.mean is not None and since.mean is not None:
            findings.append(DriftFinding(name, then.mean, since.mean, ends))
    return findings


def tree_of(status: Status) -> dict[str, Any]:
    """As JSON: the canary and its figures are one."""
    tree = asdict(status)
    canary, decision = tree.pop("canary"), tree.pop("decision")
    if canary is not None:
        canary = {**canary, **decision, "began": canary["began"].isoformat()}
    return {**tree, "canary": canary}


def told(found: Sequence[Status]) -> str:
    """For people."""
    if not found:
        return "no request is on record\nnext: pco serve REF --feedback"
    return "\n\n".join(
        "\n".join([each.ref, *(f"  {x}: {y}" for x, y in facts(each))]) for each in found
    )


def facts(status: Status) -> list[tuple[str, str]]:
    """What there is to say of a ref, each by its name."""
    shares = ", ".join(f"{k}: {percent(share)}" for k, share in status.instincts.items())
    named = [
        ("looked back", duration(status.seconds)),
        ("requests", f"{status.requests}, {status.failed} failed"),
        (
            "reward",
            f"{number(status.reward)} of {plural(status.feedback, 'request')} with feedback",
        ),
        ("instincts used", shares or "none"),
        ("explored", percent(status.explored)),
        ("fallbacks", percent(status.fallbacks)),
        ("canary", "none"),
    ]
    if (canary := status.canary) is not None and (made := status.decision) is not None:
        tried = f"{canary.version[:19]} at {canary.share:.3g}, {made.action}: {made.why}"
        named[-1] = (
            "canary",
            f"{tried}; {said_of(made)}, gain {made.low:+.3f} to {made.high:+.3f}",
        )
    for each in status.drift:
        low, high = each.ends
        moved = f"{number(each.before)} → {number(each.after)}, {low:+.3f} to {high:+.3f}"
        named.append((f"drift of {each.name}", moved))
    return named if status.drift else [*named, ("drift", "none found")]
