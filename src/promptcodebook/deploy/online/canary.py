"""A canary is judged from the log that all servers of its ref share, and ended by what is seen.

A request counts for the version that answered it, from the canary's beginning on, unless no user
saw an answer. Of several pieces of feedback for one request
the last counts. No key ends a canary alone (`canary_decision.py`)."""

from __future__ import annotations

from dataclasses import asdict

from promptcodebook.base.units import number
from promptcodebook.deploy.online.canary_decision import (
    FULL,
    KEY_SHARE,
    ByKey,
    Decision,
    decide_without_one,
)
from promptcodebook.deploy.online.served_log import ServedLog
from promptcodebook.deploy.registry.registry import Canary, Registry


def judge(log: ServedLog, canary: Canary, key_share: float = KEY_SHARE) -> Decision:
    """What the figures say now. Raises StoreError where the log cannot be read."""
    since = canary.began.timestamp()

    def arms(name: str) -> tuple[ByKey, ByKey]:
        found = log.spread(name, canary.ref, since, full=FULL.get(name, 1.0))
        ours, theirs = (
            {caller: tally for (of, caller), tally in found.items() if of == version}
            for version in (canary.version, canary.control)
        )
        return ours, theirs

    guards = {name: arms(name) for name in FULL}
    return decide_without_one(arms("reward"), guards, canary.margin, key_share, arms("answered"))


class CanaryJudge:
    """Follows the canaries of one ref, and ends each that has shown gain or harm."""

    def __init__(
        self, registry: Registry, ref: str, log: ServedLog, key_share: float = KEY_SHARE
    ) -> None:
        self._registry, self._ref, self._log, self._key_share = registry, ref, log, key_share
        self.decision: Decision | None = None

    def look(self) -> str:
        """Judges the canary under way. What became of it where it ended just now, else ''. Of
        several servers that end it the first one writes to the registry. Raises StoreError."""
        canary = self._registry.canary(self._ref)
        if canary is None:
            self.decision = None
            return ""
        self.decision = made = judge(self._log, canary, self._key_share)
        if made.action == "wait":
            return ""
        promoted, figures = made.action == "promote", asdict(made)
        why = f"{made.why} ({said_of(made)})"
        if self._registry.end_canary(canary, promoted, why, figures) is None:
            return ""
        became = "is promoted" if promoted else "is rolled back"
        return f"the canary {canary.version[:19]} {became}: {why}"


def said_of(decision: Decision) -> str:
    """The means of both arms, and their shares of requests with feedback, in words."""
    (ours, theirs), (n, m) = map(number, decision.means), decision.rewards
    answered = " against ".join(f"{each:.1%}" for each in decision.answered)
    return f"reward {ours} (n = {n}) against {theirs} (n = {m}), feedback on {answered} of requests"
