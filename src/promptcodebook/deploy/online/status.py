"""What a served ref did in the last window of time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from promptcodebook.base.units import duration, number, percent, plural
from promptcodebook.deploy.online.canary import judge, said_of
from promptcodebook.deploy.online.decisions import KEY_SHARE, Decision
from promptcodebook.deploy.online.log import ServedLog
from promptcodebook.deploy.registry.registry import Canary, Registry

_READ = 5_000  # Requests of a window whose routes are read, about.


@dataclass(frozen=True, slots=True)
class Status:
    """Counts and shares of the last `seconds`; `reward` is a mean, None without feedback. The
    `decision` on a canary is over its whole life."""

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


def status_of(
    log: ServedLog, registry: Registry, ref: str, seconds: float, key_share: float = KEY_SHARE
) -> Status:
    """What a ref did. Raises StoreError where the log or the registry cannot be read."""
    now, canary = time.time(), registry.canary(ref)
    found = log.traffic(ref, now - seconds)
    requests = sum(each.requests for each in found)
    feedback = sum(each.feedback for each in found)
    used, fallbacks, read = Counter[int](), 0, 0
    share = min(1.0, _READ / max(1, requests))
    for each in islice(log.newest(ref, now - seconds, share=share), 2 * _READ):
        used.update(each.served.route)
        fallbacks += each.served.fallback
        read += 1
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
    )


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
    return named
