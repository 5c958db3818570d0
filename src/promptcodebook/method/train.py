"""Algorithm 1. Reading order is execution order; it knows neither disk nor screen.

Deviations from the printed algorithm, all switchable:
- `minibatch`: the examples of a batch run their chains side by side, with r̄ and Θ from its start;
  each variable's gradients are gathered and it is rewritten once. `online` is the printed loop.
- θ learns only from routes it chose itself (`update.encoder_on_explored`).
- `accept: improve`, `improve_each` keep rewrites only if examples do not fare worse with them.
- A rewritten θ with which too many of the next routes fall back is taken back, and that batch is
  routed again (`encoder.max_fallback`).
- θ and φ change only for what two examples of a batch complain of alike (`update.shared_by`).
- `maintain_every` has the codebook tidied now and then: grab-bags, twins, and what nobody picks.
- `router.kind: outcomes` routes by what rollouts came to, in place of E_θ and ε-greedy; with
  `router.repeats: no` a solved example gives its place in a batch to an unsolved one.
- A solved example is not critiqued: its critique is empty by definition (`critic.skip_solved`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass

from promptcodebook.config import Config
from promptcodebook.method.accept import Acceptance, Proposal
from promptcodebook.method.critic import Credit
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.failures import FailureWatch, gather_all
from promptcodebook.method.guard import RouteGuard
from promptcodebook.method.maintain import Maintainer, tidied
from promptcodebook.method.policy import Composer, Exploring, Made, Router, epsilon_at
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.update import Updater, apply_rewrites, collect_gradients
from promptcodebook.randomness import Randomness
from promptcodebook.types import Example, Rewrite, Step, Trace, Variable


async def train(
    learner: Learner,
    schedule: Schedule,
    state: State,
    recent: Sequence[Trace] = (),
    past: Iterable[Step] = (),
) -> AsyncGenerator[Step, None]:
    """PCO (Algorithm 1) from `state` to the end of the schedule, one Step per update. Where
    training goes on from a stored step, `recent` are the traces since the last maintenance, and
    `past` the steps before, latest first.

    Raises Stop when the budget or the user ends it, TooManyFailures when a batch mostly fails.
    """
    config = learner.config
    watch = FailureWatch(min(config.update.batch_size, len(schedule.examples)))
    watch.recall(past, learner.credit.asks_about)
    since: list[Trace] = list(recent)
    for index, epoch, planned in schedule.updates(start=state.step):
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)
        draws = learner.randomness.at(index, "batch")
        batch = learner.router.attend(planned, schedule.examples, state, draws)

        # A θ on trial routes first, the batch as one, and may be what it was again.
        state, made, back = await learner.guard.settle(state, batch, epsilon)

        # Route and execute; critique and assign credit: each example on its own chain.
        traces = await gather_all([learner.trace(x, state, epsilon, made.get(x.id)) for x in batch])
        watch.see_rollouts(traces)
        watch.see_critiques(t for t in traces if learner.credit.asks_about(t))

        # Update textual components.
        pending = collect_gradients(state.parameters, traces, config)
        pending = [p for p in pending if not (back and p.variable == "encoder")]
        rewrites = await learner.updater.rewrite_all(pending, index)
        watch.see_rewrites(rewrites)
        proposal = Proposal(rewrites, traces, batch, state, epsilon)
        accepted, judged = await learner.acceptance(proposal)
        parameters = apply_rewrites(state.parameters, accepted)

        # Update routing statistics.
        before, state = state, state.advance(parameters, [*traces, *judged], config.explore.alpha)
        state = learner.guard.watch(before, accepted, traces, state)

        # Tidy the codebook, every so many steps.
        tidy, since = await learner.tidy(state, [*since, *traces], index)
        state = tidied(state, tidy)

        # Learn to route from outcomes, where the router does.
        state = learner.router.learn(before, traces, state)
        yield Step(
            index=index,
            epoch=epoch,
            epsilon=epsilon,
            traces=tuple(traces),
            rewrites=(*back, *accepted, *tidy),
            parameters=state.parameters,
            ema=state.statistics.ema,
            success=state.statistics.success,
            selected=state.statistics.selected,
            evidence=state.statistics.evidence,
            reverted=_reverted(rewrites, accepted),
            ranking=state.statistics.ranking,
            harmful=state.harmful,
            trial=state.trial,
        )


def _reverted(rewrites: Sequence[Rewrite], accepted: Sequence[Rewrite]) -> tuple[Variable, ...]:
    """What the acceptance rule took back of the rewrites that passed."""
    kept = {r.variable for r in accepted if r.kept}
    return tuple(r.variable for r in rewrites if r.kept and r.variable not in kept)


@dataclass(frozen=True)
class Learner:
    """The parts Algorithm 1 calls."""

    config: Config
    randomness: Randomness
    composer: Composer
    router: Router
    guard: RouteGuard
    trial: Trial
    credit: Credit
    updater: Updater
    acceptance: Acceptance
    maintainer: Maintainer

    async def trace(
        self, example: Example, state: State, epsilon: float, made: Made | None = None
    ) -> Trace:
        """One example's chain: route (unless it is `made`) -> compose -> execute -> critique ->
        attribute."""
        draws = self.randomness.at(state.step, example.id)
        prompter = Exploring(self.composer, self.router, state, epsilon, made)
        rollout = await roll_out(prompter, self.trial, example, draws)
        if rollout.reward is None:
            return Trace(rollout)
        return await self.credit.trace(example, rollout, state, draws)

    async def tidy(
        self, state: State, since: list[Trace], step: int
    ) -> tuple[tuple[Rewrite, ...], list[Trace]]:
        """What maintenance rewrites after `step`, and the traces to remember for its next round."""
        every = self.maintainer.every
        if not every:
            return (), []
        if (step + 1) % every:
            return (), since
        return await self.maintainer.maintain(state, since, step), []
