"""θ must go on routing: a rewritten θ is on trial until it has routed a batch's worth of inputs
(method decisions 23, 28).

Not in the paper, and switched off by `preset: paper`. Without it θ may drift, rewrite by rewrite,
to a directive under which no reply is a route any more; every route is then filled up by the
best-rated instincts, and nothing tells. The trial takes no call of its own: it is what comes of the
next batch's routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from promptcodebook.errors import LMError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Made, Router
from promptcodebook.method.state import State
from promptcodebook.randomness import Randomness
from promptcodebook.types import Example, Rewrite, ThetaTrial, Trace

_LEAST = 2
"""Fallbacks that count: one of a small batch is no sign (in `online` mode it would be all)."""


@dataclass(frozen=True)
class RouteGuard:
    """Takes back a θ under which more than `most` of the first routes fall back, at least two of
    them, unless a larger share did under the θ before. After `routes` routes the trial is over."""

    router: Router
    randomness: Randomness
    most: float
    routes: int
    tally: Tally

    async def settle(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> tuple[State, Mapping[str, Made], tuple[Rewrite, ...]]:
        """The state to run a batch under, with its routes where θ is on trial (else none).

        Where θ' does not pass, θ is what it was before, the rewrite says why, and what θ' had
        routed is routed again.
        """
        trial = state.trial
        if trial is None:
            return state, {}, ()
        made = await self._routes(state, batch, epsilon)
        asked = [route for route, _ in made.values() if not route.explored]
        fell = trial.fell + sum(route.fallback for route in asked)
        routed = trial.routed + len(asked)
        if fell < _LEAST or fell <= self.most * routed or fell < trial.share_before * routed:
            over = routed >= self.routes
            kept = None if over else replace(trial, routed=routed, fell=fell)
            return replace(state, trial=kept), made, ()
        self.tally(Incident.ENCODER_REFUSED)
        # Counted are the routes that inputs were answered along: those of θ' are not.
        self.tally(Incident.ROUTE_FALLBACKS, -sum(route.fallback for route in asked))
        self.tally(Incident.ROUTE_REPAIRS, -sum(route.repaired for route in asked))
        reason = f"{fell} of {routed} routes fell back with it, more than {self.most:.0%}"
        theta = state.parameters.encoder
        back = Rewrite("encoder", theta, trial.before, "", True, reason, origin="trial")
        state = replace(
            state, trial=None, parameters=replace(state.parameters, encoder=trial.before)
        )
        again = [x for x in batch if x.id in made and not made[x.id][0].explored]
        for name, (route, usage) in (await self._routes(state, again, epsilon)).items():
            made[name] = route, usage + made[name][1]
        return state, made, (back,)

    def watch(
        self, before: State, rewrites: Sequence[Rewrite], traces: Sequence[Trace], after: State
    ) -> State:
        """`after` with θ on trial, where one of the rewrites that were kept is θ's.

        Where θ is rewritten while on trial, the trial goes on: what is gone back to is the last θ
        that passed. In `online` mode θ may change with each route.
        """
        if self.most >= 1.0 or not any(r.kept and r.variable == "encoder" for r in rewrites):
            return after
        routes = [t.rollout.route for t in traces if t.rollout.route is not None]
        asked = [route.fallback for route in routes if not route.explored]
        share = sum(asked) / len(asked) if asked else 0.0
        return replace(after, trial=before.trial or ThetaTrial(before.parameters.encoder, share))

    async def _routes(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> dict[str, Made]:
        """By example; one whose model cannot be reached is left out, and tries again by itself."""
        made: dict[str, Made] = {}

        async def route(example: Example) -> None:
            draws = self.randomness.at(state.step, example.id)
            with suppress(LMError):
                made[example.id] = await self.router.route(example, state, epsilon, draws)

        await gather_all(route(example) for example in batch)
        return made
