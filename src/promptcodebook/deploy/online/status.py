"""What a served ref did in the last window of time, and what differs from the window before."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any

from promptcodebook.base.intervals import ENOUGH
from promptcodebook.base.units import duration, number, percent, plural
from promptcodebook.deploy.online.canary import judge, said_of
from promptcodebook.deploy.online.canary_decision import KEY_SHARE, ByKey, Decision, by_key, fair
from promptcodebook.deploy.online.sequences import Ends, ValueCounts, difference
from promptcodebook.deploy.online.served_log import Served, ServedLog
from promptcodebook.deploy.registry.registry import Canary, Registry

_DRIFT_ALPHA = 0.05
_LEARNED = 2000  # Requests of the window before that say which words and letters are usual.
_READ = 5_000  # Requests of a window whose routes and inputs are read, about.
_SLICES = 20  # that are shown
_ALL = -1  # Counts requests beside their instincts.


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
    `decision` on a canary is over its whole life; `drift` is as of `drift_of`. `slices` have how
    many requests with feedback each of them got, and their mean reward."""

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
    slices: Mapping[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])


def status_of(
    log: ServedLog, registry: Registry, ref: str, seconds: float, key_share: float = KEY_SHARE
) -> Status:
    """What a ref did. Raises StoreError where the log or the registry cannot be read."""
    now, canary = time.time(), registry.canary(ref)
    found = log.traffic(ref, now - seconds)
    requests = sum(each.requests for each in found)
    feedback = sum(each.feedback for each in found)
    used, fallbacks, read = Counter[int](), 0, 0
    earned = defaultdict[str, list[float]](list)
    share = min(1.0, _READ / max(1, requests))
    for each in islice(log.newest(ref, now - seconds, share=share), 2 * _READ):
        used.update(each.served.route)
        fallbacks += each.served.fallback
        read += 1
        for name in each.served.slices if each.reward is not None else ():
            earned[name].append(each.reward or 0.0)
    count = max(1, read)
    return Status(
        ref,
        seconds,
        requests,
        sum(each.failed for each in found),
        feedback,
        sum(each.reward for each in found) / feedback if feedback else None,
        {each.version: each.requests for each in found},
        {k: used[k] / count for k in sorted(used)},
        sum(each.explored for each in found) / max(1, requests),
        fallbacks / count,
        canary,
        judge(log, canary, key_share) if canary is not None else None,
        drift_of(log, ref, seconds, now, key_share),
        {k: (len(x), sum(x) / len(x)) for k, x in _largest(earned).items()},
    )


def _largest(found: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """The slices with the most feedback, by name; callers may send any number of values."""
    names = sorted(found, key=lambda name: (-len(found[name]), name))[:_SLICES]
    return {name: found[name] for name in sorted(names) if len(found[name]) >= ENOUGH}


def drift_of(
    log: ServedLog, ref: str, seconds: float, now: float, key_share: float = KEY_SHARE
) -> list[DriftFinding]:
    """What differs since the last multiple of `seconds` (since 1970) from the window before:
    "reward", that of a slice, "novelty" or an instinct as "instinct NUMBER". That window grows: one
    that moved with each look would be another test each time. Of all names together, one is wrong
    in at most 5 %.

    Of routes and inputs a part is read, about as many as `_READ` in the window before. It is drawn
    by the requests' ids. An input is new as far as its words and letters are rare in every second
    request of the window before. The other ones are what it is compared with."""
    begins = now - now % seconds
    windows = (begins - seconds, begins), (begins, begins + seconds)
    rewards = [by_key(log.spread("reward", ref, *window)) for window in windows]
    before = sum(each.requests for each in log.traffic(ref, begins - seconds))
    share = min(1.0, _READ / max(1, before - sum(e.requests for e in log.traffic(ref, begins))))
    seen, usual, used = Counter[int](), 0, Counter[int]()
    novelty: list[dict[str, list[float]]] = [{}, {}]
    routes: list[dict[str, Counter[int]]] = [{}, {}]

    def read(at: int) -> Iterator[Served]:
        found = (each.served for each in log.newest(ref, *windows[at], share=share))
        for served in islice((each for each in found if each.arm != "prompt"), 2 * _READ):
            used.update(served.route)
            own = routes[at].setdefault(served.caller, Counter())
            own.update((*served.route, _ALL))
            yield served

    others = list[tuple[str, tuple[int, ...]]]()
    for nth, served in enumerate(read(0)):
        if nth % 2:
            others.append((served.caller, served.features))
        elif usual < _LEARNED:
            seen.update(served.features)
            usual += 1
    for at, rows in enumerate((others, ((each.caller, each.features) for each in read(1)))):
        for caller, features in rows:
            if usual and features:
                rare = 1 - sum(seen[each] for each in features) / (len(features) * usual)
                novelty[at].setdefault(caller, []).append(rare)
    alphas: dict[str, float] = dict.fromkeys(("reward", "novelty"), _DRIFT_ALPHA / 3)
    measures: dict[str, Sequence[ByKey]] = {"reward": rewards}
    measures["novelty"] = [
        {key: ValueCounts.of(own) for key, own in each.items()} for each in novelty
    ]
    for k in sorted(used):
        measures[f"instinct {k}"] = [
            {key: ValueCounts.share(own[k], own[_ALL]) for key, own in each.items()}
            for each in routes
        ]
        alphas[f"instinct {k}"] = _DRIFT_ALPHA / 3 / len(used)
    findings: list[DriftFinding] = []
    parted = _rewards_by_slice(log, ref, windows)
    measures.update(parted)
    alphas |= dict.fromkeys(("reward", *parted), _DRIFT_ALPHA / 3 / (1 + len(parted)))
    for name, pair in measures.items():
        then, since = (fair(each, key_share) for each in pair)
        ends = difference(since, then, alphas[name])
        if (ends[0] > 0 or ends[1] < 0) and then.mean is not None and since.mean is not None:
            findings.append(DriftFinding(name, then.mean, since.mean, ends))
    return findings


def _rewards_by_slice(
    log: ServedLog, ref: str, windows: Iterable[tuple[float, float]]
) -> dict[str, Sequence[ByKey]]:
    """Rewards in each window by caller, of the slices that both have enough of."""
    earned = list[dict[str, dict[str, list[float]]]]()
    for window in windows:
        of = defaultdict[str, dict[str, list[float]]](dict)
        for each in islice(log.newest(ref, *window, rewarded=True), 2 * _READ):
            for name in each.served.slices if each.reward is not None else ():
                of[name].setdefault(each.served.caller, []).append(each.reward or 0.0)
        earned.append(of)
    large = [_largest({k: [*chain(*v.values())] for k, v in each.items()}) for each in earned]
    return {
        f"reward for {name}": [
            {key: ValueCounts.of(own) for key, own in each[name].items()} for each in earned
        ]
        for name in sorted(large[0].keys() & large[1].keys())
    }


def tree_of(status: Status) -> dict[str, Any]:
    """As JSON: the canary and its figures are one."""
    tree = asdict(status)
    canary, decision = tree.pop("canary"), tree.pop("decision")
    if canary is not None:
        canary = {**canary, **decision, "began": canary["began"].isoformat()}
    return {**tree, "canary": canary}


def in_words(found: Sequence[Status]) -> str:
    """For people."""
    if not found:
        return "no requests are on record\nnext: pco serve REF --feedback"
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
            f"{number(status.reward)} over {plural(status.feedback, 'request')} with feedback",
        ),
        *(
            (f"reward for {name}", f"{number(mean)} over {plural(count, 'request')}")
            for name, (count, mean) in status.slices.items()
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
