"""Critique and assign credit: (ℓ, g_θ, g_φ, g_C, g_ψ) and ρ for one scored rollout (Eqs. 7-8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.method.attribution import Attribution, additivity_residual
from promptcodebook.method.critic import Critic, History, penalty
from promptcodebook.method.draws import Draws
from promptcodebook.method.policy import failure_of
from promptcodebook.types import Gradients, Trace, Verdict

__all__ = ["Credit", "unit_reward"]


def unit_reward(reward: float, reward_range: tuple[float, float]) -> float:
    """r rescaled to [0, 1] (method decision 5)."""
    low, high = reward_range
    return (reward - low) / (high - low)


@dataclass(frozen=True)
class Credit:
    """Critic, attribution and the critic's own gradient, with the settings that switch them."""

    critic: Critic
    attribution: Attribution
    config: Config

    async def assign(self, psi: str, history: History, draws: Draws) -> Trace:
        """The trace with verdict, ρ and gradients.

        A critic or attribution call that fails leaves the reward counted and nothing to learn
        from (method decision 15).
        """
        rollout = history.rollout
        assert rollout.reward is not None, "only scored rollouts are critiqued"
        unit = unit_reward(rollout.reward, self.config.reward_range)
        trace = Trace(rollout, unit)
        if unit >= 1.0 and self.config.critic.skip_solved:
            return replace(trace, verdict=Verdict(1.0, ""))
        try:
            verdict, gradients = await self._judge(psi, history, draws)
        except LMError as error:
            return replace(trace, failure=failure_of("critique", error))
        rho = penalty(verdict, unit, self.config.critic.penalty_weight)
        return replace(
            trace,
            verdict=verdict,
            penalty=rho,
            gradients=gradients,
            residual=additivity_residual(rho, gradients),
        )

    async def _judge(self, psi: str, history: History, draws: Draws) -> tuple[Verdict, Gradients]:
        learns = self.config.update.text_updates
        if self.config.critic.stages == 1:
            verdict, gradients = await self.critic.critique(psi, history, draws)
            own = await self._own(psi, history, verdict, draws) if learns else ""
            return verdict, replace(gradients, critic=own) if learns else Gradients()
        verdict = await self.critic.verdict(psi, history, draws)
        if not learns:
            return verdict, Gradients()
        # g_ψ comes from a call of its own, beside the attribution rather than after it.
        gradients, own = await asyncio.gather(
            self._split(verdict, history, draws), self._own(psi, history, verdict, draws)
        )
        return verdict, replace(gradients, critic=own)

    async def _split(self, verdict: Verdict, history: History, draws: Draws) -> Gradients:
        if not verdict.feedback:
            return Gradients()
        return await self.attribution.split(verdict, history.values(), history.route.indices, draws)

    async def _own(self, psi: str, history: History, verdict: Verdict, draws: Draws) -> str:
        if not self.config.critic.trainable:
            return ""
        return await self.critic.own_gradient(psi, history, verdict, draws)
