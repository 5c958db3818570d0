"""What a part of a policy is worth, measured: one instinct (`pco.effect`), the encoder
(`pco.distill`).

An instinct's effect is that of leaving it out. The inputs whose route holds it are answered twice
as deployed, with the same draws: on their route, and on their route without it.

An encoder's routes are distilled into a ranking: those that it gave in training, and, where asked,
fresh ones on training inputs. What that costs in reward is measured on the validation split, both
policies on the same examples; the test split is left alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from promptcodebook.base.intervals import Interval, paired_interval
from promptcodebook.base.randomness import Draws
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shell
from promptcodebook.base.units import plural
from promptcodebook.calls import LM, Usage
from promptcodebook.data import Dataset, sample
from promptcodebook.errors import ConfigError, Stop, StoreError
from promptcodebook.method.executor import EVALUATION
from promptcodebook.method.failures import failure_of, gather_all, require_answers
from promptcodebook.method.policy import Deployed
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import NO_VERDICT, deployed_of
from promptcodebook.progress import Listener, ProgressLine, counter, silent
from promptcodebook.routing.ranking import OLDER, Imitated, distil
from promptcodebook.run.evaluation import Sample
from promptcodebook.run.optimize import Run, require_type
from promptcodebook.run.subject import AnyPolicy, Beside, EvaluationOptions, Examined, Subject
from promptcodebook.store.effects import Effect, EffectStore
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Example, Failure, Prompt, Reward, Rollout, Route

_log = logging.getLogger(__name__)

# --- one instinct, left out ---


@dataclass(frozen=True)
class _OnRoutes:
    deployed: Deployed
    routes: Mapping[str, Route]

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route, Prompt, Usage]:
        route = self.routes[example.id]
        return route, *(await self.deployed.compose(route, example, draws))


class Measurement:
    """One effect to be measured; `kept` holds replies and result. Raises ConfigError when there is
    no such instinct."""

    def __init__(
        self, subject: Subject, instinct: int, of: Sample, kept: EffectStore | None = None
    ) -> None:
        size = len(subject.file.codebook)
        if not 0 <= instinct < size:
            raise ConfigError(
                f"the codebook has no instinct {instinct}: it has {size}",
                hint=f"choose one of 0..{size - 1}" if size else "choose a policy with a codebook",
            )
        self.subject = subject
        self._instinct, self._split, self._kept = instinct, of.split, kept
        self._examples = of.examples(subject.assembled)

    @property
    def simulated(self) -> bool:
        return self.subject.assembled.models.simulated

    @property
    def plan(self) -> str:
        """What it is about to do, and its calls at most, without re-asks and judges."""
        file, n = self.subject.file, len(self._examples)
        ranking = file.statistics.ranking
        asks = bool(file.encoder) if ranking is None else bool(ranking.center)
        routing, answering = n if asks else 0, 2 * n * self.subject.answering_calls
        return (
            f"instinct {self._instinct} on {plural(n, 'input')}: at most "
            f"{plural(routing + answering, 'call')}, {routing} of them for the routes; "
            "earlier calls are not repeated"
        )

    async def measure(
        self, tell: Listener = silent, done: Callable[[str], None] = lambda _: None
    ) -> Effect:
        """Routes, answers and keeps the result; `done` hears how many inputs hold the instinct.
        Closes the connections. Raises TooManyFailures when nothing was routed, or no pair is whole
        though there are some, BudgetReached, Interrupted and StoreError."""
        kept = "rerun it with a new budget: everything paid for so far is kept"
        async with self.subject.assembled.models.at_work("raise the budget", kept):
            routes, unrouted = await self._routes(tell)
            more = plural(2 * len(routes) * self.subject.answering_calls, "more call")
            of = plural(len(self._examples), "input")
            done(f"{len(routes)} of {of} routed to it: at most {more}")
            made = await self._compare(routes, unrouted, tell)
        if self._kept is not None:
            self._kept.add(made)
        return made

    async def _routes(self, tell: Listener) -> tuple[dict[str, Route], int]:
        """The routes that hold the instinct, by example; how many inputs twice had none."""
        count, deployed = counter(tell, "routing", len(self._examples)), self.subject.deployed
        randomness = self.subject.assembled.config.randomness

        async def one(example: Example, at: int = EVALUATION) -> Route | Failure:
            try:
                found = (await deployed.route(example, randomness.at(at, example.id)))[0]
            except (Stop, StoreError):
                raise
            except Exception as error:
                if at == EVALUATION:
                    return await one(example, EVALUATION - 1)
                found = failure_of("prompt", error)
            count(found)
            return found

        found = await gather_all(map(one, self._examples))
        pairs = list(zip(self._examples, found, strict=True))
        failed = [Rollout(e.id, failure=each) for e, each in pairs if isinstance(each, Failure)]
        if len(failed) == len(pairs):
            require_answers(failed, 0)
        routes = {e.id: each for e, each in pairs if isinstance(each, Route)}
        held = {id: route for id, route in routes.items() if self._instinct in route.indices}
        return held, len(failed)

    async def _compare(self, routes: Mapping[str, Route], unrouted: int, tell: Listener) -> Effect:
        """The answers on these routes against those on them without the instinct."""
        assembled, file, instinct = self.subject.assembled, self.subject.file, self._instinct
        config, models, deployed = assembled.config, assembled.models, self.subject.deployed
        held = [e for e in self._examples if e.id in routes]
        less = replace(deployed, silent={instinct})
        count = counter(tell, f"measuring instinct {instinct}", 2 * len(held))
        evaluator = assembled.evaluator()
        with_it, without = await gather_all(
            evaluator.evaluate(side, _OnRoutes(each, routes), held, self._split, count)
            for side, each in (("with", deployed), ("without", less))
        )
        both = list(zip(with_it.rollouts, without.rollouts, strict=True))
        rewards = {a.example_id: (a.reward, b.reward) for a, b in both}
        groups = dict(zip(rewards, with_it.groups or rewards, strict=True))
        pairs = [(x, y) for x, y in rewards.values() if x is not None and y is not None]
        if both and not pairs:
            require_answers((*with_it.rollouts, *without.rollouts), 0)
        difference, means = None, None
        if pairs:
            first, second = zip(*pairs, strict=True)
            known = [groups[id] for id, (x, y) in rewards.items() if None not in (x, y)]
            difference = paired_interval(first, second, config.reward_range, groups=known)
            means = fmean(first), fmean(second)
        return Effect(
            instinct=instinct,
            text=file.parameters.codebook[instinct].text,
            split=self._split,
            examples=len(self._examples),
            unrouted=unrouted,
            rewards=rewards,
            difference=difference,
            means=means,
            models={str(role): spec for role, spec in models.by_role().items()},
            simulated=models.simulated,
            scored_by=assembled.scored_by,
            usage=with_it.usage + without.usage,
            policy=file.digest,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            data=assembled.dataset.fingerprint().get(self._split, ""),
        )


@contextmanager
def measuring(
    subject: Subject, instinct: int, of: Sample, *, again: bool = False
) -> Generator[Measurement]:
    """A measurement of a policy. What is paid for, and the result, are kept with the policy's run,
    if it has one. Raises RunBusy while another process measures it."""
    if subject.run is None:
        yield Measurement(subject, instinct, of)
        return
    plan, typed = (
        subject.assembled.plan,
        f"pco registry effect {shell(subject.reference.name)} {instinct}",
    )
    with closing(EffectStore(subject.run, typed)) as kept:
        connected = plan.connect(kept.supplies(known=plan.sources.lm is None and not again))
        yield Measurement(replace(subject, assembled=connected), instinct, of, kept)


@contextmanager
def _asked(
    policy: AnyPolicy, instinct: int, given: EvaluationOptions, of: Sample
) -> Generator[tuple[Measurement, Listener]]:
    verb = given.verb
    require_type(verb, "k", instinct, (int,), "the number of an instinct", optional=False)
    with (
        measuring(Subject.resolve(policy, given), instinct, of) as made,
        ProgressLine(sys.stderr, simulated=made.simulated) as line,
    ):
        yield made, line if given.progress else silent


async def aeffect(
    policy: AnyPolicy,
    k: int,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    **asked: Unpack[Examined],
) -> Effect:
    """`effect` for code that runs in an event loop: the same arguments, result and errors."""
    given = EvaluationOptions.of("effect()", data, reward, lm, asked)
    with _asked(policy, k, given, Sample.of(given.verb, asked)) as (measurement, listener):
        return await measurement.measure(listener)


def effect(
    policy: AnyPolicy,
    k: int,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    **asked: Unpack[Examined],
) -> Effect:
    """Measure what instinct `k` adds to the reward by leaving it out: `pco registry effect`.

    The inputs that the policy routes to `k` are answered twice, with all else equal: on their
    route, and on their route without `k`. Of a run, replies and the result are kept with it, so
    that nothing is paid for twice and a stopped measurement resumes. An `lm` object is asked again:
    nothing shows whether it is the one that answered before.

    - `policy`, `data`, `reward`, `lm` and keywords that are not listed: as in `evaluate`.
    - `k`: the index of the instinct, 0..K-1.
    - `split`: 'train', 'val' or 'test' ('test'). `n`: at most this many inputs (None = all).
    - `budget`: what this measurement may spend. None: no limit.

    The result has `.difference` (with less without, paired, 95 % interval; None where no input is
    routed to it), `.means`, `.rewards` by example, `.failed` and `.n`. A pair with a failed rollout
    is counted and left out.

    Raises what `evaluate` raises, and RunBusy when another process measures the same run."""
    given = EvaluationOptions.of("effect()", data, reward, lm, asked)
    with _asked(policy, k, given, Sample.of(given.verb, asked)) as (measurement, listener):
        return run_sync(
            measurement.measure(listener), measurement.subject.assembled.models.interrupt
        )


# --- the encoder, distilled ---


@dataclass(frozen=True, slots=True)
class Needs:
    """`fresh`: training inputs without a route of this policy that the encoder routes now; `count`:
    validation examples (None = all); `margin`: a share of the reward's range."""

    fresh: int = 0
    count: int | None = None
    margin: float = 0.02


@dataclass(frozen=True, slots=True)
class Distillation:
    """The distilled policy, the training inputs it learned from (`fresh` of them asked for now),
    and the `difference` in reward on validation (distilled - encoder). `per_query` are their
    calls."""

    file: PolicyFile
    inputs: int
    fresh: int
    margin: float
    difference: Interval | None = None
    per_query: tuple[float, float] = (0.0, 0.0)

    @property
    def non_inferior(self) -> bool:
        """Whether the whole interval of the difference lies above minus the margin."""
        return self.difference is not None and self.difference.low > -self.margin

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the policy."""
        return {
            "inputs": self.inputs,
            "fresh": self.fresh,
            "difference": self.difference and asdict(self.difference),
            "calls_per_query": {"distilled": self.per_query[0], "encoder": self.per_query[1]},
            "margin": self.margin,
            "non_inferior": self.non_inferior,
        }


def logged_routes(store: RunStore, file: PolicyFile, train: Sequence[Example]) -> list[Imitated]:
    """The encoder's own routes on training inputs; under other texts they weigh less."""
    inputs = {example.id: example.input for example in train}
    found: list[Imitated] = []
    parameters, own = store.started().parameters, (file.encoder, file.parameters.codebook.texts)
    for step in store.steps(traces=True):
        weight = 1.0 if (parameters.encoder, parameters.codebook.texts) == own else OLDER
        for rollout in (trace.rollout for trace in step.traces):
            text, route = inputs.get(rollout.example_id), rollout.route
            if text is None or route is None or route.explored or route.fallback:
                continue
            if route.indices:
                found.append(Imitated(rollout.example_id, text, route.indices, weight))
        parameters = step.parameters
    return found


class Distiller:
    """Distils one policy under its settings; `logged` are its encoder's routes."""

    def __init__(self, subject: Subject, logged: Sequence[Imitated], needs: Needs) -> None:
        if subject.file.router is not None:
            message = "this policy uses no encoder: its routes are already ranked"
            raise ConfigError(message, hint="distil a run with router.kind = 'encoder'")
        if not subject.file.encoder:
            message = "this policy has no encoder: it takes the same instincts for every input"
            raise ConfigError(
                message, hint="distil a run with encoder.mode = 'learned' or 'static'"
            )
        self.subject = subject
        self._logged, self._needs = logged, needs
        dataset = subject.assembled.dataset
        known = {route.example_id for route in logged if route.weight == 1.0}
        self.fresh = sample([e for e in dataset.train if e.id not in known], needs.fresh)
        self.validation = sample(dataset.val, needs.count)
        if not logged and not self.fresh:
            raise ConfigError(
                "there are no encoder routes to learn from",
                hint="request them for 200 training inputs: --fresh 200, fresh=200 in Python",
            )

    @classmethod
    def of(cls, subject: Subject, needs: Needs) -> Distiller:
        """With the routes that the policy's run logged. Raises ConfigError when the budget is
        too small."""
        assembled, logged = subject.assembled, list[Imitated]()
        assembled.task.require()
        if subject.run is not None:
            with closing(RunStore.open(subject.run)) as store:
                logged = logged_routes(store, subject.file, assembled.dataset.train)
        made = cls(subject, logged, needs)
        limit = assembled.config.budget.calls
        if limit is not None and limit < made.calls:
            raise ConfigError(
                f"it takes about {made.calls} calls, and the budget has {limit}",
                hint="raise the budget, or lower fresh or n (--budget, --fresh, --n)",
            )
        return made

    @property
    def plan(self) -> str:
        return (
            f"{len(self._logged)} logged routes; asking for {len(self.fresh)} more and answering "
            f"{len(self.validation)} validation examples with both policies: about "
            f"{self.calls} calls"
        )

    @property
    def calls(self) -> int:
        """Calls that it takes, re-asks and judges not counted."""
        return len(self.fresh) + len(self.validation) * (1 + 2 * self.subject.answering_calls)

    async def distil(self, done: Callable[[str], None] = lambda _: None) -> Distillation:
        """Ask, fit and measure; `done` hears what is next. Raises TooManyFailures and
        BudgetReached."""
        async with self.subject.assembled.models.at_work("raise the budget, or lower fresh or n"):
            made = await self._fitted(done)
            if self.validation:
                done(f"answering {len(self.validation)} validation examples with both policies")
                made = await self._judged(made)
        file = made.file.with_about(distilled=made.as_json())
        # The verdict on the encoder's routes holds for routes that earn as much.
        if not made.non_inferior:
            file = file.with_about(verdict=NO_VERDICT)
        return replace(made, file=file)

    async def _fitted(self, done: Callable[[str], None]) -> Distillation:
        """Of the logged routes, and of fresh ones; fallbacks are not the encoder's own."""
        file, deployed = self.subject.file, self.subject.deployed
        config = self.subject.assembled.config
        if self.fresh:
            done(f"asking the encoder for {len(self.fresh)} routes")

        async def one(example: Example) -> Route:
            return (await deployed.route(example, config.randomness.at(EVALUATION, example.id)))[0]

        found = await gather_all(map(one, self.fresh))
        fresh = [
            Imitated(example.id, example.input, route.indices)
            for example, route in zip(self.fresh, found, strict=True)
            if not route.fallback
        ]
        ranking = distil(
            [*self._logged, *fresh], len(file.codebook), 1 if file.fewer else file.select
        )
        low, high = config.reward_range
        return Distillation(
            file=file.with_router(ranking),
            inputs=ranking.outcomes,
            fresh=len(fresh),
            margin=self._needs.margin * (high - low),
        )

    async def _judged(self, made: Distillation) -> Distillation:
        """With the difference on validation. Policies without answers are an error."""
        subject, config, n = self.subject, self.subject.assembled.config, len(self.validation)
        evaluations = list[Evaluation]()
        for name, file in (("encoder", subject.file), ("distilled", made.file)):
            deployed = deployed_of(file, subject.assembled)
            evaluator = subject.assembled.evaluator()
            found = await evaluator.evaluate(name, deployed, self.validation, "val")
            require_answers(found.rollouts, n // 2, f"{name}: ")
            evaluations.append(found)
        encoder, ours = evaluations
        return replace(
            made,
            difference=paired_interval(
                ours.rewards, encoder.rewards, config.reward_range, groups=ours.groups
            ),
            per_query=(ours.usage.calls / n, encoder.usage.calls / n),
        )


def distill(
    ref: str | Path | Run,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    fresh: int = 0,
    margin: float = 0.02,
    n: int | None = None,
    output: str | Path | None = None,
    **beside: Unpack[Beside],
) -> Distillation:
    """Learn the routes of a policy's encoder, so that a query asks one model call less: `pco
    distill` from Python. What it asks goes to the log, level INFO.

    - `ref`: a Run, a run's id, name or folder, 'last', or a policy file.
    - `data`, `reward`, `lm` and keywords that are not listed: as in `evaluate`.
    - `fresh`: how many routes the encoder is asked for on further training inputs (0).
    - `margin`: the loss that counts as none, a share of the reward's range (0.02).
    - `n`: at most this many validation examples are answered under both policies (None = all).
    - `output`: where the policy file is written (None = nowhere: `.file.save`).

    The result says whether the distilled policy is `non_inferior` by the `margin`.

    Raises ConfigError when there is no encoder to learn from, DataError when the data cannot be
    used, LMError when the model gives no usable reply, TooManyFailures when most answers fail, and
    PolicyError or StoreError when the policy or its run cannot be read."""
    given = EvaluationOptions.of("distill()", data, reward, lm, beside)
    needs = Needs(fresh, n, margin)
    with given.until_done(ref, needs) as kept:
        distiller = Distiller.of(Subject.resolve(ref, kept), needs)
        _log.info(distiller.plan)
        made = run_sync(distiller.distil(_log.info), distiller.subject.assembled.models.interrupt)
    if output is not None:
        made.file.save(Path(output))
    return made
