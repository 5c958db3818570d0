"""Starts a run, or opens an old one to go on: store, models, task and session put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptcodebook.config import Budget, Config, load_config
from promptcodebook.data import Dataset
from promptcodebook.errors import RunChanged
from promptcodebook.lm.ledger import Ledger
from promptcodebook.method.policy import Trial
from promptcodebook.method.schedule import Schedule
from promptcodebook.session.events import Began, Listener, silent
from promptcodebook.session.models import Counts, Models, Supplies, any_simulated, specs_of
from promptcodebook.session.parts import build_learner
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.policy import Policy
from promptcodebook.session.policy_file import PolicyFile
from promptcodebook.session.session import Session
from promptcodebook.session.simulation import simulated_factory
from promptcodebook.session.sources import (
    Sources,
    data_of,
    given_instincts,
    judged,
    ready_made,
    settled,
    task_of,
)
from promptcodebook.session.standing import kept_state
from promptcodebook.store.compare import check_resumable, digest
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run
from promptcodebook.tasks.base import Task
from promptcodebook.version import version

__all__ = ["Opened", "Where", "open_run"]

OWN_LM = "own"
"""Stands in the configuration for an LM object handed over by the user."""


@dataclass(frozen=True)
class Where:
    """Where runs live, which one to resume (its folder), and what was typed."""

    runs_dir: Path
    resume: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class Opened:
    """A run ready to go: the session and what it stands on."""

    config: Config
    task: Task
    store: RunStore
    models: Models
    session: Session
    supplies: Supplies

    def policy(self) -> Policy:
        """The policy the run stands for, with connections of its own: it outlives the run."""
        state, _ = kept_state(self.store)
        file = PolicyFile.of(state.parameters, state.standing, self.config)
        supplies = Supplies(own=self.supplies.own, simulated=self.supplies.simulated)
        unlimited = self.config.model_copy(update={"budget": Budget(), "cache": False})
        models = Models.build(unlimited, supplies)
        return Policy(file, models, unlimited, Trial(self.task.executor, None, models.lm, True))

    async def close(self) -> None:
        """Closes connections, then the store."""
        try:
            await self.models.close()
        finally:
            self.store.close()


def open_run(config: Config, sources: Sources, where: Where, listener: Listener = silent) -> Opened:
    """Checks everything that can be checked before a call is paid for.

    Raises ConfigError, DataError, TaskError, RunBusy, RunChanged; a run folder made for nothing is
    removed again.
    """
    made = ready_made(config, sources.base)
    dataset = made.dataset if made is not None else data_of(config, sources)
    config = settled(config if sources.lm is None else _owned(config), made, dataset)
    specs_of(config)
    private = made is not None and made.private
    store = _store(config, dataset, where, sources.base, private)
    try:
        return _assembled(config, sources, made, dataset, store, listener)
    except BaseException:
        store.close()
        if where.resume is None:
            remove_run(store.path)
        raise


def _owned(config: Config) -> Config:
    return config.model_copy(update={"lm": config.lm or OWN_LM})


def _assembled(
    config: Config,
    sources: Sources,
    made: Task | None,
    dataset: Dataset,
    store: RunStore,
    listener: Listener,
) -> Opened:
    supplies = Supplies(
        own=sources.lm,
        simulated=simulated_factory(config.task, dataset),
        log=store.reply_log,
        ledger=Ledger(store.usage()),
        tally=Counts(store.tallies(), _kept_counts(store)),
        elapsed=lambda: store.elapsed_s,
    )
    models = Models.build(config, supplies)
    task = (
        judged(made, config, models.ask)
        if made is not None
        else task_of(config, sources, dataset, models.ask)
    )
    plan = RunPlan(config, task, given_instincts(config, sources.base)).checked()
    learner = build_learner(config, task, models)
    session = Session(plan, store, models, learner, listener)
    listener(_began(plan, store, models))
    return Opened(config, task, store, models, session, supplies)


_COUNTED_ONCE = frozenset(
    {
        *("rate_limited", "unavailable", "server_error", "dropped", "timeout"),
        *("refused_connection", "malformed_body"),
        *("malformed", "truncated", "faulty", "repaired", "reasked", "parse_failed"),
        *("cache_hits", "cache_misses", "cache_bypassed", "journal_hits", "shared_calls"),
    }
)
"""Incidents of one call or one paid reply: a resumed step does not meet them again. All others are
decisions, which it takes again."""


def _kept_counts(store: RunStore) -> Callable[[str, int], None]:
    """Counts at once what happens once, and the rest with the step it belongs to."""

    def keep(name: str, count: int) -> None:
        (store.count if name in _COUNTED_ONCE else store.count_replayable)(name, count)

    return keep


def _began(plan: RunPlan, store: RunStore, models: Models) -> Began:
    update, train = plan.config.update, plan.split("train")
    planned = len(Schedule(train, update, plan.config.seed).updates())
    by_role = models.by_role()
    return Began(
        run_id=store.header.id,
        path=str(store.path),
        steps=planned,
        first=store.outline().step + 1,
        size=plan.config.size,
        models=by_role,
        simulated=any_simulated(by_role.values()),
    )


def _store(config: Config, dataset: Dataset, where: Where, base: Path, private: bool) -> RunStore:
    tree = config.model_dump(mode="json")
    if where.resume is not None:
        return _resumed(where.resume, tree, dataset)
    header = Header(
        id="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=version(),
        task=config.task or dataset.name,
        command=where.command,
        base=str(base.resolve()),
        config=tree,
        config_digest=digest(tree),
        fingerprints=dataset.fingerprint(),
        private=private,
    )
    return RunStore.create(where.runs_dir, header, clock=time.monotonic)


def _resumed(path: Path, tree: Mapping[str, Any], dataset: Dataset) -> RunStore:
    store = RunStore.open(path, write=True)
    try:
        header = store.header
        check_resumable(
            header.id,
            (_completed(header.config), tree),
            (header.fingerprints, dataset.fingerprint()),
        )
        ended = store.outline().ended
        if ended in ("finished", "early_stop", "target"):
            raise RunChanged(
                f"the run {header.id} is finished, there is nothing to resume",
                hint=f"pco report {header.id}, or start a new run from its policy: "
                "--set init.kind=file --set init.path=RUN/policy.json",
            )
    except BaseException:
        store.close()
        raise
    return store


def _completed(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored configuration with the defaults of keys that did not exist when it was written."""
    return load_config(tree, where="the stored configuration").model_dump(mode="json")
