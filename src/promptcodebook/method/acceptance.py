"""Which of a step's rewrites are kept: `update.accept` names the rule (method decision 9). A rule
is a function below with its line in `RULES`, or a package's entry point of `GROUP`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError, plug_in
from promptcodebook.method.executor import Trial, average, roll_out
from promptcodebook.method.exploration import Exploring, RoutedCall, Router
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Composer, Deployed
from promptcodebook.method.state import State
from promptcodebook.method.update import apply_rewrites
from promptcodebook.types import Example, Rewrite, Rollout, Route, Trace, Variable

GROUP = "promptcodebook.acceptance"


@dataclass(frozen=True, slots=True)
class Candidate:
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


# The rewrites, those that a rule refuses not kept and why; and traces of other examples.
Acceptance = tuple[tuple[Rewrite, ...], Sequence[Trace]]
# An example as it went with the parameters as they are; it has a reward.
ScoredRollout = tuple[Example, Rollout]
RolloutPair = tuple[Rollout, Rollout]  # a rollout, and the same example's under other parameters


@dataclass(frozen=True)
class Rescore:
    """Runs the examples that judge a step's rewrites again, with the draws they had: the batch's
    own or, with `accept_on: others`, as many of the `pool` outside of it. Of several `samples` the
    mean counts. A trace by `judge` has ρ and no gradients: it joins r̄ alone."""

    config: Config
    composer: Composer
    trial: Trial
    router: Router
    pool: Sequence[Example]
    judge: Callable[[Example, Rollout, State], Coroutine[Any, Any, Trace]]

    async def before(self, candidate: Candidate) -> tuple[list[ScoredRollout], Sequence[Trace]]:
        """The rewarded runs under Θ as it is, and the traces of those outside the batch."""
        state, chosen = candidate.state, list[Example]()
        if self.config.update.accept_on == "others":
            inside = {example.id for example in candidate.batch}
            outside = [example for example in self.pool if example.id not in inside]
            draw = self.config.randomness.at(state.step, "accept").generator("others")
            chosen = sorted(outside, key=lambda _: draw.random())[: len(candidate.batch)]
        prompter = Exploring(self.composer, self.router, state, candidate.epsilon)
        made = await gather_all(
            roll_out(prompter, self.trial, x, self.config.randomness.at(state.step, x.id))
            for x in chosen
        )
        rollouts = made if chosen else [trace.rollout for trace in candidate.traces]
        pairs = zip(chosen or candidate.batch, rollouts, strict=True)
        runs = [(x, rollout) for x, rollout in pairs if rollout.reward is not None]
        judged = await gather_all(self.judge(*run, state) for run in runs if chosen)
        means = await gather_all(self._mean(*run, state) for run in runs)
        return [(x, mean) for (x, _), mean in zip(runs, means, strict=True)], judged

    async def _mean(self, example: Example, first: Rollout, state: State) -> Rollout:
        """The rollout with the mean reward of all `samples`; the others keep its route."""
        if first.route is None:
            return first
        prompter = Exploring(
            self.composer, self.router, state, 0.0, RoutedCall(first.route, Usage())
        )
        others = self.config.randomness.runs(self.config.samples)[1:]
        draws = [each.at(state.step, example.id) for each in others]
        more = await gather_all(roll_out(prompter, self.trial, example, each) for each in draws)
        return average([first, *more])

    async def accept(self, candidate: Candidate) -> Acceptance:
        """The judgement of the rule `update.accept`."""
        if not candidate.tried:
            return candidate.rewrites, ()
        return await find_rule(self.config.update.accept)(self, candidate)

    async def again(
        self,
        rewrites: Sequence[Rewrite],
        runs: Sequence[ScoredRollout],
        state: State,
        held: Callable[[Route], bool],
    ) -> list[RolloutPair]:
        """Each run beside its repetition with these rewrites; `held` says which routes stay."""
        state = replace(state, parameters=apply_rewrites(state.parameters, rewrites))
        deployed = Deployed(self.composer, state.parameters, state.statistics)

        async def once_more(run: ScoredRollout) -> RolloutPair:
            example, first = run
            route, prompter = first.route, deployed
            if route is not None and held(route):
                prompter = Exploring(
                    self.composer, self.router, state, 0.0, RoutedCall(route, Usage())
                )
            draws = self.config.randomness.at(state.step, example.id)
            made = await roll_out(prompter, self.trial, example, draws)
            return first, await self._mean(example, made, state)

        return await gather_all(map(once_more, runs))

    def worse(self, pairs: Sequence[RolloutPair]) -> str | None:
        """Why the examples fare worse, or too few could be run again; None: they do not."""
        both = [(a.reward, b.reward) for a, b in pairs]
        known = [(a, b) for a, b in both if a is not None and b is not None]
        if len(known) * 2 < len(pairs):
            return f"{len(pairs) - len(known)} of {len(pairs)} examples could not be rerun"
        if not known:
            return None
        old, new = (sum(column) / len(known) for column in zip(*known, strict=True))
        others = self.config.update.accept_on == "others"
        name = "the reward on other examples" if others else "the batch's reward"
        return None if new >= old else f"{name} fell from {old:.4f} to {new:.4f}"


# Asked only where a rewrite passed the checks; may run examples again, and raises only Stop.
AcceptanceRule = Callable[[Rescore, Candidate], Awaitable[Acceptance]]


async def always(rescore: Rescore, candidate: Candidate) -> Acceptance:
    """What passed the checks is kept: Algorithm 1."""
    return candidate.rewrites, ()


async def improve(rescore: Rescore, candidate: Candidate) -> Acceptance:
    """All or none stay, by the examples under all rewrites at once, explored routes fixed."""
    runs, traces = await rescore.before(candidate)
    tried = candidate.tried
    pairs = await rescore.again(tried, runs, candidate.state, lambda route: route.explored)
    reason = rescore.worse(pairs)
    return candidate.refuse({r.variable: reason for r in tried} if reason else {}), traces


async def improve_each(rescore: Rescore, candidate: Candidate) -> Acceptance:
    """Each rewrite stays only if the examples that it touches do not fare worse with it alone: θ
    where the encoder routes, φ and all new instincts under the routes there were."""
    runs, traces = await rescore.before(candidate)
    instincts = [r for r in candidate.tried if isinstance(r.variable, int)]
    parts = [[r] for r in candidate.tried if not isinstance(r.variable, int)]
    refused: dict[Variable, str] = {}

    async def judge(part: Sequence[Rewrite]) -> None:
        held = part[0].variable != "encoder"
        touched = [run for run in runs if any(_touches(r.variable, run[1]) for r in part)]
        pairs = await rescore.again(part, touched, candidate.state, lambda route: held)
        for r in part:
            reason = rescore.worse([pair for pair in pairs if _touches(r.variable, pair[0])])
            if reason is not None:
                refused[r.variable] = reason

    await gather_all(map(judge, [*parts, instincts] if instincts else parts))
    return candidate.refuse(refused), traces


def _touches(variable: Variable, rollout: Rollout) -> bool:
    """Whether the variable had a part in the run: θ in the routes that were not explored."""
    route = rollout.route
    if route is None:
        return False
    if isinstance(variable, int):
        return variable in route.indices
    return variable != "encoder" or not route.explored


RULES: Mapping[str, AcceptanceRule] = {
    "always": always,
    "improve": improve,
    "improve_each": improve_each,
}


def find_rule(name: str) -> AcceptanceRule:
    """The rule of that name, ours or an installed package's. Raises ConfigError when it is unknown
    or not async."""
    if name in RULES:
        return RULES[name]
    rule = plug_in(GROUP, name, "update.accept", RULES)
    if not iscoroutinefunction(rule):
        message, hint = f"update.accept: the rule {name!r} is not async", "use async def"
        raise ConfigError(message, hint=f"{hint} {name}(rescore, candidate)")
    return rule
