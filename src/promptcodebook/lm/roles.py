"""Gives each role's request its model and sampling, as configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from promptcodebook.config import RoleSettings
from promptcodebook.lm.base import LM, Reply, Request, Sampling
from promptcodebook.types import ROLES, Role

__all__ = ["Roles"]


class Roles:
    """Fills `model` and `sampling` by role; greedy means temperature 0.

    At temperature 0 the sample is set to 0 and top_p left out, so that equal greedy requests share
    one key wherever they come from.
    """

    def __init__(self, inner: LM, settings: Mapping[str, RoleSettings], default_model: str) -> None:
        self._inner = inner
        known: dict[Role, RoleSettings] = {r: settings.get(r, RoleSettings()) for r in ROLES}
        self._models = {role: each.model or default_model for role, each in known.items()}
        self._drawn = {role: _sampling(each) for role, each in known.items()}
        self._greedy = {role: _greedy(each) for role, each in self._drawn.items()}

    def model_of(self, role: Role) -> str:
        """The full spec of the role's model."""
        return self._models[role]

    def sampling_of(self, role: Role, greedy: bool = False) -> Sampling:
        """How the role's replies are drawn."""
        return (self._greedy if greedy else self._drawn)[role]

    async def __call__(self, request: Request) -> Reply:
        role = request.role
        sampling = self.sampling_of(role, request.greedy)
        sample = 0 if sampling.temperature == 0 else request.sample
        model = request.model or self._models[role]
        filled = replace(request, model=model, sampling=sampling, sample=sample)
        return await self._inner(filled)


def _sampling(each: RoleSettings) -> Sampling:
    drawn = Sampling(each.temperature, each.top_p, each.max_tokens, each.extra)
    return _greedy(drawn) if each.temperature == 0 else drawn


def _greedy(sampling: Sampling) -> Sampling:
    return replace(sampling, temperature=0.0, top_p=None)
