"""Critique and assign credit: (ℓ, g_θ, g_φ, g_C, g_ψ) and ρ for one scored rollout (Eqs. 7-8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.method.attribution import Attribution, additivity_residual
from promptcodebook.method.chains import all_of
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

        Method decision 15: where the critic fails, the reward counts alone; where a gradient
        fails, the verdict and its ρ count too; nothing is learned from either.
        """
        rollout = history.rollout
        assert rollout.reward is not None, "only scored rollouts are critiqued"
        unit = unit_reward(rollout.reward, self.config.reward_range)
        trace = Trace(rollout, unit)
        if unit >= 1.0 and self.config.critic.skip_solved:
            return replace(trace, verdict=Verdict(1.0, ""))
        try:
            verdict, blamed = await self._judge(psi, history, draws)
        except LMError as error:
            return replace(trace, failure=failure_of("critique", error))
        rho = penalty(verdict, unit, self.config.critic.penalty_weight)
        trace = replace(trace, verdict=verdict, penalty=rho)
        if not self.config.update.text_updates:
            return trace
        try:
            gradients = await self._gradients(psi, history, verdict, blamed, draws)
        except LMError as error:
            return replace(trace, failure=failure_of("attribute", error))
        return replace(trace, gradients=gradients, residual=additivity_residual(rho, gradients))

    async def _judge(
        self, psi: str, history: History, draws: Draws
    ) -> tuple[Verdict, Gradients | None]:
        """ℓ_text; with `critic.stages: 1` the same call has assigned the blame as well."""
        if self.config.critic.stages == 1:
            return await self.critic.critique(psi, history, draws)
        return await self.critic.verdict(psi, history, draws), None

    async def _gradients(
        self, psi: str, history: History, verdict: Verdict, blamed: Gradients | None, draws: Draws
    ) -> Gradients:
        """g_θ, g_φ and g_C; beside them, from a call of its own, g_ψ."""
        own = self._own(psi, history, verdict, draws)
        if blamed is not None:
            return replace(blamed, critic=(await own).critic)
        split, adversarial = await all_of([self._split(verdict, history, draws), own])
        return replace(split, critic=adversarial.critic)

    async def _split(self, verdict: Verdict, history: History, draws: Draws) -> Gradients:
        if not verdict.feedback:
            return Gradients()
        return await self.attribution.split(verdict, history.values(), history.route.indices, draws)

    async def _own(self, psi: str, history: History, verdict: Verdict, draws: Draws) -> Gradients:
        if not self.config.critic.trainable:
            return Gradients()
        return Gradients(critic=await self.critic.own_gradient(psi, history, verdict, draws))
