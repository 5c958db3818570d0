"""Which of a step's rewrites are kept: `update.accept` names the rule (method decision 9).

A new rule is a function here with its line in `RULES`, or another package's entry point of the
group `promptcodebook.acceptance`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError, did_you_mean, registered
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Composer, Deployed, Exploring, Router
from promptcodebook.method.state import State
from promptcodebook.method.update import apply_rewrites
from promptcodebook.types import Example, Rewrite, Rollout, Route, Trace, Variable

GROUP = "promptcodebook.acceptance"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step's rewrites, those a check refused among them, and the batch that led to them."""

    rewrites: tuple[Rewrite, ...]
    traces: Sequence[Trace]
    batch: Sequence[Example]
    state: State
    epsilon: float

    @property
    def tried(self) -> list[Rewrite]:
        """Those that passed the checks. ψ is exempt, since the reward does not depend on it, and a
        harmful text's rewrite, since it must go even where it pays."""
        kept = (r for r in self.rewrites if r.kept and r.origin != "safety")
        return [r for r in kept if r.variable != "critic"]

    def refuse(self, reasons: Mapping[Variable, str]) -> tuple[Rewrite, ...]:
        """All rewrites in their order, those with a reason refused."""
        return tuple(
            replace(r, kept=False, reason=reasons[r.variable]) if r.variable in reasons else r
            for r in self.rewrites
        )


Judged = tuple[tuple[Rewrite, ...], Sequence[Trace]]
"""The rewrites, those that a rule refuses with `kept` False and why; and traces of other
examples."""
Run = tuple[Example, Rollout]
"""An example as it went with the parameters as they are; it has a reward."""
Pair = tuple[Rollout, Rollout]
"""A rollout, and the same example's under other parameters."""


@dataclass(frozen=True)
class Rerun:
    """Runs the examples that judge a step's rewrites again, with the draws they had: the batch's
    own or, with `accept_on: others`, as many of the `pool` outside of it. A trace by `judge` has ρ
    and no gradients: it joins r̄, and nothing is rewritten from it."""

    config: Config
    composer: Composer
    trial: Trial
    router: Router
    pool: Sequence[Example]
    judge: Callable[[Example, Rollout, State], Awaitable[Trace]]

    async def before(self, proposal: Proposal) -> tuple[list[Run], Sequence[Trace]]:
        """The runs under Θ as it is that have a reward, and the traces of those outside the
        batch."""
        state = proposal.state
        chosen: Sequence[Example] = ()
        if self.config.update.accept_on == "others":
            inside = {example.id for example in proposal.batch}
            outside = [example for example in self.pool if example.id not in inside]
            draw = self.config.randomness.at(state.step, "accept").generator("others")
            chosen = sorted(outside, key=lambda _: draw.random())[: len(proposal.batch)]
        if not chosen:
            rollouts = [trace.rollout for trace in proposal.traces]
            return _rewarded(proposal.batch, rollouts), ()
        prompter = Exploring(self.composer, self.router, state, proposal.epsilon)
        draws = [self.config.randomness.at(state.step, x.id) for x in chosen]
        rollouts = await gather_all(
            roll_out(prompter, self.trial, x, d) for x, d in zip(chosen, draws, strict=True)
        )
        runs = _rewarded(chosen, rollouts)

        async def judged(run: Run) -> Trace:
            return await self.judge(*run, state)

        return runs, await gather_all(map(judged, runs))

    async def accept(self, proposal: Proposal) -> Judged:
        """The judgement of the rule `update.accept`."""
        if not proposal.tried:
            return proposal.rewrites, ()
        return await find_rule(self.config.update.accept)(self, proposal)

    async def again(
        self,
        rewrites: Sequence[Rewrite],
        runs: Sequence[Run],
        state: State,
        held: Callable[[Route], bool],
    ) -> list[Pair]:
        """Each run beside its repetition with these rewrites; `held` says which routes stay."""
        state = replace(state, parameters=apply_rewrites(state.parameters, rewrites))
        deployed = Deployed(self.composer, state.parameters, state.statistics)

        async def once_more(run: Run) -> Pair:
            example, first = run
            route, prompter = first.route, deployed
            if route is not None and held(route):
                prompter = Exploring(self.composer, self.router, state, 0.0, (route, Usage()))
            draws = self.config.randomness.at(state.step, example.id)
            return first, await roll_out(prompter, self.trial, example, draws)

        return await gather_all(map(once_more, runs))

    def worse(self, pairs: Sequence[Pair]) -> str | None:
        """Why the examples fare worse than before, or too few could be run again; None: they do
        not."""
        both = [(a.reward, b.reward) for a, b in pairs]
        known = [(a, b) for a, b in both if a is not None and b is not None]
        if len(known) * 2 < len(pairs):
            return f"{len(pairs) - len(known)} of {len(pairs)} examples could not be run again"
        if not known:
            return None
        old, new = (sum(column) / len(known) for column in zip(*known, strict=True))
        others = self.config.update.accept_on == "others"
        name = "the reward on other examples" if others else "the batch's reward"
        return None if new >= old else f"{name} fell from {old:.4f} to {new:.4f}"


def _rewarded(examples: Sequence[Example], rollouts: Sequence[Rollout]) -> list[Run]:
    runs = zip(examples, rollouts, strict=True)
    return [(x, rollout) for x, rollout in runs if rollout.reward is not None]


Rule = Callable[[Rerun, Proposal], Awaitable[Judged]]
"""Asked only where a rewrite passed the checks; may run examples again, and raises only Stop."""


async def always(rerun: Rerun, proposal: Proposal) -> Judged:
    """What passed the checks is kept: Algorithm 1."""
    return proposal.rewrites, ()


async def improve(rerun: Rerun, proposal: Proposal) -> Judged:
    """All or none stay, by the examples under all rewrites at once, explored routes fixed."""
    runs, traces = await rerun.before(proposal)
    tried = proposal.tried
    pairs = await rerun.again(tried, runs, proposal.state, lambda route: route.explored)
    reason = rerun.worse(pairs)
    return proposal.refuse({r.variable: reason for r in tried} if reason else {}), traces


async def improve_each(rerun: Rerun, proposal: Proposal) -> Judged:
    """Each rewrite stays only if the examples that it touches do not fare worse with it.

    θ is tried where the encoder routes, φ and all new instincts under the routes there were, each
    against the run without any rewrite. What touches no example is kept.
    """
    runs, traces = await rerun.before(proposal)
    instincts = [r for r in proposal.tried if isinstance(r.variable, int)]
    parts = [[r] for r in proposal.tried if not isinstance(r.variable, int)]
    refused: dict[Variable, str] = {}

    async def judge(part: Sequence[Rewrite]) -> None:
        held = part[0].variable != "encoder"
        touched = [run for run in runs if any(_touches(r.variable, run[1]) for r in part)]
        pairs = await rerun.again(part, touched, proposal.state, lambda route: held)
        for r in part:
            reason = rerun.worse([pair for pair in pairs if _touches(r.variable, pair[0])])
            if reason is not None:
                refused[r.variable] = reason

    await gather_all(map(judge, [*parts, instincts] if instincts else parts))
    return proposal.refuse(refused), traces


def _touches(variable: Variable, rollout: Rollout) -> bool:
    """Whether the variable had a part in the run: θ in the routes that were not explored."""
    route = rollout.route
    if route is None:
        return False
    if isinstance(variable, int):
        return variable in route.indices
    return variable != "encoder" or not route.explored


RULES: Mapping[str, Rule] = {"always": always, "improve": improve, "improve_each": improve_each}


def find_rule(name: str) -> Rule:
    """The rule of that name, ours or an installed package's. ConfigError: unknown name."""
    if name in RULES:
        return RULES[name]
    plugins = registered(GROUP)
    if name in plugins.names:
        return plugins[name].load()
    known = (*RULES, *sorted(plugins.names))
    raise ConfigError(
        f"update.accept: unknown rule {name!r}{did_you_mean(name, known)}",
        hint=f"choose one of: {', '.join(known)}",
    )
