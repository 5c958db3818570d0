"""Starts a run, or opens an old one to go on: plan, store, models and session put together."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.config import Budget, Config, load_config
from promptcodebook.errors import ConfigError, RunChanged
from promptcodebook.incidents import Counts, Incident
from promptcodebook.lm.ledger import Ledger
from promptcodebook.lm.providers import require_keys
from promptcodebook.lm.stack import Supplies, specs_of
from promptcodebook.method.schedule import Schedule
from promptcodebook.method.templates import TemplateSet
from promptcodebook.optimizers.base import Problem, make_optimizer
from promptcodebook.paths import run_reference
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import kept_state, policy_file
from promptcodebook.progress import Began, Listener, silent
from promptcodebook.run.session import Session
from promptcodebook.store.header import Header, check_resumable, check_run_name, digest
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run, remove_unborn

__all__ = ["Opened", "Where", "open_run", "settings_then_and_now"]


@dataclass(frozen=True)
class Where:
    """Where runs live, which one to resume (its folder), what was typed, and the run's name."""

    runs_dir: Path
    resume: Path | None = None
    command: str = ""
    name: str = ""


@dataclass(frozen=True)
class Opened:
    """A run ready to go: the session and what it stands on."""

    assembled: Assembled
    store: RunStore
    session: Session

    def policy(self) -> Policy:
        """The policy the run stands for, with connections of its own: it outlives the run."""
        state, best = kept_state(self.store)
        plan, header = self.assembled.plan, self.store.header
        file = policy_file(self.assembled, state).with_about(
            run=header.id, version=header.version, score=best.score
        )
        unlimited = plan.config.model_copy(update={"budget": Budget(), "cache": False})
        return Policy(file, replace(plan, config=unlimited).connect())

    async def close(self) -> None:
        """Closes connections, then the store."""
        try:
            await self.assembled.models.close()
        finally:
            self.assembled.plan.calls.close()
            self.store.close()


def open_run(config: Config, sources: Sources, where: Where, listener: Listener = silent) -> Opened:
    """Checks everything that can be checked before a call is paid for.

    Raises ConfigError, DataError, TaskError, RunBusy, RunChanged; a run folder made for nothing is
    removed again.
    """
    plan = plan_run(config, sources).require_training()
    optimizer = make_optimizer(config.optimizer)
    specs = specs_of(plan.config)
    if sources.lm is None:
        require_keys(specs)
    store = _store(plan, where)
    try:
        assembled = plan.connect(_supplies(store))
        session = Session(Problem(assembled, store, listener), optimizer)
        listener(_announcement(assembled, store))
        return Opened(assembled, store, session)
    except BaseException:
        store.close()
        if where.resume is None:
            remove_run(store.path)
        raise


def _supplies(store: RunStore) -> Supplies:
    """The run's journal, what it spent so far, its counts and its clock."""

    def keep(incident: Incident, count: int = 1) -> None:
        """Counts at once what happens once, and the rest with the step it belongs to."""
        (store.count if incident.once else store.count_replayable)(incident, count)

    return Supplies(
        log=store.reply_log,
        ledger=Ledger(store.usage(), store.lost(), store.attempt_log),
        tally=Counts(store.tallies(), keep),
        elapsed=lambda: store.elapsed_s,
    )


def _announcement(assembled: Assembled, store: RunStore) -> Began:
    config = assembled.config
    schedule = Schedule(assembled.dataset.train, config.update, config.randomness)
    return Began(
        run_id=store.header.id,
        path=str(store.path),
        steps=len(schedule.updates()),
        first=store.outline().step + 1,
        size=config.size,
        models=assembled.models.by_role(),
        simulated=assembled.models.simulated,
    )


def _store(plan: Plan, where: Where) -> RunStore:
    if where.resume is not None:
        return _reopen(where.resume, plan, where.name)
    tree = plan.config.model_dump(mode="json")
    header = Header(
        id="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=importlib.metadata.version("promptcodebook"),
        task=plan.config.task or plan.dataset.name,
        command=where.command,
        base=str(plan.sources.base.resolve()),
        config=tree,
        config_digest=digest(tree),
        fingerprints=plan.dataset.fingerprint(),
        private=plan.task.private,
        program=plan.task.program.name,
        stages=plan.prompt_stages,
        templates=plan.templates,
        present=plan.present_prompt,
        name=check_run_name(where.name),
    )
    remove_unborn(where.runs_dir)
    return RunStore.create(where.runs_dir, header, clock=time.monotonic)


def _reopen(path: Path, plan: Plan, name: str) -> RunStore:
    store = RunStore.open(path, write=True)
    try:
        header = store.header
        if name not in ("", header.name):
            raise ConfigError(
                f"the run {header.id} was not begun under the name {name!r}",
                hint="a run keeps its name: leave the name out when you resume",
            )
        check_resumable(
            header.id,
            settings_then_and_now(header, plan),
            (header.fingerprints, plan.dataset.fingerprint()),
        )
        ended = store.outline().ended
        if ended in ("finished", "early_stop", "target"):
            raise RunChanged(
                f"the run {header.id} is finished, there is nothing to resume",
                hint=f"pco report {run_reference(path)}, or start a new run from its policy: "
                "--set init.kind=file --set init.path=RUN/policy.json",
            )
    except BaseException:
        store.close()
        raise
    return store


def _with_new_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the defaults of keys that did not exist when it was written."""
    return load_config(tree, where="the stored configuration").model_dump(mode="json")


def settings_then_and_now(
    header: Header, plan: Plan
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A run's settings and the plan's, comparable: keys that are newer than the run have their
    defaults, and template files are settings too."""
    then = _with_new_keys(header.settings)
    now = plan.config.model_dump(mode="json")
    if header.templates is not None and then["templates"] == now["templates"]:
        then.update(_prints(header.templates))
        now.update(_prints(plan.templates))
    return then, now


def _prints(templates: TemplateSet) -> dict[str, str]:
    """The templates as settings: a file that was changed is told as one."""
    return {f"templates/{file}": mark for file, mark in templates.fingerprint().items()}
