"""Which of a step's rewrites are kept: each rule is an `Acceptance` (method decision 9).

A new rule is a class here with its line in `_RULES`, and its name in `config.update.accept`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from promptcodebook.calls import Usage
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Composer, Deployed
from promptcodebook.method.state import State
from promptcodebook.method.update import apply_rewrites
from promptcodebook.randomness import Draws, Randomness
from promptcodebook.types import Example, Parameters, Prompt, Rewrite, Rollout, Route, Trace

__all__ = ["Acceptance", "Always", "Improve", "Proposal", "Rerun", "make_acceptance"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step's rewrites (those a check refused among them), and the batch that led to them.

    `traces` are in the batch's order; `state` is the one the batch ran under.
    """

    rewrites: tuple[Rewrite, ...]
    traces: Sequence[Trace]
    batch: Sequence[Example]
    state: State


class Acceptance(Protocol):
    """Returns the proposal's rewrites in their order, those it refuses with `kept` False and why.

    It may run examples again; it raises Stop, and nothing else, when it may not.
    """

    async def __call__(self, proposal: Proposal) -> tuple[Rewrite, ...]: ...


class Always:
    """What passed the checks is kept: Algorithm 1."""

    async def __call__(self, proposal: Proposal) -> tuple[Rewrite, ...]:
        return proposal.rewrites


@dataclass(frozen=True)
class Improve:
    """The rewrites stay only if the batch does not fare worse with them.

    Its examples run again under the rewritten variables: explored routes fixed, the same executor
    seeds. ψ is exempt, since the reward does not depend on it.
    """

    rerun: Rerun

    async def __call__(self, proposal: Proposal) -> tuple[Rewrite, ...]:
        tried = [r for r in proposal.rewrites if r.kept and r.variable != "critic"]
        if not tried:
            return proposal.rewrites
        reason = await self._worse(apply_rewrites(proposal.state.parameters, tried), proposal)
        if reason is None:
            return proposal.rewrites
        return tuple(
            replace(r, kept=False, reason=reason) if r in tried else r for r in proposal.rewrites
        )

    async def _worse(self, parameters: Parameters, proposal: Proposal) -> str | None:
        """Why the batch fares worse with the new parameters; None where it does not.

        Compared are the examples that have a reward both times; that must be at least half.
        """
        batch = zip(proposal.batch, proposal.traces, strict=True)
        scored = [(x, t) for x, t in batch if t.unit is not None]
        again = await gather_all(
            self.rerun.roll_out(parameters, proposal.state, x, t) for x, t in scored
        )
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


@dataclass(frozen=True)
class Rerun:
    """An example once more, under other parameters and with the draws it had."""

    composer: Composer
    trial: Trial
    randomness: Randomness

    async def roll_out(
        self, parameters: Parameters, state: State, example: Example, trace: Trace
    ) -> Rollout:
        """The rollout; a route that was explored is held as it was."""
        draws = self.randomness.at(state.step, example.id)
        route = trace.rollout.route
        fixed = route if route is not None and route.explored else None
        prompter = _HeldRoute(Deployed(self.composer, parameters, state.statistics), fixed)
        return await roll_out(prompter, self.trial, example, draws)


@dataclass(frozen=True)
class _HeldRoute:
    """A policy that takes the given route, if there is one, instead of its own."""

    deployed: Deployed
    fixed: Route | None

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        if self.fixed is None:
            return await self.deployed.prompt(example, draws)
        prompt, usage = await self.deployed.composer.compose(
            self.deployed.parameters, self.fixed, example, draws
        )
        return self.fixed, prompt, usage


def _always(rerun: Rerun) -> Acceptance:
    return Always()


_RULES: Mapping[str, Callable[[Rerun], Acceptance]] = {"always": _always, "improve": Improve}


def make_acceptance(rule: str, rerun: Rerun) -> Acceptance:
    """The rule of `config.update.accept`."""
    return _RULES[rule](rerun)
