"""Algorithm 1. Reading order is execution order; it knows neither disk nor screen.

Deviations from the printed algorithm, all switchable:
- `minibatch`: the examples of a batch run their chains side by side, with r̄ and Θ from its start;
  each variable's gradients are gathered and it is rewritten once. `online` is the printed loop.
- θ learns only from routes it chose itself (`update.encoder_on_explored`).
- `accept: improve` keeps a batch's rewrites only if the batch does not fare worse with them.
- A solved example is not critiqued: its critique is empty by definition (`critic.skip_solved`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from promptcodebook.config import Config
from promptcodebook.method.accept import Accept
from promptcodebook.method.broken import broken_part, stop_if_no_updater, too_many
from promptcodebook.method.chains import all_of
from promptcodebook.method.credit import Credit
from promptcodebook.method.critic import History
from promptcodebook.method.draws import Draws
from promptcodebook.method.explore import Explorer, epsilon_at
from promptcodebook.method.policy import Policy, Trial, rollout_of
from promptcodebook.method.schedule import Schedule
from promptcodebook.method.state import State
from promptcodebook.method.update import Updater, applied, gather_gradients
from promptcodebook.types import Example, Route, Step, Trace, Usage

__all__ = ["Learner", "stop_if_broken", "train"]


async def train(learner: Learner, schedule: Schedule, state: State) -> AsyncGenerator[Step, None]:
    """PCO (Algorithm 1) from `state` to the end of the schedule, one Step per update.

    Raises Stop when the budget or the user ends it, TooManyFailures when a batch mostly fails.
    """
    config = learner.config
    latest: deque[Trace] = deque(maxlen=min(config.update.batch_size, len(schedule.examples)))
    for index, epoch, batch in schedule.updates(start=state.step):
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)

        # Route and execute; critique and assign credit: each example on its own chain.
        traces = await all_of([learner.trace(x, state, epsilon) for x in batch])
        latest.extend(traces)
        stop_if_broken(latest)

        # Update textual components.
        pending = gather_gradients(state.parameters, traces, config)
        rewrites = await learner.updater.rewrite_all(pending, index)
        stop_if_no_updater(rewrites)
        rewrites, reverted = await learner.accept.judge(rewrites, traces, batch, state)
        parameters = applied(state.parameters, rewrites)

        # Update routing statistics.
        state = state.updated(parameters, traces, config.explore.alpha)
        yield Step(
            index=index,
            epoch=epoch,
            epsilon=epsilon,
            traces=tuple(traces),
            rewrites=rewrites,
            parameters=parameters,
            ema=state.standing.ema,
            success=state.standing.success,
            selected=state.standing.selected,
            reverted=reverted,
        )


@dataclass(frozen=True)
class Learner:
    """The parts Algorithm 1 calls, built by the session."""

    config: Config
    policy: Policy
    explorer: Explorer
    trial: Trial
    credit: Credit
    updater: Updater
    accept: Accept

    async def trace(self, example: Example, state: State, epsilon: float) -> Trace:
        """One example's chain: route -> compose -> execute -> critique -> attribute."""
        draws = Draws(self.config.seed, state.step, example.id)
        rollout = await rollout_of(_Exploring(self, state, epsilon), self.trial, example, draws)
        if rollout.reward is None:
            return Trace(rollout)
        history = History(example, state.parameters.codebook, rollout)
        return await self.credit.assign(state.parameters.critic, history, draws)


@dataclass(frozen=True)
class _Exploring:
    """The policy in training: with probability ε, z ~ SuccWtd instead of E_θ."""

    learner: Learner
    state: State
    epsilon: float

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]:
        learner, state = self.learner, self.state
        draw = draws.generator("explore")
        if learner.explorer.explores(self.epsilon, draw):
            route, usage = learner.explorer.route(state.standing.ema, draw), Usage()
        else:
            route, usage = await learner.policy.route(
                state.parameters, state.standing, example, draws
            )
        prompt, composing = await learner.policy.compose(state.parameters, route, example, draws)
        return route, prompt, usage + composing


def stop_if_broken(latest: deque[Trace]) -> None:
    """More than half of a batch failed: going on would only spend money.

    `latest` holds the last rollouts, a batch's worth at the most: an `online` update is one
    example, and one bad rollout is data.
    """
    failures = [failure for t in latest if (failure := broken_part(t)) is not None]
    assert latest.maxlen is not None, "the window is bounded"
    if len(failures) * 2 > latest.maxlen:
        raise too_many(failures, tuple(latest), "")
