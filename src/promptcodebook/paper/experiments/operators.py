"""Broken operators of our own loop, each in the place of a sound one. A part earns its calls where
a run without it learns less. Those that lay blame elsewhere act on the attribution, which is asked
with `critic.stages: 2` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from promptcodebook.base.randomness import Draws
from promptcodebook.method.critic import Attribution, Critic, History, penalty
from promptcodebook.method.exploration import RoutedCall, Router
from promptcodebook.method.state import State
from promptcodebook.method.train import Credit, Learner
from promptcodebook.method.update import PendingUpdate, Updater
from promptcodebook.types import (
    Channel,
    Component,
    Critique,
    Example,
    Gradients,
    Rewrite,
    Trace,
    Variable,
)

BlameMode = Literal["random", "constant", "all", "lowest"]


class Around(Attribution):
    """Our attribution, whose replies are changed."""

    def __init__(self, inner: Attribution) -> None:
        self._inner = inner

    def split_nothing(self) -> Gradients:
        return self._inner.split_nothing()


class Misblaming(Around):
    """Our attribution, whose complaints are then laid elsewhere: each at a part drawn at random, at
    the first active instinct, at every part, or at the channel that was rated least to blame."""

    def __init__(self, inner: Attribution, where: BlameMode) -> None:
        super().__init__(inner)
        self._where: BlameMode = where

    async def split(self, history: History, verdict: Critique, draws: Draws) -> Gradients:
        found = await self._inner.split(history, verdict, draws)
        active, draw = history.route.indices, draws.generator("misblame")
        channels: list[Channel] = ["encoder", "generator", "codebook"]
        least = min(channels, key=lambda channel: found.severity.get(channel, 0.0))
        unblamed = next((k for k in active if k not in found.codebook), active[0])
        everywhere: tuple[Variable, ...] = ("encoder", "generator", *active)
        lowest: Variable = unblamed if least == "codebook" else least
        places: dict[BlameMode, tuple[Variable, ...]] = {"constant": active[:1], "all": everywhere}
        places["lowest"] = (lowest,)
        laid: dict[Variable, list[str]] = {}
        for text in filter(None, (found.encoder, found.generator, *found.codebook.values())):
            for at in places.get(self._where) or (draw.choice(everywhere),):
                laid.setdefault(at, []).append(text)
        book = {k: " ".join(texts) for k, texts in laid.items() if isinstance(k, int)}
        theta, phi = (" ".join(laid.get(part, ())) for part in ("encoder", "generator"))
        return replace(found, encoder=theta, generator=phi, codebook=book)


class Mishearing(Around):
    """Our attribution, which is given what the critic said of the example before."""

    _before: Critique | None = None

    async def split(self, history: History, verdict: Critique, draws: Draws) -> Gradients:
        before, self._before = self._before or verdict, verdict
        return await self._inner.split(history, before, draws)


class Silent(Critic):
    """Our critic without its text: the score stays."""

    async def verdict(self, psi: str, history: History, draws: Draws) -> Critique:
        return replace(await super().verdict(psi, history, draws), feedback="")


@dataclass(frozen=True)
class RandomScores(Credit):
    """Our credit assignment, whose ρ is made of a score that was drawn."""

    async def assign(self, psi: str, history: History, draws: Draws) -> Trace:
        trace = await super().assign(psi, history, draws)
        if trace.verdict is None or trace.unit is None:
            return trace
        verdict = replace(trace.verdict, score=draws.generator("score").random())
        rho = penalty(verdict, trace.unit, self.config.critic.penalty_weight)
        return replace(trace, verdict=verdict, penalty=rho)


class Keeping(Updater):
    """Our updater, which is never asked to rewrite some variables."""

    def __init__(self, inner: Updater, *fixed: Component) -> None:
        self._inner = inner
        self._fixed = fixed

    async def rewrite_all(self, pending: Sequence[PendingUpdate], step: int) -> tuple[Rewrite, ...]:
        names = ["codebook" if isinstance(p.variable, int) else p.variable for p in pending]
        rest = [p for p, name in zip(pending, names, strict=True) if name not in self._fixed]
        return await self._inner.rewrite_all(rest, step)


class Blind(Keeping):
    """Our updater, which is asked for a better text and is not shown what was wrong."""

    async def rewrite_all(self, pending: Sequence[PendingUpdate], step: int) -> tuple[Rewrite, ...]:
        unsaid = [replace(p, gradients=("Something in this text can be better.",)) for p in pending]
        return await self._inner.rewrite_all(unsaid, step)


class FrozenAverages(Router):
    """ε-greedy, by an r̄ that stays as it was at the beginning."""

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        return replace(after, statistics=replace(after.statistics, ema=before.statistics.ema))


class FrozenSuccess(Router):
    """The encoder is shown the success that instincts had at the beginning: none."""

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        then, now = before.statistics, after.statistics
        kept = replace(now, success=then.success, evidence=then.evidence, selected=then.selected)
        return replace(after, statistics=kept)


class NeverExploring(Router):
    """The encoder routes every example: ε = 0."""

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> RoutedCall:
        return await super().route(example, state, 0.0, draws)


T = TypeVar("T")
Operator = Callable[[Learner], Learner]


def _as(kind: type[T], sound: Any) -> T:
    assert type(sound) is kind.__mro__[1], f"{kind.__name__} cannot replace {type(sound).__name__}"
    return kind(**{f.name: getattr(sound, f.name) for f in fields(sound)})


def _blames(kind: Callable[[Attribution], Attribution]) -> Operator:
    def broken(learner: Learner) -> Learner:
        credit = replace(learner.credit, attribution=kind(learner.credit.attribution))
        return replace(learner, credit=credit)

    return broken


def _laid(where: BlameMode) -> Operator:
    return _blames(lambda sound: Misblaming(sound, where))


def _silent(learner: Learner) -> Learner:
    credit = replace(learner.credit, critic=_as(Silent, learner.credit.critic))
    return replace(learner, credit=credit)


def _fixed(*parts: Component) -> Operator:
    return lambda learner: replace(learner, updater=Keeping(learner.updater, *parts))


def _routed(kind: type[Router]) -> Operator:
    def broken(learner: Learner) -> Learner:
        router = _as(kind, learner.router)
        guard = replace(learner.guard, router=router)  # it routes the batches of a θ on trial
        rescore = replace(learner.rescore, router=router)
        return replace(learner, router=router, guard=guard, rescore=rescore)

    return broken


# By name, what is broken: from a sound learner to a broken one.
OPERATORS: Mapping[str, Operator] = {
    "codebook-fixed": _fixed("codebook"),
    "theta-fixed": _fixed("encoder"),
    "phi-fixed": _fixed("generator"),
    "psi-fixed": _fixed("critic"),
    "blame-random": _laid("random"),
    "blame-constant": _laid("constant"),
    "blame-all": _laid("all"),
    "blame-lowest": _laid("lowest"),
    "feedback-swapped": _blames(Mishearing),
    "critic-silent": _silent,
    "scores-random": lambda parts: replace(parts, credit=_as(RandomScores, parts.credit)),
    "updater-identity": _fixed("encoder", "generator", "codebook", "critic"),
    "updater-blind": lambda parts: replace(parts, updater=Blind(parts.updater)),
    "ema-frozen": _routed(FrozenAverages),
    "success-frozen": _routed(FrozenSuccess),
    "no-exploration": _routed(NeverExploring),
}
