"""An encoder's routes distilled into a ranking, and whether the policy loses anything by it;
`pco.distill` is all of it in one call.

The routes are those that the encoder gave in training (explored ones and fallbacks are not its
own), and, where asked, fresh ones on training inputs. What that costs in reward is measured on the
validation split, both policies on the same examples; the test split is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.calls import LM
from promptcodebook.config import Config
from promptcodebook.data import Dataset, sample
from promptcodebook.errors import BudgetReached, ConfigError, Interrupted
from promptcodebook.intervals import Interval, paired_interval
from promptcodebook.method.executor import EVALUATION, Evaluator
from promptcodebook.method.failures import gather_all, too_many_failures
from promptcodebook.method.policy import Deployed
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import stages_of
from promptcodebook.routing.distil import (
    OLDER,
    Agreement,
    Imitated,
    agreement,
    cross_agreement,
    distil,
)
from promptcodebook.run.evaluation import answering_calls
from promptcodebook.run.optimize import Run
from promptcodebook.run.subject import Subject, handed
from promptcodebook.store.run import RunStore
from promptcodebook.sync import run_sync
from promptcodebook.types import Evaluation, Example, Executor, Reward, Route, Trace

_log = logging.getLogger(__name__)
_VERB = "distill()"


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
        return {
            "inputs": self.inputs,
            "fresh": self.fresh,
            "cross_validated": None if self.cross is None else asdict(self.cross),
            "validation": None if self.validation is None else asdict(self.validation),
            "difference": None if self.difference is None else asdict(self.difference),
            "calls_per_query": {"distilled": self.per_query[0], "encoder": self.per_query[1]},
            "margin": self.margin,
            "non_inferior": self.non_inferior,
        }


def logged_routes(store: RunStore, file: PolicyFile, train: Sequence[Example]) -> list[Imitated]:
    """The encoder's own routes on training inputs, in their order; those under other texts than
    the policy's weigh less."""
    inputs = {example.id: example.input for example in train}
    found: list[Imitated] = []
    parameters = store.started().parameters
    for step in store.steps(traces=True):
        same = parameters.encoder == file.encoder
        same = same and parameters.codebook.texts == file.parameters.codebook.texts
        weight = 1.0 if same else OLDER
        found += [
            Imitated(trace.rollout.example_id, inputs[trace.rollout.example_id], z, weight)
            for trace in step.traces
            if (z := _own_route(trace)) and trace.rollout.example_id in inputs
        ]
        parameters = step.parameters
    return found


def logged_in(run: Path, file: PolicyFile, train: Sequence[Example]) -> list[Imitated]:
    """`logged_routes` of a run's folder."""
    store = RunStore.open(run)
    try:
        return logged_routes(store, file, train)
    finally:
        store.close()


def _own_route(trace: Trace) -> tuple[int, ...]:
    """What the encoder chose; () where it did not."""
    route = trace.rollout.route
    return () if route is None or route.explored or route.fallback else route.indices


class Distiller:
    """Distils one policy. `assembled` has its settings; `logged` are its encoder's routes."""

    def __init__(
        self, file: PolicyFile, assembled: Assembled, logged: Sequence[Imitated], needs: Needs
    ) -> None:
        _require_encoder(file)
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
        budget's calls cannot suffice."""
        file, assembled = subject.reference.file, subject.assembled
        assembled.task.require()
        train = assembled.dataset.train
        logged = [] if subject.run is None else logged_in(subject.run, file, train)
        made = cls(file, assembled, logged, needs)
        made.require_budget()
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

    def require_budget(self) -> None:
        """Raises ConfigError where the budget's calls cannot suffice, before anything is paid."""
        limit = self._assembled.config.budget.calls
        if limit is not None and limit < self.calls:
            raise ConfigError(
                f"it takes about {self.calls} calls, and the budget has {limit}",
                hint="raise the budget, or lower fresh or n (--budget, --fresh, --n)",
            )

    async def distil(self, done: Callable[[str], None] = lambda _: None) -> Distillation:
        """Asks, fits and measures; `done` hears what comes next. Closes the connections. Raises
        TooManyFailures where most of the validation was not answered, and BudgetReached."""
        try:
            return await self._distil(done)
        except BudgetReached as error:
            error.hint = "give it a greater budget, or lower fresh or n"
            raise
        finally:
            await self._assembled.models.close()

    async def _distil(self, done: Callable[[str], None]) -> Distillation:
        file, needs = self._file, self._needs
        if self.fresh:
            done(f"asking the encoder for {len(self.fresh)} routes")
        fresh = await self._fresh_routes()
        routes = [*self._logged, *fresh]
        texts = file.parameters.codebook.texts
        ranking = distil(routes, len(texts), file.select)
        made = Distillation(
            file=file.with_router(ranking),
            inputs=ranking.outcomes,
            fresh=len(fresh),
            cross=cross_agreement(routes, texts, file.select, file.seed),
            validation=None,
            difference=None,
            per_query=(0.0, 0.0),
            margin=needs.margin * self._width,
        )
        if self.validation:
            done(f"answering {len(self.validation)} validation examples under both")
            made = await self._judged(made)
        return replace(made, file=made.file.with_about(distilled=made.as_json()))

    @property
    def _width(self) -> float:
        low, high = self._assembled.config.reward_range
        return high - low

    def _deployed(self, file: PolicyFile) -> Deployed:
        composer = self._assembled.composer(stages_of(file, self._assembled), file.template_set)
        return Deployed(composer, file.parameters, file.statistics)

    async def _fresh_routes(self) -> list[Imitated]:
        """Fallbacks, which are not the encoder's own, are left out."""
        deployed, config = self._deployed(self._file), self._assembled.config

        async def one(example: Example) -> Route:
            draws = config.randomness.at(EVALUATION, example.id)
            composer, own = deployed.composer, deployed
            return (await composer.route(own.parameters, own.statistics, example, draws))[0]

        found = await gather_all(map(one, self.fresh))
        return [
            Imitated(example.id, example.input, route.indices)
            for example, route in zip(self.fresh, found, strict=True)
            if not route.fallback
        ]

    async def _judged(self, made: Distillation) -> Distillation:
        config = self._assembled.config
        evaluator = Evaluator(
            self._assembled.trial(greedy=True), config.randomness, config.reward_range[0]
        )
        both: Mapping[str, Evaluation] = {
            name: await evaluator.evaluate(name, self._deployed(file), self.validation, "val")
            for name, file in (("encoder", self._file), ("distilled", made.file))
        }
        for name, evaluation in both.items():
            _require_answers(evaluation, f"{name}: ")
        encoder, ours = both["encoder"], both["distilled"]
        n = len(self.validation)
        return replace(
            made,
            validation=agreement(_routes(ours), _routes(encoder), config.seed),
            difference=paired_interval(
                ours.rewards, encoder.rewards, config.seed, config.reward_range
            ),
            per_query=(ours.usage.calls / n, encoder.usage.calls / n),
        )

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish."""
        models = self._assembled.models
        kept = "what was paid for so far is kept: type it again" if models.keeps else "begin again"
        models.budget.stop(Interrupted("interrupted by the user", hint=kept))


def _require_answers(evaluation: Evaluation, where: str) -> None:
    """Raises TooManyFailures when more than half failed: two policies without answers do not
    differ."""
    failures = [r.failure for r in evaluation.rollouts if r.failure is not None]
    if len(failures) * 2 > len(evaluation.rollouts):
        raise too_many_failures(failures, tuple(map(Trace, evaluation.rollouts)), where)


def _routes(evaluation: Evaluation) -> list[tuple[int, ...]]:
    return [() if r.route is None else r.route.indices for r in evaluation.rollouts]


def _require_encoder(file: PolicyFile) -> None:
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


def distill(  # noqa: PLR0913 - the command's options
    ref: str | Path | Run,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    fresh: int = 0,
    margin: float = 0.02,
    n: int | None = None,
    budget: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
) -> Distillation:
    """Learns the routes of a policy's encoder, so that a query asks one model call less: `pco
    distill` from Python.

    `ref` is a Run, a run's id, name or folder below `runs_dir`, 'last', or a policy file. A run
    brings its own settings, unless a `config` is given, and its own models, unless `lm` or `roles`
    name others; what it took as objects (`data`, `reward`, `lm`, `executor`) is handed over again,
    unless it is the Run of this process, which has them.
    A policy file has none of these. `fresh` routes are asked of the encoder on training inputs;
    then both policies answer the validation split, or `n` examples of it, within `budget`. The
    result says whether the distilled policy is `non_inferior` by the `margin`, a share of the
    reward's range; `output` is where its policy file is written (None = nowhere: `.file.save`).
    `trust` uses the code and addresses of a run that somebody else made. What is asked goes to the
    log, level INFO.

    Raises ConfigError, DataError, LMError, TooManyFailures, PolicyError and StoreError.
    """
    given = handed(_VERB, data, reward, lm, roles, executor, config, budget, runs_dir, trust)
    needs = Needs(fresh, n, margin)
    with given.until_done(ref, needs) as kept:
        distiller = Distiller.of(Subject.resolve(ref, kept), needs)
        _log.info(distiller.plan)
        made = run_sync(distiller.distil(_log.info), distiller.interrupt)
    if output is not None:
        made.file.save(Path(output))
    return made
