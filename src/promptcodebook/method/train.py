"""Algorithm 1. Reading order is execution order; it knows neither disk nor screen.

Deviations from the printed algorithm, all switchable:
- `minibatch`: the examples of a batch run their chains side by side, with r̄ and Θ from its start;
  each variable's gradients are gathered and it is rewritten once. `online` is the printed loop.
- θ learns only from routes it chose itself (`update.encoder_on_explored`).
- `accept: improve`, `improve_each` keep rewrites only if examples do not fare worse with them.
- A rewritten θ with which too many of the next routes fall back is taken back, and that batch is
  routed again (`encoder.max_fallback`).
- θ and φ change only for what two examples of a batch complain of alike (`update.shared_by`).
- `router.kind: outcomes` routes by what rollouts earned, in place of E_θ and ε-greedy; with
  `router.repeats: no` a solved example gives its place in a batch to an unsolved one.
- A solved example is not critiqued: its critique is empty by definition (`critic.skip_solved`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from promptcodebook.base.incidents import Incident, Tally, no_tally
from promptcodebook.base.randomness import Draws
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.method.acceptance import Candidate, Rescore
from promptcodebook.method.critic import (
    Attribution,
    Critic,
    History,
    additivity_residual,
    penalty,
    rate,
    unit_reward,
)
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.exploration import Exploring, RoutedCall, Router, epsilon_at
from promptcodebook.method.failures import FailureWatch, attempt, gather_all
from promptcodebook.method.policy import Composer
from promptcodebook.method.safety import LOOK, Harmful, find_orders, with_harm
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.theta_guard import ThetaGuard
from promptcodebook.method.update import Updater, apply_rewrites, collect_gradients
from promptcodebook.types import Check, Critique, Example, Failure, Gradients, Rollout, Step, Trace


async def train(
    learner: Learner, schedule: Schedule, state: State, past: Iterable[Step] = ()
) -> AsyncGenerator[Step, None]:
    """PCO (Algorithm 1) from `state` to the end of the schedule, one Step per update; `past` are a
    resumed run's steps before, latest first. Raises Stop, and TooManyFailures when a batch does."""
    config = learner.config
    watch = FailureWatch(min(config.update.batch_size, len(schedule.examples)))
    watch.recall(past, learner.credit.asks_about)
    for index, epoch, planned in schedule.updates(start=state.step):
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)
        draws = config.randomness.at(index, "batch")
        batch = learner.router.attend(planned, schedule.examples, state, draws)

        # Beyond the paper: a θ on trial routes first, the batch as one, and may be taken back.
        state, routed, back = await learner.guard.before(state, batch, epsilon)

        # Route and execute; critique and assign credit: each example on its own chain.
        traces = await gather_all(
            [learner.trace(x, state, epsilon, routed.get(x.id)) for x in batch]
        )
        watch.see_rollouts(traces)
        watch.see_critiques(t for t in traces if learner.credit.asks_about(t))

        # Update textual components.
        pending = collect_gradients(state.parameters, traces, config)
        pending = [p for p in pending if not (back and p.variable == "encoder")]
        rewrites = await learner.updater.rewrite_all(pending, index)
        watch.see_rewrites(rewrites)
        candidate = Candidate(rewrites, traces, batch, state, epsilon)
        accepted, judged = await learner.rescore.accept(candidate)
        kept = {r.variable for r in accepted if r.kept}
        parameters = apply_rewrites(state.parameters, accepted)

        # Update routing statistics.
        before, state = state, state.advance(parameters, [*traces, *judged], config.explore.alpha)

        # Beyond the paper: θ's trial, and a router that learns from outcomes.
        state = learner.guard.after(before, accepted, traces, state)
        state = learner.router.learn(before, traces, state)
        yield Step(
            index=index,
            epoch=epoch,
            epsilon=epsilon,
            traces=tuple(traces),
            rewrites=(*back, *accepted),
            parameters=state.parameters,
            ema=state.statistics.ema,
            success=state.statistics.success,
            selected=state.statistics.selected,
            evidence=state.statistics.evidence,
            reverted=tuple(r.variable for r in rewrites if r.kept and r.variable not in kept),
            ranking=state.statistics.ranking,
            harmful=state.harmful,
            trial=state.trial,
        )


@dataclass(frozen=True)
class Learner:
    """The parts Algorithm 1 calls."""

    config: Config
    composer: Composer
    router: Router
    trial: Trial
    credit: Credit
    updater: Updater
    rescore: Rescore
    guard: ThetaGuard

    async def trace(
        self, example: Example, state: State, epsilon: float, routed: RoutedCall | None = None
    ) -> Trace:
        """One example's chain, lines 5 to 13; `routed` = its route, if there is one already."""
        draws = self.config.randomness.at(state.step, example.id)
        prompter = Exploring(self.composer, self.router, state, epsilon, routed)
        rollout = await roll_out(prompter, self.trial, example, draws)
        if rollout.reward is None:
            return Trace(rollout)
        return await self.credit.trace(example, rollout, state, draws)


@dataclass(frozen=True)
class Credit:
    """Critic, attribution and the adversary of the critic, with the settings that switch them."""

    critic: Critic
    attribution: Attribution
    config: Config
    orders: Check | None = None
    tally: Tally = no_tally

    async def trace(self, example: Example, rollout: Rollout, state: State, draws: Draws) -> Trace:
        """The trace of a rollout that was made under `state`."""
        book, scale = state.parameters.codebook, self.config.reward_range
        history = History(example, book, rollout, scale, self.config.critic.sees_reward)
        return await self.assign(state.parameters.critic, history, draws)

    async def judge(self, example: Example, rollout: Rollout, state: State) -> Trace:
        """The same with verdict and ρ alone: nothing is rewritten from it."""
        update = self.config.update.model_copy(update={"text_updates": False})
        verdicts = replace(self, config=self.config.model_copy(update={"update": update}))
        draws = self.config.randomness.at(state.step, example.id)
        return await verdicts.trace(example, rollout, state, draws)

    async def assign(self, psi: str, history: History, draws: Draws) -> Trace:
        """The trace with verdict, ρ and gradients: without those where the critic fails, and with
        the verdict and its ρ where a gradient fails (method decision 15)."""
        rollout, route, config = history.rollout, history.route, self.config
        assert rollout.reward is not None, "only scored rollouts are critiqued"
        unit = unit_reward(rollout.reward, config.reward_range)
        theta = (
            "Its reply was not a valid choice, even when asked again, so that other "
            f"instincts were added to it: {route.fault}."
        )
        filled_up = route.fallback and config.update.text_updates
        trace = Trace(rollout, unit, gradients=Gradients(encoder=theta if filled_up else ""))
        if not self._wanted:
            return trace
        harmful: Harmful = {}
        if self.critic.clause is not None:
            harmful = find_orders(self.orders, history.codebook, route.indices)
        if not self.asks_about(trace):
            trace = replace(trace, verdict=Critique(1.0, ""))
            # The clause reads one solved example in ten; a critique that fails says nothing.
            if self.critic.clause is not None and draws.generator("safety").random() < LOOK:
                judged, _ = await attempt("critique", self._judge(psi, history, draws), LMError)
                harmful = {**harmful, **judged[0].harmful} if judged is not None else harmful
            return self._mark(trace, harmful)
        judged, failure = await attempt("critique", self._judge(psi, history, draws), LMError)
        if judged is None:
            return self._mark(replace(trace, failure=failure), harmful)
        verdict, blamed = judged
        rho = penalty(verdict, unit, config.critic.penalty_weight)
        trace = replace(trace, verdict=verdict, penalty=rho)
        if config.update.text_updates:
            trace = await self._attribute(psi, history, draws, trace, blamed)
        return self._mark(trace, {**harmful, **verdict.harmful})

    async def _judge(
        self, psi: str, history: History, draws: Draws
    ) -> tuple[Critique, Gradients | None]:
        """ℓ_text; with `critic.stages: 1` the same call has assigned the blame as well."""
        if self.config.critic.stages == 1:
            return await self.critic.critique(psi, history, draws)
        return await self.critic.verdict(psi, history, draws), None

    async def _attribute(
        self, psi: str, history: History, draws: Draws, trace: Trace, blamed: Gradients | None
    ) -> Trace:
        """The trace with g_θ, g_φ, g_C and g_ψ. A gradient that fails costs no other."""
        verdict, unit, critic = trace.verdict, trace.unit, self.config.critic
        assert verdict is not None and unit is not None

        async def split() -> Gradients:
            if blamed is not None:
                return blamed
            if not verdict.feedback:
                return self.attribution.split_nothing()
            return await self.attribution.split(history, verdict, draws)

        async def adversary_gradient() -> Gradients | None:
            if not critic.trainable:
                return None
            return await self.critic.adversary_gradient(psi, history, verdict, draws)

        async def tried(
            stage: str, call: Callable[[], Awaitable[Gradients | None]]
        ) -> tuple[Gradients | None, Failure | None]:
            # The call is made in here, since Ctrl-C may end the chain before it begins.
            return await attempt(stage, call(), LMError)

        (parts, not_split), (adversary, failed) = await gather_all(
            [tried("attribute", split), tried("adversary", adversary_gradient)]
        )
        parts, adversary = parts or Gradients(), adversary or Gradients()
        severity = {**parts.severity, **adversary.severity}
        whole = replace(parts, critic=adversary.critic, severity=severity)
        gradients = rate(whole, unit, critic.penalty_weight)
        residual = additivity_residual(trace.penalty, gradients)
        if history.route.fallback:
            gradients = replace(gradients, encoder=trace.gradients.encoder)
        return replace(trace, gradients=gradients, residual=residual, failure=not_split or failed)

    def _mark(self, trace: Trace, harmful: Harmful) -> Trace:
        if harmful:
            self.tally(Incident.HARMFUL)
        critic, update = self.config.critic, self.config.update
        return with_harm(trace, harmful, critic.penalty_weight, rewrites=update.text_updates)

    def asks_about(self, trace: Trace) -> bool:
        """Whether the critic is asked: not about what has no reward, nor about what is solved."""
        solved = trace.unit is not None and trace.unit >= 1.0
        skipped = solved and self.config.critic.skip_solved
        return self._wanted and trace.unit is not None and not skipped

    @property
    def _wanted(self) -> bool:
        """Whether a critique teaches anything: texts, or r̄, by which E_θ's routes are explored."""
        return self.config.update.text_updates or not self.config.learns_routes
