"""Which of a step's rewrites are kept: each rule is an `Acceptance` (method decision 9).

A new rule is a class here with its line in `_RULES`, and its name in `config.update.accept`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.method.executor import Trial, roll_out
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Composer, Deployed, Exploring, Router
from promptcodebook.method.state import State
from promptcodebook.method.update import apply_rewrites
from promptcodebook.randomness import Draws, Randomness
from promptcodebook.types import (
    Example,
    Parameters,
    Prompt,
    Rewrite,
    Rollout,
    Route,
    Trace,
    Variable,
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step's rewrites (those a check refused among them), and the batch that led to them.

    `traces` are in the batch's order; `state` is the one the batch ran under, `epsilon` its ε.
    """

    rewrites: tuple[Rewrite, ...]
    traces: Sequence[Trace]
    batch: Sequence[Example]
    state: State
    epsilon: float

    @property
    def tried(self) -> list[Rewrite]:
        """Those that passed the checks. ψ is exempt, since the reward does not depend on it, and a
        harmful text's rewrite, since it must go even where it pays."""
        judged = (r for r in self.rewrites if r.kept and r.origin != "safety")
        return [r for r in judged if r.variable != "critic"]

    def refuse(self, reasons: Mapping[Variable, str]) -> tuple[Rewrite, ...]:
        """All rewrites in their order, those with a reason refused."""
        return tuple(
            replace(r, kept=False, reason=reasons[r.variable]) if r.variable in reasons else r
            for r in self.rewrites
        )


Judged = tuple[tuple[Rewrite, ...], Sequence[Trace]]


class Acceptance(Protocol):
    """Returns the proposal's rewrites in their order, those it refuses with `kept` False and why,
    and the traces of other examples that it ran under Θ as it was: they join the averages.

    It may run examples again; it raises Stop, and nothing else, when it may not.
    """

    async def __call__(self, proposal: Proposal) -> Judged: ...


class Always:
    """What passed the checks is kept: Algorithm 1."""

    async def __call__(self, proposal: Proposal) -> Judged:
        return proposal.rewrites, ()


@dataclass(frozen=True)
class Improve:
    """The rewrites stay, all or none, only if the examples do not fare worse with them.

    Those run again under all rewrites at once: explored routes fixed, the same executor seeds.
    """

    rerun: Rerun

    async def __call__(self, proposal: Proposal) -> Judged:
        tried = proposal.tried
        if not tried:
            return proposal.rewrites, ()
        runs, traces = await self.rerun.before(proposal)
        new = apply_rewrites(proposal.state.parameters, tried)
        after = await self.rerun.again(new, proposal.state, runs, lambda route: route.explored)
        reason = _worse(self.rerun.name, runs, after)
        if reason is None:
            return proposal.rewrites, traces
        return proposal.refuse({r.variable: reason for r in tried}), traces


@dataclass(frozen=True)
class ImproveEach:
    """Each rewrite stays only if the examples that it touches do not fare worse with it.

    θ, φ and the codebook are tried apart, each against the run without any of them: θ where the
    encoder routes, φ and the codebook under the routes there were. The new instincts are tried
    together, and each is judged by the examples that are routed to it. What touches no example is
    kept: nothing speaks against it.
    """

    rerun: Rerun

    async def __call__(self, proposal: Proposal) -> Judged:
        tried = proposal.tried
        if not tried:
            return proposal.rewrites, ()
        runs, traces = await self.rerun.before(proposal)
        instincts = [r for r in tried if isinstance(r.variable, int)]
        parts = [[r] for r in tried if not isinstance(r.variable, int)]
        parts += [instincts] if instincts else []
        judged = await gather_all(self._judge(part, runs, proposal) for part in parts)
        refused: dict[Variable, str] = dict(chain.from_iterable(judged))
        return proposal.refuse(refused), traces

    async def _judge(
        self, part: Sequence[Rewrite], runs: Sequence[_Run], proposal: Proposal
    ) -> list[tuple[Variable, str]]:
        """The rewrites of a part under which their examples fare worse, with the reasons."""
        touched = [run for run in runs if any(_touches(r.variable, run) for r in part)]
        held = part[0].variable != "encoder"
        new = apply_rewrites(proposal.state.parameters, part)
        after = await self.rerun.again(new, proposal.state, touched, lambda route: held)
        found: list[tuple[Variable, str]] = []
        for rewrite in part:
            own = [
                (run, rollout)
                for run, rollout in zip(touched, after, strict=True)
                if _touches(rewrite.variable, run)
            ]
            reason = _worse(self.rerun.name, [run for run, _ in own], [r for _, r in own])
            if reason is not None:
                found.append((rewrite.variable, reason))
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """An example as it went with the parameters as they are; it has a reward."""

    example: Example
    rollout: Rollout


@dataclass(frozen=True)
class Others:
    """Examples outside the batch: as many as the batch has, drawn by the step, run as in training.

    Where the batch leaves none, they are the batch's own. `judge` makes a trace of a rollout, with
    the verdict's ρ and without gradients: it joins r̄, and nothing it judges comes from it.
    """

    pool: Sequence[Example]
    router: Router
    judge: Callable[[Example, Rollout, State], Coroutine[Any, Any, Trace]]

    def draw(self, batch: Sequence[Example], draws: Draws) -> list[Example]:
        inside = {example.id for example in batch}
        outside = [example for example in self.pool if example.id not in inside]
        draw = draws.generator("others")
        keys = [draw.random() for _ in outside]
        order = sorted(range(len(outside)), key=keys.__getitem__)
        return [outside[i] for i in order[: len(batch)]]


@dataclass(frozen=True)
class Rerun:
    """Examples once more, under other parameters and with the draws they had.

    `others` None: the batch's own examples are those that judge.
    """

    composer: Composer
    trial: Trial
    randomness: Randomness
    others: Others | None = None

    @property
    def name(self) -> str:
        """Whose reward it is that rises or falls."""
        return "the batch's reward" if self.others is None else "the reward on other examples"

    async def before(self, proposal: Proposal) -> tuple[list[_Run], Sequence[Trace]]:
        """The examples that judge, with their runs as things are; those without reward left out.
        The traces are of those outside the batch."""
        traces: Sequence[Trace] = ()
        chosen: list[Example] = []
        if self.others is not None:
            draws = self.randomness.at(proposal.state.step, "accept")
            chosen = self.others.draw(proposal.batch, draws)
        if self.others is None or not chosen:
            batch = zip(proposal.batch, proposal.traces, strict=True)
            runs = [_Run(x, t.rollout) for x, t in batch]
        else:
            prompter = Exploring(
                self.composer, self.others.router, proposal.state, proposal.epsilon
            )
            at = proposal.state.step
            rollouts = await gather_all(
                roll_out(prompter, self.trial, x, self.randomness.at(at, x.id)) for x in chosen
            )
            runs = [_Run(x, r) for x, r in zip(chosen, rollouts, strict=True)]
            judge = self.others.judge
            traces = await gather_all(
                judge(run.example, run.rollout, proposal.state)
                for run in runs
                if run.rollout.reward is not None
            )
        return [run for run in runs if run.rollout.reward is not None], traces

    async def again(
        self,
        parameters: Parameters,
        state: State,
        runs: Sequence[_Run],
        routes: Callable[[Route], bool],
    ) -> list[Rollout]:
        """Each run's example under `parameters`; the routes that `routes` says are held."""

        deployed = Deployed(self.composer, parameters, state.statistics)

        async def once_more(run: _Run) -> Rollout:
            route = run.rollout.route
            fixed = route if route is not None and routes(route) else None
            draws = self.randomness.at(state.step, run.example.id)
            return await roll_out(_HeldRoute(deployed, fixed), self.trial, run.example, draws)

        return await gather_all(map(once_more, runs))


def _touches(variable: Variable, run: _Run) -> bool:
    """Whether the variable had a part in the run: θ in the routes that were not explored."""
    route = run.rollout.route
    if route is None:
        return False
    if isinstance(variable, int):
        return variable in route.indices
    return variable != "encoder" or not route.explored


def _worse(name: str, before: Sequence[_Run], after: Sequence[Rollout]) -> str | None:
    """Why the examples fare worse than before; None where they do not, or where there are none.

    Compared are those that have a reward again; that must be at least half.
    """
    pairs = [
        (run.rollout.reward, rollout.reward)
        for run, rollout in zip(before, after, strict=True)
        if run.rollout.reward is not None and rollout.reward is not None
    ]
    if len(pairs) * 2 < len(before):
        return f"{len(before) - len(pairs)} of {len(before)} examples could not be run again"
    if not pairs:
        return None
    old, new = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    return None if new >= old else f"{name} fell from {old:.4f} to {new:.4f}"


@dataclass(frozen=True)
class _HeldRoute:
    """A policy that takes the given route, if there is one, instead of its own."""

    deployed: Deployed
    fixed: Route | None

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        if self.fixed is None:
            return await self.deployed.prompt(example, draws)
        prompt, usage = await self.deployed.compose(self.fixed, example, draws)
        return self.fixed, prompt, usage


_RULES: Mapping[str, Callable[[Rerun], Acceptance]] = {
    "always": lambda rerun: Always(),
    "improve": Improve,
    "improve_each": ImproveEach,
}


def make_acceptance(config: Config, rerun: Rerun, others: Others) -> Acceptance:
    """The rule of `config.update.accept`, on the examples of `accept_on`."""
    if config.update.accept_on == "others":
        rerun = replace(rerun, others=others)
    return _RULES[config.update.accept](rerun)
