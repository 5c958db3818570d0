"""ε-greedy exploration and SuccWtd, the success-weighted draw of S distinct entries (Sec. 3.6)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from promptcodebook.config import Explore
from promptcodebook.types import Route


def success_weighted(
    ema: Sequence[float], select: int, tau: float, draw: random.Random
) -> tuple[int, ...]:
    """S distinct sorted indices, drawn without replacement with p proportional to exp(r̄/τ).

    Gumbel top-k: the S largest of r̄_k/τ + Gumbel noise are such a draw (method decision 6).
    """
    scored = [(rate / tau - math.log(-math.log(_open_unit(draw))), k) for k, rate in enumerate(ema)]
    return tuple(sorted(k for _, k in sorted(scored, reverse=True)[:select]))


def _open_unit(draw: random.Random) -> float:
    """Uniform in (0, 1), since both logarithms must exist; random() itself never gives 1."""
    return max(draw.random(), 1e-300)


def gamma_for(settings: Explore, epochs: int) -> float:
    """γ as given, else such that ε reaches ε_min at 90 % of the planned epochs."""
    if settings.gamma is not None:
        return settings.gamma
    if settings.epsilon <= settings.epsilon_min or settings.epsilon_min == 0.0:
        # ε_min = 0 is never reached by a geometric decay: 1 % of ε₀ stands for it.
        ratio = 1.0 if settings.epsilon <= settings.epsilon_min else 0.01
    else:
        ratio = settings.epsilon_min / settings.epsilon
    return ratio ** (1.0 / max(1.0, 0.9 * epochs))


def epsilon_at(epoch: int, settings: Explore, epochs: int) -> float:
    """ε of an epoch: ε <- max(ε_min, γ ε) after each (Algorithm 1, last line of the loop)."""
    if settings.policy == "none":
        return 0.0
    epsilon, gamma = settings.epsilon, gamma_for(settings, epochs)
    for _ in range(epoch):
        epsilon = max(settings.epsilon_min, gamma * epsilon)
    return epsilon


class Explorer:
    """Decides whether an example explores, and where to."""

    def __init__(self, settings: Explore, select: int, always: bool = False) -> None:
        self._settings = settings
        self._select = select
        self._always = always

    def explores(self, epsilon: float, draw: random.Random) -> bool:
        """rand() < ε; always, when there is no encoder to ask (method decision 19)."""
        return self._always or draw.random() < epsilon

    def route(self, ema: Sequence[float], draw: random.Random) -> Route:
        """z ~ SuccWtd(r̄, S, τ), or uniform over S-subsets."""
        weights = ema if self._settings.policy == "success" else [0.0] * len(ema)
        chosen = success_weighted(weights, self._select, self._settings.tau, draw)
        return Route(chosen, explored=True)
