"""An encoder's routes distilled into a ranking, and whether the policy loses anything by it;
`pco.distill` is all of it in one call.

The routes are those that the encoder gave in training (explored ones and fallbacks are not its
own), and, where asked, fresh ones on training inputs. What that costs in reward is measured on the
validation split, both policies on the same examples; the test split is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from promptcodebook.assemble import Assembled
from promptcodebook.calls import LM
from promptcodebook.data import Dataset, sample
from promptcodebook.errors import BudgetReached, ConfigError
from promptcodebook.intervals import Interval, paired_interval
from promptcodebook.method.executor import EVALUATION
from promptcodebook.method.failures import gather_all, too_many_failures
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import deployed_of
from promptcodebook.routing.ranking import (
    OLDER,
    Agreement,
    Imitated,
    agreement,
    cross_agreement,
    distil,
)
from promptcodebook.run.optimize import Run
from promptcodebook.run.subject import (
    Beside,
    Given,
    Subject,
    answering_calls,
    greedy_evaluator,
    interrupt,
)
from promptcodebook.store.run import RunStore
from promptcodebook.sync import run_sync
from promptcodebook.types import Evaluation, Example, Reward, Route, Trace

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a distillation asks for. `fresh`: training inputs without a route of this policy that
    the encoder routes now; `count`: validation examples (None = all); `margin`: a share of the
    reward's range."""

    fresh: int = 0
    count: int | None = None
    margin: float = 0.02


@dataclass(frozen=True, slots=True)
class Distillation:
    """The distilled policy, the training inputs it learned from (`fresh` of them asked for now),
    how it agrees with the encoder on inputs held out of the fit and on validation, and the
    difference in reward there (distilled - encoder, in the task's range). `per_query` are calls, of
    the distilled policy and of the encoder's."""

    file: PolicyFile
    inputs: int
    fresh: int
    cross: Agreement | None
    validation: Agreement | None
    difference: Interval | None
    per_query: tuple[float, float]
    margin: float

    @property
    def non_inferior(self) -> bool:
        """Whether the whole interval of the difference lies above minus the margin."""
        return self.difference is not None and self.difference.low > -self.margin

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the policy."""
        measured = {
            "cross_validated": self.cross,
            "validation": self.validation,
            "difference": self.difference,
        }
        return {
            "inputs": self.inputs,
            "fresh": self.fresh,
            **{name: None if each is None else asdict(each) for name, each in measured.items()},
            "calls_per_query": {"distilled": self.per_query[0], "encoder": self.per_query[1]},
            "margin": self.margin,
            "non_inferior": self.non_inferior,
        }


def logged_routes(store: RunStore, file: PolicyFile, train: Sequence[Example]) -> list[Imitated]:
    """The encoder's own routes on training inputs, in their order, without explored ones and
    fallbacks; those under other texts than the policy's weigh less."""
    inputs = {example.id: example.input for example in train}
    found: list[Imitated] = []
    parameters = store.started().parameters
    for step in store.steps(traces=True):
        same = parameters.encoder == file.encoder
        same = same and parameters.codebook.texts == file.parameters.codebook.texts
        for rollout in (trace.rollout for trace in step.traces):
            text, route = inputs.get(rollout.example_id), rollout.route
            if text is None or route is None or route.explored or route.fallback:
                continue
            if route.indices:
                weight = 1.0 if same else OLDER
                found.append(Imitated(rollout.example_id, text, route.indices, weight))
        parameters = step.parameters
    return found


class Distiller:
    """Distils one policy. `assembled` has its settings; `logged` are its encoder's routes."""

    def __init__(
        self, file: PolicyFile, assembled: Assembled, logged: Sequence[Imitated], needs: Needs
    ) -> None:
        if file.router is not None:
            raise ConfigError(
                "this policy asks no encoder: its routes are ranked already",
                hint="distil a run with router.kind = 'encoder'",
            )
        if not file.encoder:
            raise ConfigError(
                "this policy has no encoder: it takes the same instincts for every input",
                hint="distil a run with encoder.mode = 'learned' or 'static'",
            )
        self._file, self._assembled = file, assembled
        self._logged, self._needs = logged, needs
        known = {route.example_id for route in logged if route.weight == 1.0}
        unknown = [e for e in assembled.dataset.train if e.id not in known]
        self.fresh = sample(unknown, needs.fresh)
        self.validation = sample(assembled.dataset.val, needs.count)
        if not logged and not self.fresh:
            raise ConfigError(
                "there is no route of the encoder to learn from",
                hint="ask it for routes on 200 training inputs: --fresh 200, fresh=200 in Python",
            )

    @classmethod
    def of(cls, subject: Subject, needs: Needs) -> Distiller:
        """For a policy with the routes that its run logged. Raises ConfigError also where the
        budget's calls cannot suffice, before anything is paid."""
        file, assembled = subject.reference.file, subject.assembled
        assembled.task.require()
        logged: list[Imitated] = []
        if subject.run is not None:
            with closing(RunStore.open(subject.run)) as store:
                logged = logged_routes(store, file, assembled.dataset.train)
        made = cls(file, assembled, logged, needs)
        limit = assembled.config.budget.calls
        if limit is not None and limit < made.calls:
            raise ConfigError(
                f"it takes about {made.calls} calls, and the budget has {limit}",
                hint="raise the budget, or lower fresh or n (--budget, --fresh, --n)",
            )
        return made

    @property
    def plan(self) -> str:
        """What it is about to do, in words."""
        return (
            f"{len(self._logged)} logged routes; asking {len(self.fresh)} fresh ones and answering "
            f"{len(self.validation)} validation examples under both: about {self.calls} calls"
        )

    @property
    def calls(self) -> int:
        """Calls that it takes, re-asks and judges not counted."""
        answering = answering_calls(self._file, self._assembled)
        return len(self.fresh) + len(self.validation) * (1 + 2 * answering)

    async def distil(self, done: Callable[[str], None] = lambda _: None) -> Distillation:
        """Asks, fits and measures; `done` hears what comes next. Closes the connections. Raises
        TooManyFailures where most of the validation was not answered, and BudgetReached."""
        try:
            made = await self._fitted(done)
            if self.validation:
                done(f"answering {len(self.validation)} validation examples under both")
                made = await self._judged(made)
            return replace(made, file=made.file.with_about(distilled=made.as_json()))
        except BudgetReached as error:
            error.hint = "give it a greater budget, or lower fresh or n"
            raise
        finally:
            await self._assembled.models.close()

    async def _fitted(self, done: Callable[[str], None]) -> Distillation:
        file, (low, high) = self._file, self._assembled.config.reward_range
        if self.fresh:
            done(f"asking the encoder for {len(self.fresh)} routes")
        fresh = await self._fresh_routes()
        routes = [*self._logged, *fresh]
        texts = file.parameters.codebook.texts
        ranking = distil(routes, len(texts), file.select)
        return Distillation(
            file=file.with_router(ranking),
            inputs=ranking.outcomes,
            fresh=len(fresh),
            cross=cross_agreement(routes, texts, file.select, file.seed),
            validation=None,
            difference=None,
            per_query=(0.0, 0.0),
            margin=self._needs.margin * (high - low),
        )

    async def _fresh_routes(self) -> list[Imitated]:
        """Fallbacks, which are not the encoder's own, are left out."""
        deployed, config = deployed_of(self._file, self._assembled), self._assembled.config

        async def one(example: Example) -> Route:
            return (await deployed.route(example, config.randomness.at(EVALUATION, example.id)))[0]

        found = await gather_all(map(one, self.fresh))
        return [
            Imitated(example.id, example.input, route.indices)
            for example, route in zip(self.fresh, found, strict=True)
            if not route.fallback
        ]

    async def _judged(self, made: Distillation) -> Distillation:
        config, n = self._assembled.config, len(self.validation)
        evaluator = greedy_evaluator(self._assembled)
        encoder, ours = [
            await evaluator.evaluate(
                name, deployed_of(file, self._assembled), self.validation, "val"
            )
            for name, file in (("encoder", self._file), ("distilled", made.file))
        ]
        for each in (encoder, ours):
            # Two policies without answers do not differ.
            failures = [r.failure for r in each.rollouts if r.failure is not None]
            if len(failures) * 2 > n:
                traces = tuple(map(Trace, each.rollouts))
                raise too_many_failures(failures, traces, f"{each.name}: ")
        return replace(
            made,
            validation=agreement(_routes(ours), _routes(encoder), config.seed),
            difference=paired_interval(
                ours.rewards, encoder.rewards, config.seed, config.reward_range
            ),
            per_query=(ours.usage.calls / n, encoder.usage.calls / n),
        )

    def interrupt(self) -> None:
        """Ends it in order (Ctrl-C)."""
        interrupt(self._assembled)


def _routes(evaluation: Evaluation) -> list[tuple[int, ...]]:
    return [() if r.route is None else r.route.indices for r in evaluation.rollouts]


def distill(  # noqa: PLR0913 - the command's options
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
    """Learns the routes of a policy's encoder, so that a query asks one model call less: `pco
    distill` from Python.

    `ref` is a Run, a run's id, name or folder, 'last', or a policy file; it and the other keywords
    (`roles`, `executor`, `budget`, `config`, `runs_dir`, `trust`) are as in `evaluate`. `fresh`
    routes are asked of the encoder on training inputs; then both policies answer the validation
    split, or `n` examples of it. The result says whether the distilled policy is `non_inferior` by
    the `margin`, a share of the reward's range; `output` is where its policy file is written (None
    = nowhere: `.file.save`). What it asks goes to the log, level INFO.

    Raises ConfigError, DataError, LMError, TooManyFailures, PolicyError and StoreError.
    """
    given = Given.of("distill()", data, reward, lm, beside)
    needs = Needs(fresh, n, margin)
    with given.until_done(ref, needs) as kept:
        distiller = Distiller.of(Subject.resolve(ref, kept), needs)
        _log.info(distiller.plan)
        made = run_sync(distiller.distil(_log.info), distiller.interrupt)
    if output is not None:
        made.file.save(Path(output))
    return made
