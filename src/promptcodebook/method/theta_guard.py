"""The trial of a rewritten θ (method decisions 23, 28). Ours: the paper has none, and
`preset: paper` switches it off.

A rewritten θ must route a batch's worth of inputs, which takes no call of its own. Without it θ may
drift, rewrite by rewrite, to a directive under which no reply is a route any more; the best-rated
instincts then fill every route, and nothing shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.method.exploration import RoutedCall, Router
from promptcodebook.method.failures import gather_all
from promptcodebook.method.state import State
from promptcodebook.types import Example, Rewrite, ThetaTrial, Trace

# Fallbacks that count: one of a small batch is no sign (in `online` mode it would be all).
_LEAST = 2


@dataclass(frozen=True)
class ThetaGuard:
    """The trial of θ over its first `routes` routes."""

    config: Config
    router: Router
    tally: Tally
    routes: int

    async def before(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> tuple[State, Mapping[str, RoutedCall], tuple[Rewrite, ...]]:
        """The state to run a batch under, its routes where θ is on trial, and the rewrite that
        takes θ back: if more than `encoder.max_fallback` of its first routes fall back, at least
        two, and no larger share did before. Then the last θ that passed routes them again."""
        trial, most = state.trial, self.config.encoder.max_fallback
        if trial is None:
            return state, {}, ()
        routed = await self._routes(state, batch, epsilon)
        asked = [call.route for call in routed.values() if not call.route.explored]
        fell = trial.fell + sum(route.fallback for route in asked)
        total = trial.routed + len(asked)
        if fell < _LEAST or fell <= most * total or fell < trial.share_before * total:
            over = total >= self.routes
            kept = None if over else replace(trial, routed=total, fell=fell)
            return replace(state, trial=kept), routed, ()
        # Counted are the routes that inputs were answered along: those of θ' are not.
        for incident, count in (
            (Incident.ENCODER_REFUSED, 1),
            (Incident.ROUTE_FALLBACKS, -sum(route.fallback for route in asked)),
            (Incident.ROUTE_REPAIRS, -sum(route.repaired for route in asked)),
        ):
            self.tally(incident, count)
        reason = f"with it, {fell} of {total} routes fell back, more than {most:.0%}"
        theta = state.parameters.encoder
        back = Rewrite("encoder", theta, trial.before, "", True, reason, origin="trial")
        parameters = replace(state.parameters, encoder=trial.before)
        state = replace(state, trial=None, parameters=parameters)
        again = [x for x in batch if x.id in routed and not routed[x.id].route.explored]
        for name, (route, usage) in (await self._routes(state, again, epsilon)).items():
            routed[name] = RoutedCall(route, usage + routed[name].usage)
        return state, routed, (back,)

    async def _routes(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> dict[str, RoutedCall]:
        """By example; one whose model cannot be reached tries again by itself."""
        routed: dict[str, RoutedCall] = {}

        async def route(example: Example) -> None:
            draws = self.config.randomness.at(state.step, example.id)
            with suppress(LMError):
                routed[example.id] = await self.router.route(example, state, epsilon, draws)

        await gather_all(route(example) for example in batch)
        return routed

    def after(
        self, before: State, rewrites: Sequence[Rewrite], traces: Sequence[Trace], state: State
    ) -> State:
        """`state`, with θ on trial where it was rewritten."""
        rewritten = any(r.kept and r.variable == "encoder" for r in rewrites)
        if not rewritten or self.config.encoder.max_fallback >= 1.0:
            return state
        routes = [t.rollout.route for t in traces if t.rollout.route is not None]
        asked = [route.fallback for route in routes if not route.explored]
        share = sum(asked) / len(asked) if asked else 0.0
        return replace(state, trial=before.trial or ThetaTrial(before.parameters.encoder, share))
