"""A canary is judged from the log that all servers of its ref share, and ended by what is seen.

A request counts for the version that answered it, from the canary's beginning on, unless its caller
asked for a version by hash. Of several pieces of feedback for one request the last counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from promptcodebook.base.units import number
from promptcodebook.deploy.online.decisions import Decision, decide, guard_tally
from promptcodebook.deploy.online.log import Served, ServedLog
from promptcodebook.deploy.online.sequences import ValueCounts
from promptcodebook.deploy.registry.registry import Canary, Registry

_AGAIN, _AGAIN_S = 1000, 60.0
"""What is read twice: servers write at the same time, and their clocks differ."""


class CanaryFigures:
    """One canary's figures so far; each look reads what came since."""

    def __init__(self, log: ServedLog, canary: Canary) -> None:
        self.canary, self._log = canary, log
        self._rewards: dict[str, dict[str, float]] = {canary.version: {}, canary.control: {}}
        self._newest = 0
        self._begin_guards()

    def _begin_guards(self) -> None:
        self._guards: dict[str, dict[str, ValueCounts]] = {version: {} for version in self._rewards}
        self._counted: set[str] = set()
        self._until = self.canary.began.timestamp()

    def decide(self) -> Decision:
        """What the figures say now. StoreError where the log cannot be read."""
        ref, began = self.canary.ref, self.canary.began.timestamp()
        for each in self._log.logged(ref, began, after=max(0, self._newest - _AGAIN)):
            self._newest = max(self._newest, each.number or 0)
            if each.reward is not None and self._counts(each.served):
                self._rewards[each.served.version][each.served.id] = each.reward
        now = time.time()
        if now < self._until - _AGAIN_S:  # the clock went back, and what follows has earlier times
            self._begin_guards()
        found = [each.served for each in self._log.logged(ref, max(began, self._until - _AGAIN_S))]
        fresh = [each for each in found if each.id not in self._counted and self._counts(each)]
        self._counted = {each.id for each in found}
        self._until = max([self._until, *(min(each.time, now) for each in found)])
        for version, guards in self._guards.items():
            for name, tally in _guards([each for each in fresh if each.version == version]).items():
                guards[name] = guards.get(name, ValueCounts()) + tally
        versions = self.canary.version, self.canary.control
        canary, control = (ValueCounts.of(self._rewards[version].values()) for version in versions)
        ours, theirs = (self._guards[version] for version in versions)
        guards = {name: (ours[name], theirs[name]) for name in ours}
        return decide(canary, control, guards, self.canary.margin)

    def _counts(self, served: Served) -> bool:
        return served.version in self._rewards and served.arm != "named"


def failed(served: Served) -> bool:
    """Not one whose caller hung up."""
    return served.status >= 400 and served.status != 499


def _guards(served: list[Served]) -> Mapping[str, ValueCounts]:
    answered = [each for each in served if not failed(each)]
    return {
        "failed": guard_tally("failed", map(failed, served)),
        "seconds": guard_tally("seconds", (each.seconds for each in answered)),
        "tokens": guard_tally("tokens", (n for each in answered if (n := each.tokens) is not None)),
    }


class CanaryJudge:
    """Follows the canaries of one ref, and ends each that has shown gain or harm."""

    def __init__(self, registry: Registry, ref: str, log: ServedLog) -> None:
        self._registry, self._ref, self._log = registry, ref, log
        self._judging: CanaryFigures | None = None
        self.decision: Decision | None = None

    def look(self) -> str:
        """Judges the canary under way. What became of it where it ended just now, else ''. Of
        several servers that end it the first one writes to the registry. StoreError."""
        canary, judging = self._registry.canary(self._ref), self._judging
        if canary is None:
            self._judging = self.decision = None
            return ""
        if judging is None or judging.canary != canary:
            judging = self._judging = CanaryFigures(self._log, canary)
        self.decision = made = judging.decide()
        if made.action == "wait":
            return ""
        promoted, figures = made.action == "promote", asdict(made)
        why = f"{made.why} ({said_of(made)})"
        if self._registry.end_canary(canary, promoted, why, figures) is None:
            return ""
        became = "is promoted" if promoted else "is rolled back"
        return f"the canary {canary.version[:19]} {became}: {why}"


def said_of(decision: Decision) -> str:
    """The means of both arms, in words."""
    (ours, theirs), (n, m) = map(number, decision.means), decision.rewards
    return f"reward {ours} of {n} against {theirs} of {m}"
