"""`accept: improve`: a batch's rewrites stay only if the batch does not fare worse with them.

The batch's examples run again under the rewritten variables: explored routes fixed, the same
executor seeds. ψ is exempt, since the reward does not depend on it (method decision 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcodebook.config import Config
from promptcodebook.method.chains import all_of
from promptcodebook.method.draws import Draws
from promptcodebook.method.policy import Deployed, Policy, Trial, rollout_of
from promptcodebook.method.state import State
from promptcodebook.method.update import applied
from promptcodebook.types import Example, Parameters, Rewrite, Rollout, Route, Trace, Usage

__all__ = ["Accept"]


@dataclass(frozen=True)
class Accept:
    """Decides whether a step's rewrites are kept."""

    config: Config
    policy: Policy
    trial: Trial

    async def judge(
        self,
        rewrites: tuple[Rewrite, ...],
        traces: Sequence[Trace],
        batch: Sequence[Example],
        state: State,
    ) -> tuple[tuple[Rewrite, ...], bool]:
        """The rewrites, all but ψ's refused if the mean reward fell; and whether it did."""
        tried = [r for r in rewrites if r.kept and r.variable != "critic"]
        if self.config.update.accept == "always" or not tried:
            return rewrites, False
        reason = await self._worse(applied(state.parameters, tried), traces, batch, state)
        if reason is None:
            return rewrites, False
        return tuple(
            replace(r, kept=False, reason=reason) if r in tried else r for r in rewrites
        ), True

    async def _worse(
        self,
        parameters: Parameters,
        traces: Sequence[Trace],
        batch: Sequence[Example],
        state: State,
    ) -> str | None:
        """Why the batch fares worse with the new parameters; None where it does not.

        Compared are the examples that have a reward both times; that must be at least half.
        """
        scored = [(x, t) for x, t in zip(batch, traces, strict=True) if t.unit is not None]
        again = await all_of(self._again(parameters, state, x, t) for x, t in scored)
        pairs = [
            (t.rollout.reward, r.reward)
            for (_, t), r in zip(scored, again, strict=True)
            if t.rollout.reward is not None and r.reward is not None
        ]
        if len(pairs) * 2 < len(scored):
            return f"{len(scored) - len(pairs)} of {len(scored)} examples could not be run again"
        before, after = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        if after >= before:
            return None
        return f"the batch's reward fell from {before:.4f} to {after:.4f}"

    async def _again(
        self, parameters: Parameters, state: State, example: Example, trace: Trace
    ) -> Rollout:
        draws = Draws(self.config.seed, state.step, example.id)
        route = trace.rollout.route
        fixed = route if route is not None and route.explored else None
        prompter = _Rerun(Deployed(self.policy, parameters, state.standing), fixed)
        return await rollout_of(prompter, self.trial, example, draws)


@dataclass(frozen=True)
class _Rerun:
    """The rewritten policy, with an explored route held as it was."""

    deployed: Deployed
    fixed: Route | None

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]:
        if self.fixed is None:
            return await self.deployed.prompt(example, draws)
        prompt, usage = await self.deployed.policy.compose(
            self.deployed.parameters, self.fixed, example, draws
        )
        return self.fixed, prompt, usage
