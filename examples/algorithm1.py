"""Prompt Codebook Optimization, Algorithm 1 of the paper, bare: one example after the other.

    python examples/algorithm1.py [MODEL]     a few steps on SmolLM2, or on another, say `simulated`

The numbers are the algorithm's lines. `pco train` runs the same steps, with batches, storage and
safeguards around them: src/promptcodebook/method/train.py. A test holds the two together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from promptcodebook.assemble import Assembled, assemble
from promptcodebook.base.incidents import no_tally
from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Usage
from promptcodebook.config import Config, load_config
from promptcodebook.errors import LMError
from promptcodebook.method.critic import (
    Attribution,
    Critic,
    History,
    additivity_residual,
    penalty,
    rate,
    unit_reward,
)
from promptcodebook.method.executor import Trial
from promptcodebook.method.exploration import epsilon_at, success_weighted
from promptcodebook.method.init import Initialiser
from promptcodebook.method.policy import Composer
from promptcodebook.method.rewrite_checks import LengthCheck
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.update import Updater, apply_rewrites, collect_gradients
from promptcodebook.types import Critique, Example, Rewrite, Rollout, Route, Trace

SETTINGS = {
    "preset": "full",
    "task": "houserules_six",
    "roles": {"executor": {"max_tokens": 64, "temperature": 0.0}},
    "size": 6,
    "select": 2,
    "update": {"mode": "online", "batch_size": 3, "epochs": 3, "shared_by": 1},
}


@dataclass(frozen=True)
class Parts:
    """E_θ and G_φ, M with its reward, D_ψ, the attribution of its verdicts, and LLM_upd."""

    composer: Composer
    trial: Trial
    critic: Critic
    attribution: Attribution
    updater: Updater

    @classmethod
    def of(cls, assembled: Assembled) -> Parts:
        """Those of a configuration with its data and models."""
        config, ask, templates = assembled.config, assembled.models.ask, assembled.plan.templates
        return cls(
            assembled.composer(),
            assembled.trial(),
            Critic(ask, templates, no_tally),
            Attribution(ask, templates, no_tally),
            Updater(ask, templates, config, LengthCheck(config.update), no_tally),
        )


async def learn(
    parts: Parts, examples: Sequence[Example], state: State, config: Config
) -> AsyncIterator[tuple[Trace, tuple[Rewrite, ...], State]]:
    """Algorithm 1 from `state`, Θ = {θ, φ, C, ψ} with r̄ (lines 1 and 2)."""
    plan = Schedule(examples, config.update, config.randomness).updates(state.step)
    for step, epoch, [x] in plan:  # 3, 4: epochs of shuffled examples
        draws = config.randomness.at(step, x.id)
        theta, statistics = state.parameters, state.statistics
        epsilon = epsilon_at(epoch, config.explore, config.update.epochs)

        # 5, 6: explore by SuccWtd(r̄, S, τ), or ask the encoder.
        rand = draws.generator("explore")
        if rand.random() < epsilon:
            drawn = success_weighted(statistics.ema, config.select, config.explore.tau, rand)
            z, routing = Route(drawn, explored=True), Usage()
        else:
            z, _, routing = await parts.composer.route(theta, statistics, x, draws)

        # 7: compose C[z] into a prompt. 8, 9: answer with it, and earn a reward.
        p, composing = await parts.composer.compose(theta, z, x, draws)
        rollout = Rollout(x.id, z, p.text, usage=routing + composing)
        rollout = await parts.trial.run(x, p, draws, rollout)

        # 10 to 12: say what went wrong, and which text is to blame. 13, 14: rewrite these texts.
        trace = await criticise(parts, x, rollout, state, config, draws)
        pending = collect_gradients(theta, [trace], config)
        rewrites = await parts.updater.rewrite_all(pending, step)

        # 15: r̄_k <- (1 - α) r̄_k + α (r - ρ) for k in z. The decay of ε is in `epsilon_at`.
        state = state.advance(apply_rewrites(theta, rewrites), [trace], config.explore.alpha)
        yield trace, rewrites, state


async def criticise(
    parts: Parts, x: Example, rollout: Rollout, state: State, config: Config, draws: Draws
) -> Trace:
    """The verdict on a rollout, its penalty ρ, and the gradients g_θ, g_φ, g_C and g_ψ."""
    if rollout.reward is None:
        return Trace(rollout)
    unit = unit_reward(rollout.reward, config.reward_range)
    if unit >= 1.0 and config.critic.skip_solved:  # ours: it has nothing to criticise
        return Trace(rollout, unit, Critique(1.0, ""))
    book, psi = state.parameters.codebook, state.parameters.critic
    history = History(x, book, rollout, config.reward_range, config.critic.sees_reward)
    try:
        verdict = await parts.critic.verdict(psi, history, draws)
        blamed = parts.attribution.split_nothing()
        if verdict.feedback:
            blamed = await parts.attribution.split(history, verdict, draws)
        adversary = await parts.critic.adversary_gradient(psi, history, verdict, draws)
    except LMError:  # a critic that cannot be understood teaches nothing
        return Trace(rollout, unit)
    weight = config.critic.penalty_weight
    severity = {**blamed.severity, **adversary.severity}
    gradients = rate(replace(blamed, critic=adversary.critic, severity=severity), unit, weight)
    rho = penalty(verdict, unit, weight)
    residual = additivity_residual(rho, gradients)
    return Trace(rollout, unit, verdict, rho, gradients, residual=residual)


async def main(model: str) -> None:
    config = load_config(SETTINGS, {"lm": model})
    assembled = assemble(config)
    plan, parts = assembled.plan, Parts.of(assembled)
    first = Initialiser(assembled.models.ask, plan.templates, config)
    state = await first.first(plan.task.seeds)
    try:
        async for trace, rewrites, after in learn(parts, plan.dataset.train, state, config):
            route = trace.rollout.route.indices if trace.rollout.route else ()
            print(f"\nstep {after.step}: route {route}, reward {trace.unit}, ρ {trace.penalty:.2f}")
            for rewrite in filter(lambda rewrite: rewrite.kept, rewrites):
                print(f"  {rewrite.variable}: {rewrite.after}")
    finally:
        await assembled.models.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
