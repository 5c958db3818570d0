"""How many calls of which kind a plan makes: read off the schedule, the draws and the settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, cast

from promptcodebook.config import Config
from promptcodebook.method.draws import Draws
from promptcodebook.method.explore import Explorer, epsilon_at
from promptcodebook.method.schedule import Schedule
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.sources import STAND_IN
from promptcodebook.session.span import Span, exactly
from promptcodebook.types import Role

__all__ = ["CallCounts", "Kind", "counted_calls"]

Kind = Literal[
    "route",
    "compose",
    "execute",
    "execute present",
    "execute concat",
    "outside",
    "judge",
    "critique",
    "own gradient",
    "attribute",
    "rewrite instinct",
    "rewrite directive",
    "first codebook",
]

REASKED = Span(1.0, 1.02, 1.25)
"""Typed replies that are asked for a second time: none, one in fifty, one in four."""
UNSOLVED = Span(0.0, 0.5, 1.0)
"""Share of the rollouts without a full reward."""
BLAMED = 0.5
"""Share of its active instincts that an unsolved rollout blames; all of them for the high."""
AGENT_CALLS = Span(0, 1, 5)
"""Calls of the user's own agent for one answer; it may do without a model."""


@dataclass(frozen=True)
class CallCounts:
    """Calls by kind, the updates planned, and what was assumed."""

    calls: dict[Kind, Span]
    updates: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Passes:
    """Training rollouts up to an update: all, those the encoder routes, and distinct inputs."""

    updates: int
    rollouts: int
    routed: int
    inputs: int
    routed_inputs: int


class _Sum:
    """Calls gathered by kind."""

    def __init__(self, plan: RunPlan) -> None:
        self._calls: dict[Kind, Span] = {}
        config = plan.config
        stages = len(tuple(getattr(plan.task.executor, "stages", ())))
        own = bool(config.executor) and not stages
        self._routes = config.encoder.mode != "none"
        self._composes = config.compose == "generator"
        self._prompts = 1 + (stages if config.compose_per_stage else 0)
        self._executes = AGENT_CALLS if own else exactly(max(1, stages))
        self._outside = int("untrusted" in getattr(plan.task.executor, "roles", ()))
        self._judges = _judges(config.reward)
        if plan.task.judged is not None and config.reward != STAND_IN:
            self._judges = int(getattr(plan.task.judged, "calls", 1))
        self._greedy = {r for r, s in config.roles.items() if s.temperature == 0}

    @property
    def calls(self) -> dict[Kind, Span]:
        return {kind: span for kind, span in self._calls.items() if span.high > 0}

    def add(self, kind: Kind, span: Span) -> None:
        self._calls[kind] = self._calls.get(kind, Span()) + span

    def forward(self, rollouts: Span, routed: Span, inputs: int) -> None:
        """Whole forward passes in training, over so many distinct `inputs`.

        The same request to a greedy role is answered by the run's journal, so that such a role may
        be asked as little as once an input.
        """
        if self._routes:
            self.add("route", routed * REASKED)
        if self._composes:
            self.add("compose", self._least("generator", rollouts, inputs) * self._prompts)
        self.add("execute", self._least("executor", rollouts, inputs) * self._executes)
        self.add("outside", self._least("untrusted", rollouts, inputs) * self._outside)
        self.judged(rollouts, inputs)

    def _least(self, role: Role, rollouts: Span, inputs: int) -> Span:
        low = min(rollouts.low, inputs) if role in self._greedy else rollouts.low
        return Span(low, rollouts.expected, rollouts.high)

    def fixed(self, kind: Kind, rollouts: Span, inputs: int) -> None:
        """Rollouts under a fixed prompt, neither routed nor composed."""
        self.add(kind, rollouts * self._executes)
        self.add("outside", rollouts * self._outside)
        self.judged(rollouts, inputs)

    def judged(self, rollouts: Span, inputs: int) -> None:
        """The judge is greedy: equal answers to an input are judged once."""
        if self._judges:
            low = min(rollouts.low, inputs)
            spent = Span(low, rollouts.expected, rollouts.high)
            self.add("judge", spent * self._judges * REASKED)


def counted_calls(plan: RunPlan) -> CallCounts:
    """The plan's calls. Replies that the run's own journal holds are not counted twice."""
    found = _Sum(plan)
    whole = _passes(plan, None)
    least = _passes(plan, _earliest_stop(plan))
    if plan.config.init.kind in ("random", "from_prompt"):
        found.add("first codebook", exactly(1) * REASKED)
    _training(found, plan.config, least, whole)
    _validation(found, plan, whole.updates)
    _verdict(found, len(plan.split("test")))
    return CallCounts(found.calls, whole.updates, tuple(_assumed(plan, least, whole)))


def _passes(plan: RunPlan, until: int | None) -> _Passes:
    """The schedule as it will be, up to update `until`; exploration is drawn as training does."""
    config = plan.config
    schedule = Schedule(plan.split("train"), config.update, config.seed)
    explorer = Explorer(config.explore, config.select, always=config.encoder.mode == "none")
    updates = rollouts = 0
    routed: Counter[str] = Counter()
    inputs: set[str] = set()
    for step, epoch, batch in schedule.updates():
        if until is not None and step >= until:
            break
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)
        updates += 1
        rollouts += len(batch)
        inputs.update(example.id for example in batch)
        for example in batch:
            draw = Draws(config.seed, step, example.id).generator("explore")
            if not explorer.explores(epsilon, draw):
                routed[example.id] += 1
    return _Passes(updates, rollouts, routed.total(), len(inputs), len(routed))


def _every(config: Config) -> int:
    online = config.update.mode == "online"
    return config.validation.every * (config.update.batch_size if online else 1)


def _earliest_stop(plan: RunPlan) -> int | None:
    """The first update at which training may end early; None = it cannot."""
    config = plan.config
    every = _every(config)
    if not every or not plan.split("val"):
        return None
    return 0 if config.validation.target_score is not None else every * config.validation.patience


def _training(found: _Sum, config: Config, least: _Passes, whole: _Passes) -> None:
    rollouts = Span(least.rollouts, whole.rollouts, whole.rollouts)
    greedy = config.roles["encoder"].temperature == 0
    routed = least.routed_inputs if greedy else least.routed
    found.forward(rollouts, Span(routed, whole.routed, whole.routed), least.inputs)
    unsolved = rollouts * UNSOLVED
    critiqued = unsolved if config.critic.skip_solved else rollouts
    found.add("critique", critiqued * REASKED)
    if not config.update.text_updates:
        return
    if config.critic.trainable:
        found.add("own gradient", critiqued * REASKED)
    if config.critic.stages == 2:
        found.add("attribute", Span(0.0, unsolved.expected, critiqued.high) * REASKED)
    _rewrites(found, config, whole)
    if config.update.accept == "improve":
        again = Span(0.0, whole.rollouts, whole.rollouts)
        found.forward(again, Span(0.0, whole.routed, whole.routed), 0)


def _rewrites(found: _Sum, config: Config, whole: _Passes) -> None:
    batch = whole.rollouts / max(1, whole.updates)
    free = config.size - len(config.init.frozen)
    missed = 1.0 - config.select * BLAMED / config.size
    expected = free * (1.0 - missed ** (batch * UNSOLVED.expected))
    most = min(free, batch * config.select)
    found.add("rewrite instinct", Span(0.0, expected, most) * whole.updates)
    directives = (
        (config.encoder.mode == "learned")
        + (config.compose == "generator")
        + config.critic.trainable
    )
    share = min(1.0, batch * UNSOLVED.expected)
    found.add("rewrite directive", Span(0.0, directives * share, directives) * whole.updates)


def _validation(found: _Sum, plan: RunPlan, updates: int) -> None:
    config, whole = plan.config, len(plan.split("val"))
    every = _every(config)
    if not every or not whole:
        return
    subset = min(whole, config.validation.subset)
    times = updates // every + 1
    unseen = 0 if updates % every == 0 else 1
    finalists = 0
    if config.keep == "best_val":
        finalists = min(times, config.validation.finalists)
    # A finalist's subset was judged before; the journal answers it. An unchanged policy costs
    # nothing, so the least is one validation and one finalist.
    rest = whole - subset
    most = times * subset + (finalists * rest + unseen * whole if finalists else 0)
    spent = Span(subset + (rest if finalists else 0), most, most * 1.1)
    found.forward(spent, spent, whole)


def _verdict(found: _Sum, test: int) -> None:
    """Four rows; the learned policy may be the untrained one, and answers may be alike."""
    found.fixed("execute present", Span(test, test, test * 1.1), test)
    found.fixed("execute concat", Span(test, test, test * 1.1), 0)
    policies = Span(test, 2 * test, 2 * test * 1.1)
    found.forward(policies, policies, 0)


def _judges(reward: object) -> int:
    """Calls of the judge for one reward."""
    if not isinstance(reward, dict):
        return int(reward == "judge")
    tree = cast("dict[str, Any]", reward)
    parts = tree.get("parts")
    inside = cast("list[Any]", parts) if isinstance(parts, list) else []
    return int(tree.get("kind") == "judge") + sum(_judges(part) for part in inside)


def _assumed(plan: RunPlan, least: _Passes, whole: _Passes) -> list[str]:
    said = [
        f"{whole.updates} updates over {whole.rollouts} rollouts, {whole.routed} of them routed "
        "by the encoder",
        "low: every answer gets the full reward, nothing is rewritten; expected: half do; "
        "high: none does, and every blamed text is rewritten",
    ]
    if least.updates < whole.updates:
        said.append(f"low: training ends early, after {least.updates} updates")
    if plan.config.executor and not getattr(plan.task.executor, "stages", ()):
        said.append(
            f"your executor is counted as one call an answer, {AGENT_CALLS.low:g} for the low and "
            f"{AGENT_CALLS.high:g} for the high"
        )
    return said
