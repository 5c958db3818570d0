"""`pco.effect`: what one instinct adds, measured by asking the models with it and without it.

The inputs are those of a split whose route holds the instinct. Each is answered twice as deployed,
with the same draws: on its route, and on its route with the instinct left out. It is the effect of
leaving the instinct out, not of routing again: nothing takes its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Unpack

from promptcodebook.assemble import Assembled
from promptcodebook.calls import LM, Usage
from promptcodebook.data import Dataset
from promptcodebook.errors import BudgetReached, ConfigError, Stop, StoreError
from promptcodebook.intervals import paired_interval
from promptcodebook.method.executor import EVALUATION
from promptcodebook.method.failures import failure_of, gather_all, too_many_failures
from promptcodebook.method.policy import Deployed
from promptcodebook.policy.references import Reference, deployed_of
from promptcodebook.progress import Line, Listener, Phase, silent
from promptcodebook.randomness import Draws
from promptcodebook.run.evaluation import Sample
from promptcodebook.run.optimize import require_type
from promptcodebook.run.subject import (
    AnyPolicy,
    Beside,
    Given,
    Subject,
    answering_calls,
    greedy_evaluator,
    interrupt,
)
from promptcodebook.store.effects import Effect, EffectStore
from promptcodebook.sync import run_sync
from promptcodebook.types import Evaluation, Example, Failure, Prompt, Reward, Rollout, Route, Trace


@dataclass(frozen=True, slots=True)
class Question:
    """Which instinct, on which split; `count` inputs are drawn by the seed (None = all)."""

    instinct: int
    split: str = "val"
    count: int | None = None


@dataclass(frozen=True)
class _OnRoutes:
    """The deployed policy on routes that are given."""

    deployed: Deployed
    routes: Mapping[str, Route]

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route, Prompt, Usage]:
        route = self.routes[example.id]
        return route, *(await self.deployed.compose(route, example, draws))


class Measurement:
    """One effect that is ready to be measured; `kept` is where replies and the result are kept.

    Raises ConfigError for an instinct that the codebook has not, and what `Sample.examples` does.
    """

    def __init__(
        self,
        reference: Reference,
        assembled: Assembled,
        question: Question,
        kept: EffectStore | None = None,
    ) -> None:
        size = len(reference.file.codebook)
        if not 0 <= question.instinct < size:
            raise ConfigError(
                f"the codebook has no instinct {question.instinct}: it has {size}",
                hint=f"choose one of 0..{size - 1}" if size else "choose a policy with a codebook",
            )
        self._file, self._assembled = reference.file, assembled
        self._question, self._kept = question, kept
        self.examples = Sample(question.split, question.count).examples(assembled)
        self._deployed = deployed_of(self._file, assembled)

    @property
    def name(self) -> str:
        """What is measured, in words."""
        return f"instinct {self._question.instinct}"

    @property
    def routing_calls(self) -> int:
        """Calls that the routes take at most; re-asks are not counted."""
        ranking = self._file.statistics.ranking
        asks = bool(self._file.encoder) if ranking is None else bool(ranking.center)
        return len(self.examples) if asks else 0

    @property
    def most_calls(self) -> int:
        """Calls at most: every input is routed to it. Re-asks and judges are not counted."""
        return self.routing_calls + self.calls_for(len(self.examples))

    def calls_for(self, held: int) -> int:
        """The most calls that the answers take when `held` inputs are routed to it."""
        return 2 * held * answering_calls(self._file, self._assembled)

    @property
    def simulated(self) -> bool:
        """Whether any model that is asked is simulated."""
        return self._assembled.models.simulated

    @property
    def calls_paid(self) -> int:
        """Attempts so far: what was known already took none."""
        return self._assembled.models.ledger.total.calls

    async def measure(
        self, tell: Listener = silent, routed: Callable[[int], None] = lambda _: None
    ) -> Effect:
        """Routes, answers and keeps the result; `routed` hears how many inputs hold the instinct.
        Closes the connections.

        Raises TooManyFailures when nothing was routed, or no pair is whole though there are some,
        BudgetReached, Interrupted after `interrupt`, and StoreError.
        """
        try:
            routes, unrouted = await self._routes(tell)
            routed(len(routes))
            made = self._effect(*await self._both(routes, tell), unrouted)
        except BudgetReached as error:
            error.hint = "give it a greater budget"
            if self._assembled.models.keeps:
                error.hint = "ask again with a new budget: what was paid for so far is kept"
            raise
        finally:
            await self._assembled.models.close()
        if self._kept is not None:
            self._kept.add(made)
        return made

    async def _both(
        self, routes: Mapping[str, Route], tell: Listener
    ) -> tuple[Evaluation, Evaluation]:
        """The answers on these routes, and on them without the instinct."""
        k, split = self._question.instinct, self._question.split
        held = [e for e in self.examples if e.id in routes]
        less = {
            name: replace(route, indices=tuple(i for i in route.indices if i != k))
            for name, route in routes.items()
        }
        count = _counting(tell, f"measuring {self.name}", 2 * len(held))
        evaluator = greedy_evaluator(self._assembled)
        with_it, without = await gather_all(
            evaluator.evaluate(side, _OnRoutes(self._deployed, each), held, split, count)
            for side, each in (("with", routes), ("without", less))
        )
        return with_it, without

    async def _routes(self, tell: Listener) -> tuple[dict[str, Route], int]:
        """The routes that hold the instinct, by example, as deployed; and how many inputs could
        not be routed."""
        count = _counting(tell, "routing", len(self.examples))

        async def one(example: Example) -> Route | Failure:
            found = await self._route(example)
            count(found)
            return found

        found = await gather_all(map(one, self.examples))
        failures = [each for each in found if isinstance(each, Failure)]
        if len(failures) == len(found):
            raise too_many_failures(failures, [Trace(Rollout(e.id)) for e in self.examples], "")
        routes = {
            example.id: route
            for example, route in zip(self.examples, found, strict=True)
            if isinstance(route, Route) and self._question.instinct in route.indices
        }
        return routes, len(failures)

    async def _route(self, example: Example) -> Route | Failure:
        """Tried once more, as an evaluation's rollout is."""
        last: Failure | None = None
        for at in (EVALUATION, EVALUATION - 1):
            draws = self._assembled.config.randomness.at(at, example.id)
            try:
                return (await self._deployed.route(example, draws))[0]
            except (Stop, StoreError):
                raise
            except Exception as error:
                last = failure_of("prompt", error)
        assert last is not None, "it was tried"
        return last

    def _effect(self, with_it: Evaluation, without: Evaluation, unrouted: int) -> Effect:
        rewards = {
            a.example_id: (a.reward, b.reward)
            for a, b in zip(with_it.rollouts, without.rollouts, strict=True)
        }
        pairs = [(a, b) for a, b in rewards.values() if a is not None and b is not None]
        rollouts = (*with_it.rollouts, *without.rollouts)
        if rewards and not pairs:
            failures = [r.failure for r in rollouts if r.failure is not None]
            raise too_many_failures(failures, tuple(map(Trace, rollouts)), "")
        config, models = self._assembled.config, self._assembled.models
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        n = len(pairs)
        return Effect(
            instinct=self._question.instinct,
            text=self._file.parameters.codebook[self._question.instinct].text,
            split=self._question.split,
            examples=len(self.examples),
            unrouted=unrouted,
            rewards=rewards,
            difference=paired_interval(first, second, config.seed, config.reward_range)
            if pairs
            else None,
            means=(sum(first) / n, sum(second) / n) if pairs else None,
            models={str(role): spec for role, spec in models.by_role().items()},
            simulated=models.simulated,
            scored_by=self._assembled.scored_by,
            usage=with_it.usage + without.usage,
            policy=self._file.digest,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            data=self._assembled.dataset.fingerprint().get(self._question.split, ""),
        )

    def interrupt(self) -> None:
        """Ends it in order (Ctrl-C)."""
        interrupt(self._assembled)


def _counting(tell: Listener, name: str, total: int) -> Callable[[object], None]:
    """Tells of one more of `total` at each call, and of none now."""
    done = -1

    def count(_: object = None) -> None:
        nonlocal done
        done += 1
        tell(Phase(name, done, total))

    count()
    return count


@contextmanager
def measuring(subject: Subject, question: Question) -> Generator[Measurement]:
    """A measurement of a policy, with a ledger of its own. What is paid for, and the result, are
    kept with the policy's run, if it has one. An LM object is asked again: nothing tells whether it
    is the one that answered before.

    Raises RunBusy while another process measures the same run, and what `Measurement` raises.
    """
    reference, assembled = subject.reference, subject.assembled
    if subject.run is None:
        yield Measurement(reference, assembled, question)
        return
    again = f"pco codebook effect {reference.name} {question.instinct}"
    with closing(EffectStore(subject.run, again)) as kept:
        known = assembled.plan.sources.lm is None
        connected = assembled.plan.connect(kept.supplies(known=known))
        yield Measurement(reference, connected, question, kept)


@contextmanager
def _asked(
    policy: AnyPolicy, given: Given, question: Question, progress: bool
) -> Generator[tuple[Measurement, Listener]]:
    """A measurement that is ready to begin, and who hears of it."""
    verb = given.verb
    require_type(verb, "k", question.instinct, (int,), "the number of an instinct", optional=False)
    require_type(verb, "split", question.split, (str,), "train, val or test", optional=False)
    require_type(verb, "n", question.count, (int,), "a whole number, or None for all")
    with measuring(Subject.resolve(policy, given), question) as measurement:
        line = Line(sys.stderr, simulated=measurement.simulated) if progress else None
        try:
            yield measurement, line or silent
        finally:
            if line is not None:
                line.close()


async def aeffect(  # noqa: PLR0913 - the command's options
    policy: AnyPolicy,
    k: int,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    split: str = "val",
    n: int | None = None,
    progress: bool = True,
    **beside: Unpack[Beside],
) -> Effect:
    """`effect` for code that already runs in an event loop."""
    given = Given.of("effect()", data, reward, lm, beside)
    with _asked(policy, given, Question(k, split, n), progress) as (measurement, listener):
        return await measurement.measure(listener)


def effect(  # noqa: PLR0913 - the command's options
    policy: AnyPolicy,
    k: int,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    split: str = "val",
    n: int | None = None,
    progress: bool = True,
    **beside: Unpack[Beside],
) -> Effect:
    """What instinct `k` adds to the reward, measured by leaving it out: `pco codebook effect` from
    Python.

    The inputs of the `split`, or `n` of them, that the policy routes to `k` are answered twice,
    with all else equal: on their route, and on their route without `k`. `policy`, `data` and what
    follows are what `evaluate` takes; `budget` is this measurement's. Of a run, replies and the
    result are kept with it: nothing is paid for twice, also what the run itself has asked, and a
    measurement that was stopped resumes when it is asked for again. An `lm` object is asked
    again: nothing shows whether it is the one that answered before.

    The result has `.difference` (with less without, paired, 95 % interval; None where no input is
    routed to it), `.means`, `.rewards` by example, `.failed` and `.n`. A pair with a failed rollout
    is counted and left out. Raises what `evaluate` raises, and RunBusy.
    """
    given = Given.of("effect()", data, reward, lm, beside)
    with _asked(policy, given, Question(k, split, n), progress) as (measurement, listener):
        return run_sync(measurement.measure(listener), measurement.interrupt)
