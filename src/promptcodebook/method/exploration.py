"""The routes of training: ε-greedy exploration (Sec. 3.6, last line of Algorithm 1).

With probability ε an example's route is drawn by SuccWtd, the success-weighted draw of S distinct
entries; else the policy routes it (`policy.py`). ε falls after every epoch. A policy that is
`Deployed` draws no route.

Deviations: the draw is Gumbel top-k (method decision 6). Where no γ is set, it follows from the
planned epochs. Without an encoder every example is explored (decision 19)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Usage
from promptcodebook.config.schema import Explore
from promptcodebook.method.policy import Composer
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Example, Prompt, Route, Step, Trace


def success_weighted(
    ema: Sequence[float], select: int, tau: float, draw: random.Random
) -> tuple[int, ...]:
    """S distinct sorted indices, p ∝ exp(r̄/τ), one after another (Gumbel top-k, decision 6)."""
    # 0 is no number for the logarithms; random() never gives 1.
    noise = [-math.log(-math.log(max(draw.random(), 1e-300))) for _ in ema]
    scored = [(rate / tau + noise[k], k) for k, rate in enumerate(ema)]
    return tuple(sorted(k for _, k in sorted(scored, reverse=True)[:select]))


def gamma_for(settings: Explore, epochs: int) -> float:
    """γ as given, else such that ε reaches ε_min at 90 % of the planned epochs."""
    if settings.gamma is not None:
        return settings.gamma
    if settings.epsilon <= settings.epsilon_min:
        return 1.0
    # ε_min = 0 is never reached by a geometric decay: 1 % of ε₀ replaces it.
    ratio = settings.epsilon_min / settings.epsilon or 0.01
    return ratio ** (1.0 / max(1.0, 0.9 * epochs))


def epsilon_at(epoch: int, settings: Explore, epochs: int) -> float:
    """ε of an epoch: ε <- max(ε_min, γ ε) after each (Algorithm 1, last line of the loop)."""
    if settings.policy == "none":
        return 0.0
    epsilon, gamma = settings.epsilon, gamma_for(settings, epochs)
    for _ in range(epoch):
        epsilon = max(settings.epsilon_min, gamma * epsilon)
    return epsilon


def explored_route(
    statistics: RoutingStatistics, select: int, settings: Explore, draw: random.Random
) -> Route:
    """A route by the rule `explore.policy`: z ~ SuccWtd(r̄, S, τ), or uniform over S-subsets. A new
    rule is a weight for each instinct here, and its name beside the others in `Explore`."""
    weights = statistics.ema
    if settings.policy == "uniform":
        weights = [0.0] * len(weights)
    return Route(success_weighted(weights, select, settings.tau, draw), explored=True)


class RoutedCall(NamedTuple):
    """A route with what it took."""

    route: Route
    usage: Usage


@dataclass
class Router:
    """Routes in training: E_θ, or with probability ε z ~ SuccWtd; a subclass may learn. `always`
    explores every example, since there is no encoder to ask (method decision 19)."""

    composer: Composer
    settings: Explore
    always: bool = False

    async def prepare(self) -> None:
        """Called once before the first route of a process."""

    def recall(self, state: State, first: State, steps: Iterable[Step]) -> State:
        """`state` with what the router remembers of the stored `steps`, from `first` to it."""
        return state

    def attend(
        self, planned: Sequence[Example], examples: Sequence[Example], state: State, draws: Draws
    ) -> Sequence[Example]:
        """The examples of this step: the planned batch, with solved ones possibly replaced."""
        return planned

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> RoutedCall:
        draw, composer = draws.generator("explore"), self.composer
        if self.always or draw.random() < epsilon:
            drawn = explored_route(state.statistics, composer.select, self.settings, draw)
            return RoutedCall(drawn, Usage())
        route, _, usage = await composer.route(state.parameters, state.statistics, example, draws)
        return RoutedCall(route, usage)

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with what the traces, made under `before`, teach of routing."""
        return after


@dataclass(frozen=True)
class Exploring:
    """The policy in training: the router's routes, or the one `routed` already."""

    composer: Composer
    router: Router
    state: State
    epsilon: float
    routed: RoutedCall | None = None

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        state = self.state
        route, usage = self.routed or await self.router.route(example, state, self.epsilon, draws)
        prompt, composing = await self.composer.compose(state.parameters, route, example, draws)
        return route, prompt, usage + composing
