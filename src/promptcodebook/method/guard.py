"""θ must go on routing: a rewrite of it is tried before it is kept (method decision 23).

Not in the paper, and switched off by `preset: paper`. Without it θ may drift, rewrite by rewrite,
to a directive under which no reply is a route any more; every route is then filled up by the
best-rated instincts, and nothing tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptcodebook.errors import LMError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.method.accept import Acceptance, Proposal
from promptcodebook.method.encoder import Encoder
from promptcodebook.method.failures import gather_all
from promptcodebook.method.state import State
from promptcodebook.randomness import Randomness
from promptcodebook.step import Rewrite
from promptcodebook.types import Example

__all__ = ["RouteGuard"]


@dataclass(frozen=True)
class RouteGuard:
    """An Acceptance: the batch is routed anew under a rewritten θ, before `rule` judges the rest.

    The rewrite is refused when more than `most` of those routes fall back, unless still more did
    under θ as it was. One encoder call for each example, and only where θ was rewritten. The
    `encoder` counts no fallbacks, since no input is answered along these routes.
    """

    rule: Acceptance
    encoder: Encoder
    randomness: Randomness
    most: float
    tally: Tally

    async def __call__(self, proposal: Proposal) -> tuple[Rewrite, ...]:
        tried = next((r for r in proposal.rewrites if r.kept and r.variable == "encoder"), None)
        if tried is not None and self.most < 1.0:
            reason = await self._fault(tried, proposal)
            if reason is not None:
                self.tally(Incident.ENCODER_REFUSED)
                refused = proposal.refuse({"encoder": reason})
                proposal = replace(proposal, rewrites=refused)
        return await self.rule(proposal)

    async def _fault(self, rewrite: Rewrite, proposal: Proposal) -> str | None:
        """Why θ may not be rewritten so; None where it may."""
        found = await gather_all(
            self._falls_back(example, rewrite.after, proposal.state) for example in proposal.batch
        )
        known = [fell for fell in found if fell is not None]
        if len(known) * 2 < len(found):
            return f"{len(found) - len(known)} of {len(found)} routes could not be tried with it"
        share = sum(known) / len(known)
        if share <= self.most or share < _share_before(proposal):
            return None
        return f"{sum(known)} of {len(known)} routes fell back with it, more than {self.most:.0%}"

    async def _falls_back(self, example: Example, theta: str, state: State) -> bool | None:
        """None where nobody could be asked."""
        book, draws = state.parameters.codebook, self.randomness.at(state.step, example.id)
        try:
            route, _ = await self.encoder.route(theta, book, state.statistics, example.input, draws)
        except LMError:
            return None
        return route.fallback


def _share_before(proposal: Proposal) -> float:
    """The share of the batch's own routes that fell back, of those that θ was asked for."""
    routes = [t.rollout.route for t in proposal.traces if t.rollout.route is not None]
    asked = [route.fallback for route in routes if not route.explored]
    return sum(asked) / len(asked) if asked else 0.0
